"""The table of amendments: append-only; each has its own commit and asserts its predecessor."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from rivertwice.config import PipelineHome
from rivertwice.deadletters.model import Amendment, RecordAddress
from rivertwice.errors import LedgerError, LostRaceError
from rivertwice.store import delta

FORMAT = 1
SCHEMA = pa.schema(
    [
        ("_format", pa.int32()),
        ("seq", pa.int64()),
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
        ("why", pa.string()),
        ("by", pa.string()),
        ("created_at", pa.timestamp("us", "UTC")),
    ]
)


def app_of(home: PipelineHome) -> str:
    """Return the application id of the table's transactions."""
    return f"amendments/{home.root.name}"


def last_amendment(home: PipelineHome) -> int:
    """Return the newest amendment's number, 0 if there is none."""
    return delta.applied_version(home.tables.amendments, app_of(home)) or 0


def read_amendments(home: PipelineHome) -> list[Amendment]:
    """Return all amendments, oldest first.

    Raises:
        LedgerError: a row has the format of another version.
    """
    rows = delta.read(home.tables.amendments)
    return [] if rows is None else sorted((_read(row) for row in rows.to_pylist()), key=lambda amendment: amendment.seq)


def append_amendments(home: PipelineHome, decided: list[Amendment], *, expected_seq: int) -> list[Amendment]:
    """Append decisions in one commit, numbered from `expected_seq` + 1 on; return them numbered.

    Raises:
        LostRaceError: another decision was made since `expected_seq` was read; nothing was written.
    """
    numbered = [replace(amendment, seq=expected_seq + place) for place, amendment in enumerate(decided, start=1)]
    if not numbered:
        return []
    rows = [
        {
            "_format": FORMAT,
            "seq": amendment.seq,
            "kind": amendment.kind,
            "topic": amendment.topic,
            **amendment.address._asdict(),
            "value": amendment.value,
            "why": amendment.why,
            "by": amendment.by,
            "created_at": amendment.created_at,
        }
        for amendment in numbered
    ]

    def follows(table: delta.Table) -> None:
        newest_seq = table.transaction_version(app_of(home)) or 0
        if newest_seq != expected_seq:
            raise LostRaceError(_raced(home, newest_seq, expected_seq))

    delta.append(
        home.tables.amendments,
        pa.Table.from_pylist(rows, schema=SCHEMA),
        transactions={app_of(home): numbered[-1].seq},
        check=follows,
    )
    return numbered


def _raced(home: PipelineHome, newest_seq: int, expected: int) -> str:
    return (
        f"the amendments of {home.root.name} are at {newest_seq}, not at {expected}: another process decided about dead letters "
        "meanwhile; nothing was written; look again (`rivertwice dead list`) and decide again"
    )


def _read(row: dict[str, object]) -> Amendment:
    values = dict(row)
    if values.pop("_format") != FORMAT:
        message = f"an amendment has format {row['_format']!r}, this version reads {FORMAT}; use a newer rivertwice"
        raise LedgerError(message)
    address = RecordAddress(values.pop("topic_id"), values.pop("partition"), values.pop("offset"))  # type: ignore[arg-type]
    return Amendment(address=address, **values)  # type: ignore[arg-type]
