"""Records of offset runs, read and decoded, and what dead letters should have been."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from rivertwice.backfill.model import OffsetRuns
from rivertwice.config import PipelineHome, Settings
from rivertwice.deadletters.cure import amended_rows, with_cures
from rivertwice.deadletters.model import DeadLetter
from rivertwice.deadletters.summary import read_cures
from rivertwice.log.records import read_ranges
from rivertwice.pipeline.compile import decode_view
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.relations import accepted
from rivertwice.timeline.committed import committed_batches


def read_source(
    spark: SparkSession,
    settings: Settings,
    topic_ids: Mapping[str, str],
    definition: Definition,
    view: str,
    offsets: OffsetRuns,
) -> DataFrame:
    """Return a view's accepted rows of offset runs; one partition's are read in as few passes as there are runs."""
    source = definition.sources[view]
    parts = offsets.get(source.topic, {})
    passes = max((len(runs) for runs in parts.values()), default=0)
    scans = [
        {partition: runs[index] for partition, runs in parts.items() if index < len(runs)} for index in range(passes)
    ]
    frames = [
        read_ranges(spark, settings, source.topic, ranges, topic_id=topic_ids[source.topic]) for ranges in scans or [{}]
    ]
    return accepted(decode_view(definition, view, functools.reduce(DataFrame.unionByName, frames)), source)


def cured(
    spark: SparkSession,
    home: PipelineHome,
    definition: Definition,
    rows: Mapping[str, DataFrame],
    as_of: Mapping[str, Mapping[int, int]],
    amendments: int,
) -> dict[str, DataFrame]:
    """Return view to rows, with the dead letters below `as_of` that are amended as of decision `amendments`, in any range."""
    if not amendments:
        return dict(rows)

    def is_below(letter: DeadLetter) -> bool:
        return letter.address.offset < as_of.get(letter.topic, {}).get(letter.address.partition, 0)

    known = [
        cure
        for cure in read_cures(home, committed_batches(home))
        if cure.holds_at(amendments) and is_below(cure.letter)
    ]
    cures = amended_rows(spark, definition, known)
    return {view: with_cures(view_rows, cures.get(view)) for view, view_rows in rows.items()}
