"""The ledger: one row per micro-batch. It is in the metadata of the changelog's commit and is copied to a separate table.

Delta removes commit metadata with its log, so only the copy stays; but the commit is what counts. `heal_ledger` copies what
is missing after a crash between the two. Rows of format 1, which have no `by_topic`, of format 2, which have no
`late_rows`, of format 3, which have no `absent`, and of format 4, which have no `marks`, are read too.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, cast

import pyarrow as pa

from rivertwice.core import LedgerError, PipelineHome, Place, parse_iso, to_iso
from rivertwice.definition import Definition
from rivertwice.log import Part, Parts, StoredMarks, StoredOffsets
from rivertwice.storage import Table, Where
from rivertwice.timeline.counts import BatchCounts

# By which columns readers skip files of the tables that grow by a commit a batch: only these columns have statistics in their logs.
#
# Every commit reads the statistics of all live files again (`storage.table.properties_of`). A reader that skips by another column is
# right all the same: it reads more files. Then the column belongs here.

LEDGER = ("timeline", "batch", "min_event_ms", "max_event_ms", "committed_at")
SIDE_STATISTICS = ("_timeline", "_batch", "offset", "record_time", "window_start")
"""Of dead letters, late rows and versions of tables, as far as each has the column."""


def of_changelog(definition: Definition) -> tuple[str, ...]:
    """Return the columns of the changelog. Pure."""
    return "_timeline", "_batch", definition.window.start_column, definition.window.end_column


def by_table(home: PipelineHome, definition: Definition) -> dict[Place, tuple[str, ...]]:
    """Return the columns of each table to which the stream of a definition commits. Pure."""
    tables = home.tables
    side = (tables.dead_letters, tables.late_rows, *(tables.versions(view) for view in definition.tables))
    return {tables.changelog: of_changelog(definition), tables.ledger: LEDGER, **dict.fromkeys(side, SIDE_STATISTICS)}


FORMAT = 5
READABLE = (1, 2, 3, 4, 5)
LEDGER_KEY = "ledger"
MOST = (1 << 63) - 1
"""A number above that of any batch."""

SCHEMA = pa.schema(
    [
        ("_format", pa.int32()),
        ("pipeline", pa.string()),
        ("timeline", pa.string()),
        ("batch", pa.int64()),
        ("epoch", pa.int64()),
        ("bundle", pa.string()),
        ("cluster_id", pa.string()),
        ("topic_ids", pa.string()),
        ("start_offsets", pa.string()),
        ("end_offsets", pa.string()),
        ("offsets_text", pa.string()),
        ("batch_watermark_ms", pa.int64()),
        ("batch_timestamp_ms", pa.int64()),
        ("read", pa.int64()),
        ("bad", pa.int64()),
        ("accepted", pa.int64()),
        ("min_event_ms", pa.int64()),
        ("max_event_ms", pa.int64()),
        ("emitted", pa.int64()),
        ("digest", pa.string()),
        ("references", pa.string()),
        ("committed_at", pa.timestamp("us", "UTC")),
        ("by_topic", pa.string()),
        ("late_rows", pa.int64()),
        ("absent", pa.string()),
        ("marks", pa.string()),
    ]
)
_JSON_COLUMNS = ("topic_ids", "start_offsets", "end_offsets", "references", "by_topic", "absent", "marks")


def parts_between(start: StoredOffsets, end: StoredOffsets) -> Parts:
    """Return the half-open offset ranges of all topics from `start` (0 where it names none) to `end`."""
    return {
        Part(topic, int(partition)): (int(start.get(topic, {}).get(partition, 0)), int(offset))
        for topic, places in end.items()
        for partition, offset in places.items()
    }


@dataclass(frozen=True)
class LedgerRow:
    """One committed micro-batch.

    Attributes:
        batch: Spark's batch number within the checkpoint's line.
        start_offsets: topic to partition to first offset; the range is half-open.
        end_offsets: topic to partition to the offset after the last record.
        offsets_text: `offsets/N` of the checkpoint, verbatim, so that the batch can be replayed.
        batch_watermark_ms: the batch's own watermark (epoch ms): windows ending at or before it are emitted by it. Rows
            are late by the PREVIOUS batch's watermark.
        read: records in the range; bad: dead letters among them; accepted: rows under the watermark.
        min_event_ms, max_event_ms: event times of the accepted rows, None when there are none.
        emitted: result rows appended to the changelog; digest: their digest (`timeline.digest`).
        by_topic: topic to its share of read, bad, accepted and event times; empty in rows of format 1.
        late_rows: rows written to the table of late rows; None if the policy keeps none, and in rows of formats 1 and 2.
        absent: topic to partition to how many offsets of the range hold no record for a reader (markers of transactions and
            aborted records); a partition whose offsets all hold one is not named.
        marks: topic to partition to the last record that the path had read of it by then (`log.marks`); empty up to format 4.
    """

    pipeline: str
    timeline: str
    batch: int
    epoch: int
    bundle: str
    cluster_id: str
    topic_ids: Mapping[str, str]
    start_offsets: StoredOffsets
    end_offsets: StoredOffsets
    offsets_text: str
    batch_watermark_ms: int
    batch_timestamp_ms: int
    read: int
    bad: int
    accepted: int
    min_event_ms: int | None
    max_event_ms: int | None
    emitted: int
    digest: str
    references: Mapping[str, Any]
    committed_at: datetime
    by_topic: Mapping[str, BatchCounts] = field(default_factory=dict)
    late_rows: int | None = None
    absent: StoredOffsets = field(default_factory=dict)
    marks: StoredMarks = field(default_factory=dict)

    def ranges(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return partition to half-open offset range for one topic."""
        start = self.start_offsets.get(topic, {})
        return {int(p): (int(start.get(p, 0)), int(end)) for p, end in self.end_offsets.get(topic, {}).items()}

    def parts(self) -> Parts:
        """Return the half-open offset ranges of all topics."""
        return parts_between(self.start_offsets, self.end_offsets)

    def to_json(self) -> dict[str, Any]:
        """Return the row as the JSON object of the commit's metadata."""
        return {"format": FORMAT, **asdict(self), "committed_at": to_iso(self.committed_at)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LedgerRow:
        """Read a row from a commit's metadata.

        Raises:
            LedgerError: the format is not known.
        """
        _check_format(data.get("format"))
        values = {key: value for key, value in data.items() if key != "format"}
        by_topic = _counts_by_topic(values.get("by_topic"))
        return cls(**{**values, "committed_at": parse_iso(values["committed_at"]), "by_topic": by_topic})


def _check_format(stored_format: Any) -> None:
    if stored_format not in READABLE:
        message = f"a ledger row has format {stored_format!r}, this version reads {', '.join(map(str, READABLE))}; use a newer rivertwice"
        raise LedgerError(message)


def _counts_by_topic(data: Mapping[str, Mapping[str, Any]] | None) -> dict[str, BatchCounts]:
    return {topic: BatchCounts(**counts) for topic, counts in (data or {}).items()}


def to_table(rows: Iterable[LedgerRow]) -> pa.Table:
    """Return rows in the ledger table's schema."""
    plain = []
    for row in rows:
        values = {"_format": FORMAT, **asdict(row)}
        plain.append(
            {key: json.dumps(value, sort_keys=True) if key in _JSON_COLUMNS else value for key, value in values.items()}
        )
    return pa.Table.from_pylist(plain, schema=SCHEMA)


def from_table(table: pa.Table) -> list[LedgerRow]:
    """Return rows ordered by (timeline, batch); a row copied twice counts once.

    Raises:
        LedgerError: two different rows claim the same batch of one timeline, or a row's format is not known.
    """
    by_batch: dict[tuple[str, int], LedgerRow] = {}
    for values in table.to_pylist():
        _check_format(values.pop("_format"))
        for column in _JSON_COLUMNS:
            values[column] = json.loads(values.get(column) or "{}")
        row = LedgerRow(**{**values, "by_topic": _counts_by_topic(values["by_topic"])})
        first_row = by_batch.setdefault((row.timeline, row.batch), row)
        if first_row != row:
            message = (
                f"the ledger holds two different rows for batch {row.batch} of timeline {row.timeline}: one of them was "
                "not written by rivertwice; restore the ledger table to the version before it"
            )
            raise LedgerError(message)
    return [by_batch[key] for key in sorted(by_batch)]


def read_ledger(home: PipelineHome, first_batch: int | None = None) -> list[LedgerRow]:
    """Return every committed batch of every timeline: the table's rows, plus those that only the changelog's commits have yet.

    Args:
        first_batch: leave out batches of smaller numbers; later batches alone are read much faster.
    """
    table = Table(home.tables.ledger).read(matching=_from_batch(first_batch))
    rows = [] if table is None else from_table(table)
    missing = commits_missing(home, {(row.timeline, row.batch) for row in rows})
    return rows + [row for row in missing if first_batch is None or row.batch >= first_batch]


def _from_batch(first: int | None) -> str | None:
    return None if first is None else Where("batch").is_between(first, MOST)


def read_keys(home: PipelineHome, first_batch: int | None = None) -> set[tuple[str, int]]:
    """Return (timeline, batch) of every row of the ledger's table, or of those from a batch on."""
    table = Table(home.tables.ledger).read(columns=["timeline", "batch"], matching=_from_batch(first_batch))
    return set() if table is None else set(zip(table["timeline"].to_pylist(), table["batch"].to_pylist(), strict=True))


class StoredKeys:
    """Whether the ledger's table has a row for a batch, as (timeline, number); only rows from the least one asked for are read."""

    def __init__(self, home: PipelineHome) -> None:
        """Read nothing yet."""
        self._home = home
        self._lowest = MOST
        self._keys: set[tuple[str, int]] = set()

    def __contains__(self, key: object) -> bool:
        """Say whether the table has it; the commits of the changelog are asked for oldest first, so one read suffices."""
        _, batch = cast("tuple[str, int]", key)
        if batch < self._lowest:
            self._lowest, self._keys = batch, read_keys(self._home, batch)
        return key in self._keys


def commits_missing(home: PipelineHome, known: Container[tuple[str, int]], *, whole: bool = False) -> list[LedgerRow]:
    """Return ledger rows that the changelog's newest commits have and the table lacks, oldest first.

    Args:
        known: (timeline, batch) of the table's rows.
        whole: look at every commit that the changelog still has, also those before one that the table has.
    """
    limit = 16
    while True:
        commits = Table(home.tables.changelog).commits(LEDGER_KEY, limit=None if whole else limit)
        rows = [LedgerRow.from_json(data) for _, data in commits]
        missing = [row for row in rows if (row.timeline, row.batch) not in known]
        if whole or len(missing) < len(commits) or len(commits) < limit:
            return missing
        limit *= 8


def append_ledger(home: PipelineHome, rows: Sequence[LedgerRow], kept: Table | None = None) -> Table:
    """Copy rows into the ledger table; `from_table` tolerates a repeat after a crash. Return the table.

    A table that was begun in format 1 gets the column it lacks. `kept` is what an earlier call returned, for a writer that appends often.
    """
    table = kept or Table(home.tables.ledger, skip_by=LEDGER)
    if rows:
        table.append(to_table(rows), widen=True)
    return table


def heal_ledger(home: PipelineHome, *, whole: bool = False) -> int:
    """Copy into the table the rows that only the changelog's commits have; return how many.

    With `whole` every commit that the changelog still has is read, also those before one that the table has.
    """
    missing = commits_missing(home, StoredKeys(home), whole=whole)
    append_ledger(home, missing)
    return len(missing)
