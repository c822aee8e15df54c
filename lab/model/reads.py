"""What a reconcile reads: rows of tables, the ledger, and the log; each as its contents are now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.model.stream import TOPIC, Address, Record
from lab.model.tables import ARCHIVE
from rivertwice.core.errors import LogGapError
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import Segment

if TYPE_CHECKING:
    from lab.model.tables import Contents
    from lab.model.world import World

Key = tuple[str, int]
Records = list[tuple[Address, Record]]
Log = dict[Key, Records]
"""Batch to its records, each with its address as the archive has it."""


def emitted_rows(world: World, path: Sequence[Segment], last: int) -> dict[int, frozenset[Address]]:
    """Return window end to the records of the row that the changelog has of it on a path, up to a batch."""
    contents = world.tables.now
    return {
        end: contents.rows("changelog", (timeline, batch, end), held)
        for (timeline, batch), rows in world.changelog.items()
        if batch <= last and any(part.contains(timeline, batch) for part in path)
        for end, held in rows
    }


def served_rows(world: World) -> dict[int, frozenset[Address]] | None:
    """Return window end to the records of its served row; None: there is no such table."""
    return None if world.served is None else as_served(world.tables.now, world.served.rows)


def as_served(contents: Contents, rows: dict[int, frozenset[Address]] | object) -> dict[int, frozenset[Address]]:
    """Return served rows as they are read."""
    assert isinstance(rows, dict), "served rows are a dict"
    return {end: contents.rows("served", (end, held), held) for end, held in rows.items()}


def ledger_rows(world: World, rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Return ledger rows as they are read."""
    contents = world.tables.now
    if not contents.erased and not contents.harmed:
        return list(rows)
    return [contents.ledger_row(row, emitted_by(world, (row.timeline, row.batch))) for row in rows]


def emitted_by(world: World, key: Key) -> frozenset[Address]:
    """Return the records of all rows that a batch emitted."""
    return frozenset(address for _, held in world.changelog.get(key, ()) for address in held)


def read_log(world: World, rows: Sequence[LedgerRow]) -> Log:
    """Return the records of batches, from the archive or Kafka.

    Raises:
        LogGapError: some are gone. A reconcile of the product doubts their windows and is not sealed.
    """
    return {(row.timeline, row.batch): records_of(world, row, world.tables.now) for row in rows if _require(world, row)}


def records_of(world: World, row: LedgerRow, contents: Contents) -> Records:
    """Return a batch's records as the archive has them."""
    return [(contents.address(ARCHIVE, address), record) for address, record in world.judge.true_records(row)]


def loaded_records(world: World) -> Records:
    """Return the records that a first load left out of the stream, from the archive or Kafka."""
    if world.load is None:
        return []
    log = world.logs[world.load.topic_id]
    return [
        ((partition, offset), log[partition][offset])
        for partition, (start, end) in world.load.ranges.items()
        for offset in range(start, end)
    ]


def amended_records(world: World, rows: Sequence[LedgerRow], contents: Contents) -> Records:
    """Return the dead letters of batches that were given a value; they are made of the decisions, not of the log."""
    return [
        (address, record)
        for row in rows
        for address, record in world.judge.true_records(row)
        if address in contents.amended
    ]


def _require(world: World, row: LedgerRow) -> bool:
    """Check that all records of a batch can still be read."""
    for partition, (start, end) in row.ranges(TOPIC).items():
        first, last = world.archived.get(partition, (0, 0)) if row.topic_ids[TOPIC] == "topic-1" else (0, 0)
        begin = world.begin[partition] if row.topic_ids[TOPIC] == world.topic_id else 1 << 62
        missing = [at for at in range(start, end) if not first <= at < last and at < begin]
        if missing:
            message = f"offset {missing[0]} of partition {partition} is neither in the archive nor in Kafka"
            raise LogGapError(message)
    return True
