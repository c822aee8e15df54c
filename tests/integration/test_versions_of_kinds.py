"""A version of sessions, intervals or a fold beside the running one: what late records explain, what must be declared, and the switch."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from histories.random_histories import PARTITIONS, Record, keyed, random_batches
from homes.project import edit_yaml, replace_text
from rivertwice.core.homes import Place
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition, load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.storage.table import Table
from rivertwice.timeline.served import rebuild_served
from running.tiers import in_turn
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.kinds import NAME, make_kind_project, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
NEW = f"{NAME}@v2"
GAP_S = 15
Row = tuple[Any, ...]
Session = list[tuple[float, int]]


@dataclass(frozen=True)
class Fix:
    """An edit of a definition: the file, what is replaced, the column that it changes, and the predicate that declares it."""

    file: str
    old: str
    new: str
    column: str
    where: str


SUM = "sum(CASE WHEN {0} = 5 THEN 50 ELSE {0} END)"
FIXES = {
    "session": Fix("transform.sql", "sum(v) AS total", f"{SUM.format('v')} AS total", "total", "new.total > old.total"),
    "joined intervals": Fix("transform.sql", "sum(b.v)", SUM.format("b.v"), "total", "new.total > old.total"),
    "joined sources": Fix("transform.sql", "sum(b.v)", SUM.format("b.v"), "total", "new.total > old.total"),
    "as-of intervals": Fix("transform.sql", "e.v AS total", "e.v + 1 AS total", "total", "new.total = old.total + 1"),
    "fold": Fix("fold.py", 'max(event["v"], ', 'max(2 * event["v"], ', "top", "new.top > old.top"),
}
SAME = {
    "session": Fix("transform.sql", "count(*) AS n", "count(v) AS n", "", ""),
    "joined intervals": Fix("transform.sql", "count(b.v) AS n", "count(b.at) AS n", "", ""),
}
"""Edits that change no row: every difference is caused by late records."""


def settling() -> list[Record]:
    """Return records far after all others, enough for some batches: by their watermark no record can join an earlier session."""
    return [Record(number % PARTITIONS, 1_000_000 + number, "last", 200_000 + number, 1) for number in range(150)]


class Beside:
    """A pipeline of a kind, and a version of it that read the same log in other batches."""

    def __init__(self, folder: Path, broker: BrokerInfo, topic: str, kind: str, fix: Fix) -> None:
        chance = random.Random(f"versions of {kind}")
        self.settings: Settings = make_kind_project(folder, broker, topic, kind)
        self._log = folder / "driver.log"
        folder_of = self.settings.definitions / NAME
        self.definition: Definition = load_definition(folder_of)
        batches = random_batches(chance, 20)
        self.records = [
            record for batch in (keyed(batches, spread=False) if kind == "fold" else batches) for record in batch
        ]
        if kind == "session":
            self.records += settling()
        send(self.settings, self.definition, self.records)
        run_driver_warm(self.settings, NAME, self._log)
        replace_text(folder_of / fix.file, fix.old, fix.new)
        edit_yaml(folder_of, lambda document: document["stream"].update(max_offsets_per_trigger=170))
        self._begin()
        for name in (NAME, NEW):
            rebuild_served(self.settings.pipeline(name), load_definition(self.settings.definition_folder(name)))
            assert run_command_warm(self.settings, "reconcile", name)["gate"]["passed"]

    def _begin(self) -> None:
        """Begin the version and let it read the log; no agent runs, so its driver is run here."""
        command = ("upgrade", NAME, "--new-version", "--yes")
        assert "no agent is running" in invoke_warm(self.settings, *command).output
        run_driver_warm(self.settings, NEW, self._log)
        if self.definition.load_obstacle is None:
            run_command_warm(self.settings, *command)
            run_driver_warm(self.settings, NEW, self._log)

    def rows(self, name: str) -> dict[Row, dict[str, Any]]:
        """Return what a version serves, by window and key."""
        return self.rows_at(self.settings.pipeline(name).tables.served)

    def rows_at(self, place: Place) -> dict[Row, dict[str, Any]]:
        """Return the rows of a table, by window and key, without what the platform adds."""
        table = Table(place).read()
        assert table is not None
        keys = [self.definition.window.start_column, self.definition.window.end_column, *self.definition.row_keys]
        rows = table.select(self.definition.result_columns).to_pylist()
        return {tuple(row[key] for key in keys): row for row in rows}

    def declare(self, fix: Fix, *, more: str = "") -> None:
        """Write the change file."""
        path = self.settings.definitions / NAME / "changes" / "v2.yaml"
        path.parent.mkdir(exist_ok=True)
        rule = {"columns": [fix.column], "where": fix.where + more, "reason": "fives counted too little"}
        path.write_text(json.dumps({"reason": "a fix", "rows": [rule]}))

    def compare(self, code: int) -> Any:
        """Return what the gate says."""
        return run_command_warm(self.settings, "version", "compare", NEW, "--limit", "1000", code=code)


def test_a_fix_of_any_kind_is_declared_compared_and_served(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    (kind,) = in_turn(FIXES)
    fix = FIXES[kind]
    beside = Beside(tmp_path, broker, topic, kind, fix)
    refused = beside.compare(3)
    named = refused["rows"]["examples"]
    assert named
    assert refused["reasons"] == [f"{len(named)} rows differ without a cause"]
    if kind == "session":
        check_sessions(beside, refused)

    first = named[0]["key"]["k"]
    beside.declare(fix, more=f" AND k = '{first}'")
    narrow = beside.compare(3)
    others = [each for each in named if each["key"]["k"] != first]
    assert others
    assert narrow["reasons"] == [f"{len(others)} rows differ without a cause"]

    beside.declare(fix)
    passed = beside.compare(0)
    rows = passed["rows"]
    assert sum(rows["declared"]) > 0
    assert passed["left_out"] == []
    if kind == "fold":
        assert (passed["by_record"], passed["late"]) == (True, 0)

    public = beside.settings.pipeline(NAME).public_served
    old, new = beside.rows(NAME), beside.rows(NEW)
    assert beside.rows_at(public) == old != new
    for name in (NEW, NAME):
        run_command_warm(beside.settings, "version", "serve", name, "--yes")
        assert beside.rows_at(public) == (old, new)[name == NEW]


def test_rows_that_differ_by_late_records_alone_need_no_word(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    (kind,) = in_turn(SAME)
    beside = Beside(tmp_path, broker, topic, kind, SAME[kind])
    passed = beside.compare(0)
    assert passed["late"] > 0
    assert passed["left_out"] == []


def check_sessions(beside: Beside, refused: Mapping[str, Any]) -> None:
    """Compare the rows that the gate names with those that sessions of all records, made by a loop of their own, name."""
    until_ms = min(proof["until_ms"] for proof in refused["proofs"]) - GAP_S * 1000
    old, new = beside.rows(NAME), beside.rows(NEW)
    truth = sessions_of(beside.records)
    late = unexplained = 0
    for row in {*old, *new}:
        start, end, key = row
        if end.timestamp() * 1000 > until_ms:
            continue
        sides = [rows.get(row) for rows in (old, new)]
        if (
            sides[0] is not None
            and sides[1] is not None
            and all(sides[0][name] == sides[1][name] for name in ("n", "total", "top"))
        ):
            continue
        low, high = start.timestamp(), end.timestamp()
        overlapping = [each for each in truth[key] if each[0][0] < high and low < each[-1][0] + GAP_S]
        assert overlapping
        if any(value == 5 for session in overlapping for _, value in session):
            unexplained += 1
        else:
            late += 1
    assert (refused["late"], len(refused["rows"]["examples"])) == (late, unexplained)
    assert late


def sessions_of(records: Iterable[Record]) -> dict[str, list[Session]]:
    """Return the sessions that all records of each key make: event times in seconds with the values, in order."""
    by_key: dict[str, list[tuple[float, int]]] = {}
    for record in records:
        if record.event_s is not None and record.value != 7:
            by_key.setdefault(record.key, []).append((record.event_s, record.value))
    made: dict[str, list[Session]] = {}
    for key, events in by_key.items():
        for event in sorted(events):
            sessions = made.setdefault(key, [])
            if not sessions or event[0] - sessions[-1][-1][0] > GAP_S:
                sessions.append([])
            sessions[-1].append(event)
    return made
