"""Rows that a micro-batch writes beside its result: dead letters, late rows, versions of tables.

They are written before the batch's commit, under a separate transaction, and count only once their batch is in the
ledger. So a crash between the two duplicates no row. Each write notes the offset ranges from which it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.core import Place, RangeMismatchError, Settings
from rivertwice.definition import Definition
from rivertwice.engine import decode_view
from rivertwice.log import Parts, name_parts, of_topic, read_ranges
from rivertwice.storage import Table, Where
from rivertwice.timeline import SIDE_STATISTICS, Timeline

_PIECES = 1_000_000
"""A batch has fewer pieces than this, so the versions of their transactions grow from batch to batch."""


def read_again(
    spark: SparkSession, settings: Settings, line: Timeline, definition: Definition, topic: str, ranges: Parts
) -> DataFrame:
    """Return the decoded records of a batch's exact range of one topic."""
    view, _ = definition.by_topic[topic]
    raw = read_ranges(spark, settings, topic, of_topic(ranges, topic), topic_id=line.topic_ids[topic])
    return decode_view(definition, view, raw)


def stamps(form: int, line: Timeline, batch: int) -> list[Column]:
    """Return the first columns of every side row: `_format`, `_timeline`, `_batch`."""
    return [
        F.lit(form).cast("int").alias("_format"),
        F.lit(line.timeline).alias("_timeline"),
        F.lit(batch).cast("long").alias("_batch"),
    ]


def origin(line: Timeline, topic: str) -> list[Column]:
    """Return the columns that name the log of a side row's record."""
    return [
        F.lit(line.cluster_id).alias("cluster_id"),
        F.lit(line.topic_ids[topic]).alias("topic_id"),
        F.lit(topic).alias("topic"),
    ]


def encode_ranges(ranges: Parts) -> dict[str, list[int]]:
    """Return offset ranges as they are stored in JSON, by the parts' names (`addresses.name_parts`)."""
    return {name: list(ranges[part]) for part, name in name_parts(ranges).items()}


def check_same_range(recorded: Mapping[str, Sequence[int]] | None, ranges: Parts, batch: int, what: str) -> None:
    """Accept side rows that exist already only if they were made from this range.

    A batch that was planned but never committed may be planned again if its `offsets/N` is lost. The rows of its first attempt
    then belong to another range.

    Raises:
        RangeMismatchError: they were made from another range.
    """
    if recorded is not None and {p: list(pair) for p, pair in recorded.items()} != encode_ranges(ranges):
        message = (
            f"the {what} of batch {batch} are there already, of {dict(recorded)} and not of {encode_ranges(ranges)}: "
            "its offsets file was lost and it was planned again; nothing was committed; restore a savepoint into a new timeline"
        )
        raise RangeMismatchError(message)


@dataclass(frozen=True)
class SideTable:
    """One kind of side rows of one timeline.

    Attributes:
        key: the metadata key under which a commit notes its batch and ranges.
        app: transaction id.
        what: the name of the rows in messages, for instance `dead letters`.
    """

    place: Place
    key: str
    app: str
    what: str

    def is_written(self, batch: int, ranges: Parts) -> bool:
        """Say whether an earlier attempt at the batch wrote its rows.

        Raises:
            RangeMismatchError: it did, from another range.
        """
        done = Table(self.place).applied_version(self.app)
        if done is None or done < batch:
            return False
        self.check(batch, ranges)
        return True

    def check(self, batch: int, ranges: Parts) -> None:
        """Accept rows of an earlier attempt at the batch, if there are any, only if they were made from this range.

        Raises:
            RangeMismatchError: they were made from another range.
        """
        notes: list[Any] = [value for _, value in Table(self.place).commits(self.key, limit=16)]
        own_ranges = [value["ranges"] for value in notes if (value["app"], value["batch"]) == (self.app, batch)]
        check_same_range(own_ranges[-1] if own_ranges else None, ranges, batch, self.what)

    def count(self, timeline: str, batch: int) -> int:
        """Return how many rows of a batch the table contains."""
        return Table(self.place).rows_by(("_timeline", "_batch"), above=("_batch", batch - 1)).get((timeline, batch), 0)

    def write(self, batch: int, ranges: Parts, rows: pa.Table) -> None:
        """Append a batch's rows, in one commit that notes their offset ranges."""
        self._append(batch, ranges, rows, {self.app: batch})

    def write_pieces(
        self, batch: int, ranges: Parts, pieces: Iterable[pa.Table], address: Sequence[str], *, even_none: bool = False
    ) -> int:
        """Append a batch's rows piece by piece, each in a separate commit; return how many rows were written now.

        Only the last commit carries the batch's transaction, so a batch that was interrupted between two pieces does not count as
        written. Its rows that exist already are recognised by `address` (columns, including the timeline) and not written
        again. If there is no row, a commit is made only with `even_none`.

        Raises:
            RangeMismatchError: an earlier attempt at the batch left rows of another range.
        """
        base = batch * _PIECES
        part = max(Table(self.place).applied_version(self._pieces_app) or 0, base)
        left = self._rows_left(batch, ranges, address) if part > base else frozenset()
        written, waiting = 0, None
        for piece in pieces:
            rows = _without(piece, left, address)
            if waiting is None or not waiting.num_rows:
                waiting = rows
            elif rows.num_rows:
                part += 1
                self._append(batch, ranges, waiting, {self._pieces_app: part})
                written += waiting.num_rows
                waiting = rows
        if waiting is not None and (waiting.num_rows or part > base or even_none):
            self.write(batch, ranges, waiting)
            written += waiting.num_rows
        return written

    @property
    def _pieces_app(self) -> str:
        return f"{self.app}/pieces"

    def _rows_left(self, batch: int, ranges: Parts, address: Sequence[str]) -> frozenset[tuple[Any, ...]]:
        """Return the addresses of the rows that an interrupted attempt at the batch wrote."""
        self.check(batch, ranges)
        rows = Table(self.place).read(columns=["_batch", *address], matching=Where("_batch").is_between(batch, batch))
        return frozenset() if rows is None else frozenset(_addresses(rows, address))

    def _append(self, batch: int, ranges: Parts, rows: pa.Table, transactions: Mapping[str, int]) -> None:
        note = {"app": self.app, "batch": batch, "ranges": encode_ranges(ranges)}
        Table(self.place, skip_by=SIDE_STATISTICS).append(rows, transactions=transactions, metadata={self.key: note})


def _addresses(rows: pa.Table, address: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in address), strict=True))


def _without(rows: pa.Table, left: frozenset[tuple[Any, ...]], address: Sequence[str]) -> pa.Table:
    if not left:
        return rows
    return rows.filter(pa.array([row_address not in left for row_address in _addresses(rows, address)], pa.bool_()))
