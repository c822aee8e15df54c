"""Head moves and publications: one Delta table, one sequence; each entry asserts its predecessor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from rivertwice.core import LostRaceError, PipelineHome, Place
from rivertwice.storage import Remembered, Table, encode_json

FORMAT = 1


class EntryKind:
    """What an entry of the sequence decides."""

    HEAD = "head"
    PUBLICATION = "publication"


SCHEMA = pa.schema(
    [
        ("_format", pa.int32()),
        ("seq", pa.int64()),
        ("kind", pa.string()),
        ("payload", pa.string()),
        ("created_at", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True)
class Entry:
    """One decision: a head move or a publication.

    Attributes:
        seq: 1, 2, 3 ... without gap.
        kind: `head` ({timeline, reason}) or `publication` ({backfill, ranges, semantics, bundle, as_of, ...}).
    """

    seq: int
    kind: str
    payload: Mapping[str, Any]
    created_at: datetime


def sequence_app(home: PipelineHome) -> str:
    """Return the application id of the sequence's transactions."""
    return f"sequence/{home.root.name}"


def read_sequence(home: PipelineHome) -> list[Entry]:
    """Return all entries, oldest first, as they are now; a table without a new commit is not read again."""
    table = home.tables.sequence
    return list(_ENTRIES.get(str(table), (table,), lambda: _read_entries(table)))


def _read_entries(table: Place) -> tuple[Entry, ...]:
    rows = Table(table).read()
    if rows is None:
        return ()
    entries = [
        Entry(row["seq"], row["kind"], json.loads(row["payload"]), row["created_at"]) for row in rows.to_pylist()
    ]
    return tuple(sorted(entries, key=lambda entry: entry.seq))


def last_seq(home: PipelineHome) -> int:
    """Return the newest entry's number, 0 if there is none."""
    return Table(home.tables.sequence).applied_version(sequence_app(home)) or 0


def append_entry(
    home: PipelineHome, kind: str, payload: Mapping[str, Any], *, expected_seq: int, now: datetime
) -> Entry:
    """Append the entry that follows `expected_seq`.

    The predecessor is asserted twice: on a fresh handle here, and by the table's own conflict check on the
    application id, so of two writers that saw the same sequence exactly one wins.

    Raises:
        LostRaceError: another entry was appended since `expected_seq` was read; nothing was written.
    """
    check_predecessor(last_seq(home), expected_seq, home.root.name)
    entry = Entry(seq=expected_seq + 1, kind=kind, payload=payload, created_at=now)
    row = {
        "_format": FORMAT,
        "seq": entry.seq,
        "kind": kind,
        "payload": encode_json(payload).decode(),
        "created_at": now,
    }
    Table(home.tables.sequence).append(
        pa.Table.from_pylist([row], schema=SCHEMA), transactions={sequence_app(home): entry.seq}
    )
    return entry


def check_predecessor(newest: int, expected: int, pipeline: str) -> None:
    """Refuse an entry that was decided on an older sequence than the present one.

    Raises:
        LostRaceError: another entry was appended since `expected` was read.
    """
    if newest != expected:
        message = (
            f"the sequence of {pipeline} is at {newest}, not at {expected}: another process moved the head or "
            "published meanwhile; read again and decide again"
        )
        raise LostRaceError(message)


def select_head(entries: list[Entry]) -> str | None:
    """Return the timeline that the newest head move names, or None."""
    moves = [entry for entry in entries if entry.kind == EntryKind.HEAD]
    return str(moves[-1].payload["timeline"]) if moves else None


def head(home: PipelineHome) -> str | None:
    """Return the head timeline, or None before the first start."""
    return select_head(read_sequence(home))


def move_head(home: PipelineHome, timeline: str, *, reason: str, expected_seq: int, now: datetime) -> Entry:
    """Let `timeline` serve from now on; no data is destroyed."""
    return append_entry(
        home, EntryKind.HEAD, {"timeline": timeline, "reason": reason}, expected_seq=expected_seq, now=now
    )


def publish(home: PipelineHome, payload: Mapping[str, Any], *, expected_seq: int, now: datetime) -> Entry:
    """Make the windows of a backfill serve its corrections."""
    return append_entry(home, EntryKind.PUBLICATION, payload, expected_seq=expected_seq, now=now)


_ENTRIES: Remembered[tuple[Entry, ...]] = Remembered()
