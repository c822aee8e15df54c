"""What a sink holds, judged against what is served: by its own readers, and by rules that no deliverer knows.

The served table is read through DuckDB, the topic through a plain consumer of committed records, a table of PostgreSQL as its rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lab.oracle.sources import consume, select

Place = tuple[int, int, str]
"""Window start and end in epoch milliseconds, key."""
Values = tuple[Any, ...]
"""n, total, top."""
COLUMNS = ("n", "total", "top")
SHOWN = 6


@dataclass(frozen=True)
class Sent:
    """A committed record of a topic: its partition, key and value."""

    partition: int
    key: bytes
    value: bytes


@dataclass(frozen=True)
class Holding:
    """What a sink holds, compared with what is served.

    Attributes:
        served: rows that are served.
        received: records of the sink, or rows of its table.
        lost: served rows that the sink has not.
        duplicated: records too many of one row, or changes of it too many.
        wrong: rows with other values than served, and records that contradict the one before or themselves.
        unexplained: rows of the sink that are not served.
        findings: the reasons, the first ones, in words.
    """

    served: int
    received: int
    lost: int
    duplicated: int
    wrong: int
    unexplained: int
    findings: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        """Say whether the sink has nothing that it must not have; rows may still be on their way."""
        return not (self.wrong or self.unexplained or self.duplicated)


def read_served(home: Path) -> dict[Place, Values]:
    """Return the rows of the served table.

    Raises:
        ValueError: a row is served twice.
    """
    rows = select(home / "tables" / "served", "epoch_ms(window_start), epoch_ms(window_end), k, n, total, top")
    found = {(start, end, key): tuple(values) for start, end, key, *values in rows}
    if len(found) != len(rows):
        message = f"{len(rows) - len(found)} rows are served twice"
        raise ValueError(message)
    return found


def read_topic(bootstrap: str, topic: str) -> list[Sent]:
    """Return what a consumer of committed records gets, each partition's records in order."""
    messages, _, _ = consume(bootstrap, topic)
    return [Sent(each.partition(), each.key() or b"", each.value() or b"") for each in messages]


def judge_records(records: Iterable[Sent], served: Mapping[Place, Values]) -> Holding:
    """Fold records by their key, as a consumer does, and compare with what is served.

    Args:
        records: in order within each partition.
        served: rows by place.
    """
    held: dict[Place, Values] = {}
    partition_of: dict[bytes, int] = {}
    counts: Counter[str] = Counter()
    findings: list[str] = []

    def note(kind: str, text: str) -> None:
        counts[kind] += 1
        findings.append(f"{kind}: {text}")

    received = 0
    for record in records:
        received += 1
        body = json.loads(record.value)
        place = _place(body)
        if json.loads(record.key) != {name: body[name] for name in ("pipeline", "window", "keys")}:
            note("wrong", f"the record of {place} has the key {record.key!r}")
        if partition_of.setdefault(record.key, record.partition) != record.partition:
            note("wrong", f"records of {place} are in two partitions, so they have no order")
        origin = json.dumps(body["from"], sort_keys=True)
        before, values = held.get(place), _values(body["values"])
        replaced = None if body["replaces"] is None else _values(body["replaces"]["values"])
        if body["op"] == "emit" and before is not None:
            note("duplicated", f"{place} from {origin} once more")
        elif replaced != before:
            note("wrong", f"{body['op']} of {place} replaces {replaced}, but {before} was there")
        if body["op"] == "withdraw":
            held.pop(place, None)
        elif values is not None:
            held[place] = values
    _compare(held, served, note)
    return _holding(served, received, counts, findings)


def judge_rows(
    rows: Sequence[tuple[int, int, str, int, int, int]],
    changes: Iterable[tuple[str, str]],
    served: Mapping[Place, Values],
) -> Holding:
    """Compare the rows of a table with what is served.

    Args:
        rows: window start and end in epoch milliseconds, key, n, total, top.
        changes: what a trigger of the table noted: operation and key, one for each row that a statement changed. No row was
            corrected, so each may have been inserted once, and nothing else.
        served: rows by place.
    """
    counts: Counter[str] = Counter()
    findings: list[str] = []

    def note(kind: str, text: str) -> None:
        counts[kind] += 1
        findings.append(f"{kind}: {text}")

    held: dict[Place, Values] = {}
    for start, end, key, *values in rows:
        if (start, end, key) in held:
            note("duplicated", f"{(start, end, key)} is in two rows")
        held[start, end, key] = tuple(values)
    for (operation, key), times in Counter(changes).items():
        if operation != "INSERT" or times > 1:
            note("duplicated", f"{operation} of {key}, {times} times")
    _compare(held, served, note)
    return _holding(served, len(rows), counts, findings)


def _compare(held: Mapping[Place, Values], served: Mapping[Place, Values], note: Callable[[str, str], None]) -> None:
    for place, values in held.items():
        if place not in served:
            note("unexplained", f"{place} is there, and not served")
        elif served[place] != values:
            note("wrong", f"{place} is {values}, and {served[place]} is served")
    for place in served.keys() - held.keys():
        note("lost", f"{place} is served, and not there")


def _holding(served: Mapping[Place, Values], received: int, counts: Counter[str], findings: Sequence[str]) -> Holding:
    return Holding(
        served=len(served),
        received=received,
        lost=counts["lost"],
        duplicated=counts["duplicated"],
        wrong=counts["wrong"],
        unexplained=counts["unexplained"],
        findings=tuple(findings[:SHOWN]),
    )


def _place(body: Mapping[str, Any]) -> Place:
    start, end = (int(datetime.fromisoformat(text).timestamp() * 1000) for text in body["window"])
    return start, end, body["keys"]["k"]


def _values(plain: Mapping[str, Any] | None) -> Values | None:
    return None if plain is None else tuple(plain[name] for name in COLUMNS)
