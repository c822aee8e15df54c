"""Records of offset runs, read and decoded."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from rivertwice.backfill.model import OffsetRuns
from rivertwice.config import Settings
from rivertwice.log.records import read_ranges
from rivertwice.pipeline.compile import accepted
from rivertwice.pipeline.decode import decode
from rivertwice.pipeline.definition import Definition, Source


def read_source(
    spark: SparkSession, settings: Settings, topic_ids: Mapping[str, str], source: Source, offsets: OffsetRuns
) -> DataFrame:
    """Return a source's accepted rows of offset runs; one partition's are read in as few passes as there are runs."""
    parts = offsets.get(source.topic, {})
    passes = max((len(runs) for runs in parts.values()), default=0)
    scans = [
        {partition: runs[index] for partition, runs in parts.items() if index < len(runs)} for index in range(passes)
    ]
    frames = [
        read_ranges(spark, settings, source.topic, ranges, topic_id=topic_ids[source.topic]) for ranges in scans or [{}]
    ]
    return accepted(decode(functools.reduce(DataFrame.unionByName, frames), source), source)


def read_accepted(
    spark: SparkSession,
    settings: Settings,
    topic_ids: Mapping[str, str],
    definition: Definition,
    offsets: OffsetRuns,
) -> DataFrame:
    """Return the accepted rows of offset runs, of a definition with one source."""
    _, source = definition.source
    return read_source(spark, settings, topic_ids, source, offsets)
