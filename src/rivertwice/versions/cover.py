"""The rows that the proofs of two versions cover."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rivertwice.instants import iso_of_ms
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.fast import offset_of, partition_of
from rivertwice.pipeline.names import RECORD, SOURCE
from rivertwice.versions.model import Proof

_MS = timedelta(milliseconds=1)


def covered_until(definition: Definition, proofs: Sequence[Proof]) -> int:
    """Return up to which end (epoch ms) windows are compared.

    A session that ends in the gap before the watermark may still be joined by a record, so it is compared later.
    """
    until_ms = min(proof.until_ms for proof in proofs)
    return until_ms if definition.session_keys is None else until_ms - definition.window.length // _MS


def is_by_record(definition: Definition) -> bool:
    """Say whether a row belongs to a record, as those of a fold do: no watermark says that it is final."""
    return RECORD in definition.row_keys


def describe_cover(definition: Definition, until_ms: int) -> str:
    """Return in words what is compared. Pure."""
    if is_by_record(definition):
        return "rows of the records that both versions have read"
    return f"windows that end at or before {iso_of_ms(until_ms)}"


def covered_rows(rows: DataFrame, definition: Definition, since_ms: int | None, proofs: Sequence[Proof]) -> DataFrame:
    """Return the rows of a result that both proofs cover.

    Args:
        rows: the result.
        definition: that made it.
        since_ms: windows that start earlier are left out; None: none is.
        proofs: of both versions.
    """
    if is_by_record(definition):
        return rows.where(_below(definition, common_ends([proof.end_offsets for proof in proofs])))
    window = definition.window
    rows = rows.where(F.unix_millis(window.end_column) <= F.lit(covered_until(definition, proofs)))
    return rows if since_ms is None else rows.where(F.unix_millis(window.start_column) >= F.lit(since_ms))


def common_ends(ends: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Return topic to partition to the offset up to which all have read. Pure."""
    return {
        topic: {
            partition: min(each.get(topic, {}).get(partition, 0) for each in ends)
            for partition in sorted({partition for each in ends for partition in each.get(topic, {})})
        }
        for topic in sorted({topic for each in ends for topic in each})
    }


def _below(definition: Definition, ends: Mapping[str, Mapping[str, int]]) -> Column:
    """Return whether the event of a fold's row is among the records that both have read."""
    place = F.col(RECORD)
    parts = []
    for view, source in definition.sources.items():
        own = F.col(SOURCE) == view if SOURCE in definition.row_keys else F.lit(True)
        for partition, end in ends.get(source.topic, {}).items():
            parts.append(own & (partition_of(place) == F.lit(int(partition))) & (offset_of(place) < F.lit(end)))
    return functools.reduce(operator.or_, parts, F.lit(False))
