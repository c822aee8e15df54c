"""A person's value, written in every way that JSON allows, is erased from every place, and what cannot be erased is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lab.faults.events import Event, produce_events
from rivertwice.core.instants import EPOCH, to_iso
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from running.warm_spark import run_command_warm
from streams.kinds import NAME, check_explained, make_kind_project, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

START_S = 1_767_225_600  # 2026
PERSON, NUMBER = "dept/Jörg+x@a.de", "4711"
SPELLINGS = [
    '"dept/Jörg+x@a.de"',
    r'"dept\/J\u00f6rg+x@a.de"',
    r'"dept\/J\u00F6rg\u002Bx@a.de"',
    "".join(f"\\u{ord(sign):04X}" for sign in PERSON).join('""'),
    '"4711"',
    "4711",
    r'"\u0034711"',
]


def person_of(spelling: str) -> str:
    return str(json.loads(spelling))


def at(second: int) -> str:
    return to_iso(EPOCH + timedelta(seconds=START_S + second))


def written(spelling: str, second: int, value: str, more: str = "") -> bytes:
    return f'{{ "k" :{spelling}, "at":"{at(second)}","v": {value}{more} }}'.encode()


def send_values(settings: Settings, topic: str, values: list[tuple[bytes | None, bytes]]) -> None:
    ensure_topic(settings, topic, 2)
    produce_events(settings, topic, [Event(0, key, value, (START_S + 5) * 1000) for key, value in values])


def on_time() -> list[tuple[bytes | None, bytes]]:
    """Return records of both persons and of others; with numbers that a decoder would change if it wrote them again."""
    odd = r', "x":12345678901234567.89, "x" : 1e5, "half":"\ud800"'
    values = [(spelling.encode(), written(spelling, 1 + n, str(10 + n), odd)) for n, spelling in enumerate(SPELLINGS)]
    values += [(b"other", written('"other"', 2, "5", odd)), (b"closing", written('"later"', 200, "1"))]
    return values


def late_and_dead() -> list[tuple[bytes | None, bytes]]:
    """Return records that come too late, and records that no schema accepts, damaged ones too."""
    values = []
    for spelling in SPELLINGS:
        person = person_of(spelling)
        values += [
            (None, written(spelling, 3, "8")),
            (person.encode(), written(spelling, 4, '"no number"')),
            (None, f'{{"k": {spelling}, "at"'.encode()),
            (None, f"not JSON, by {person}.".encode()),
        ]
    return [*values, (b"closing", written('"later"', 400, "1"))]


def cells(item: Any) -> Iterator[str]:
    """Yield every text within a cell: of bytes, of JSON in it, of JSON in that; names of fields too."""
    if isinstance(item, bytes):
        item = item.decode(errors="replace")
    if isinstance(item, str):
        yield item
        try:
            inner = json.loads(item)
        except (ValueError, RecursionError):
            return
        if isinstance(inner, dict | list):
            yield from cells(inner)
        elif not isinstance(inner, str) or inner != item:
            yield str(inner)
    elif isinstance(item, dict):
        for name, value in item.items():
            yield from cells(name)
            yield from cells(value)
    elif isinstance(item, list | tuple):
        for value in item:
            yield from cells(value)
    elif isinstance(item, int):
        yield str(item)


def places_with(settings: Settings, person: str) -> set[str]:
    """Return the files below the home that hold a person: tables by cell, all others as text."""
    found = set()
    for path in sorted(settings.home.rglob("*")):
        if not path.is_file() or "checkpoint" in path.parts:
            continue
        if path.suffix == ".parquet":
            rows = pq.ParquetFile(path).read().to_pylist()
            texts = [
                text for row in rows for name, cell in row.items() if not name.startswith("_") for text in cells(cell)
            ]
            exact = {"4711"} if person == NUMBER else set()
            is_held = any(text in exact or (person != NUMBER and person in text) for text in texts)
        else:
            data = path.read_bytes().decode(errors="replace")
            is_held = any(
                spelling.strip('"') in data
                for spelling in SPELLINGS
                if person_of(spelling) == person and person != NUMBER
            )
        if is_held:
            found.add(str(path.relative_to(settings.home)))
    return found


@dataclass(frozen=True)
class Project:
    settings: Settings
    topic: str
    log: Path

    def erase(self, person: str, *more: str) -> dict[str, Any]:
        words = ("--field", "k", "--value", person, "--reason", "request 118", "--yes", *more)
        done: dict[str, Any] = run_command_warm(self.settings, "admin", "privacy", "erase", NAME, *words)
        return done

    def judged(self) -> dict[str, Any]:
        run_command_warm(self.settings, "admin", "rebuild", NAME)
        report: dict[str, Any] = run_command_warm(self.settings, "reconcile", NAME)
        check_explained(report)
        return report


@pytest.fixture
def streamed(tmp_path: Path, broker: BrokerInfo, topic: str) -> Project:
    """A stream that read both persons in every spelling, on time, late and broken; its savepoint is proved."""
    project = Project(make_kind_project(tmp_path, broker, topic, "tumbling", batch=100), topic, tmp_path / "driver.log")
    for values in (on_time(), late_and_dead(), [(b"closing", written('"later"', 600, "1"))]):
        send_values(project.settings, topic, values)
        run_to_end(project.settings, project.log)
    taken = run_command_warm(project.settings, "savepoint", "take", NAME)
    run_command_warm(project.settings, "savepoint", "prove", NAME, taken["id"])
    return project


@pytest.mark.proves("guarantees.md#erasure")
def test_a_person_in_every_spelling_is_gone_from_every_place(streamed: Project) -> None:
    settings = streamed.settings
    before = streamed.judged()
    assert before["counts"]["stream"]["LATE"] == 2
    assert places_with(settings, PERSON)
    assert places_with(settings, NUMBER)

    for person in (PERSON, NUMBER):
        done = streamed.erase(person)
        spelt = sum(person_of(spelling) == person for spelling in SPELLINGS)
        assert done["outcome"]["records"] == {streamed.topic: 5 * spelt}
        tables = {name.removeprefix(f"{NAME}.") for name in done["outcome"]["rows"]}
        assert {"changelog", "served", "dead_letters", "late_rows", "verdicts"} <= tables
        assert places_with(settings, person) == set()

    after = streamed.judged()
    assert (after["counts"], after["balance"]) == (before["counts"], before["balance"])
    run_command_warm(settings, "backfill", "run", NAME, "--yes")  # it computes the late windows from the archive
    served = str(run_command_warm(settings, "show", NAME, "--limit", "100"))
    assert served.count("erased-") == 2
    repaired = streamed.judged()
    assert repaired["counts"]["served"]["LATE"] == 0
    assert {*places_with(settings, PERSON), *places_with(settings, NUMBER)} == set()
    kept = [
        row["value"]
        for path in (settings.home / "archive").rglob("day=*/*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    assert sum(rb'"x":12345678901234567.89, "x" : 1e5, "half":"\ud800"' in value for value in kept) == 1 + len(
        SPELLINGS
    )


@pytest.mark.proves("guarantees.md#erasure")
def test_what_stays_is_named_and_a_state_is_made_without_the_person(streamed: Project) -> None:
    settings = streamed.settings
    send_values(
        settings,
        streamed.topic,
        [
            (b"k", written('"other"', 601, "1", r', "note": "by dept\/J\u00f6rg+x@a.de, at once"')),
            (b"k", written('"other"', 602, "1", ', "map": {"dept/Jörg+x@a.de": 1}')),
            (b"by dept/J\xc3\xb6rg+x@a.de", written('"other"', 603, "1")),
        ],
    )
    run_to_end(settings, streamed.log)
    before = streamed.judged()
    left = "\n".join(streamed.erase(PERSON)["outcome"]["left"])
    for place in ("value.note: 1 rows hold it", "value (name of a field): 1 rows hold it", "key: 1 rows hold it"):
        assert f"archive of {streamed.topic}: {place}" in left
    assert "checkpoint of timeline t1" in left
    assert "savepoint sp-t1-" in left

    (remedy,) = {word for word in left.split() if word == "--remake-state"}
    again = streamed.erase(PERSON, remedy)["outcome"]
    assert not [line for line in again["left"] if "checkpoint" in line or "savepoint" in line]
    assert run_command_warm(settings, "savepoint", "list", NAME) == []
    after = streamed.judged()
    assert (after["counts"], after["balance"]) == (before["counts"], before["balance"])
    send_values(settings, streamed.topic, [(b"k", written('"other"', 900, "1"))])
    run_to_end(settings, streamed.log)
    streamed.judged()
