"""Folds over two topics on a real broker: the driver is killed on the way, proved and restored; every row is the loop's, planted ones are found."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from histories.fold_results import VIEWS, Loop, Row, loop_of_fold, loop_of_view, newest
from histories.random_histories import PARTITIONS, Record, keyed, places_of, random_batches
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition, load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.reconcile.results import newest_reconcile, verdict_rows
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import rebuild_served
from running.warm_spark import run_command_warm
from streams.kinds import NAME, make_kind_project, run_killed_proved_and_restored, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
PLANTED = 20
LOOPS: dict[str, Loop] = {"fold of sources": loop_of_fold, "view of sources": loop_of_view}


def as_the_ledger_read(settings: Settings, definition: Definition, records: Sequence[Record]) -> list[Record]:
    """Return the records in the order in which the batches of the head's path read them."""
    by_place = {(one.partition, one.offset): one for one in records}
    places = places_of(definition)
    return [
        one
        for row in path_ledger(settings.pipeline(NAME))
        for number in range(PARTITIONS)
        for offset in range(*row.parts()[places[number]])
        if (one := by_place[number, offset]).event_s is not None
    ]


def shown_as(row: dict[str, Any]) -> Row:
    values: dict[str, Any] = {name: row[name] for name in ("k", "n", "total", "top", "gone") if name in row}
    assert row["partition"] == 0
    return row["source"], row["offset"], row["row"], values


def check_explained(report: dict[str, Any]) -> None:
    for counts in report["counts"].values():
        assert counts["DEFECT"] == counts["LATE"] == counts["OPEN"] == 0
        assert counts["AGREES"]
        assert counts["NOT_COMPARABLE"]
    balance = report["balance"]
    assert {account["unexplained"] for account in (balance["total"], *balance["partitions"].values())} == {0}
    assert report["gate"]["passed"]


@pytest.mark.parametrize("kind", LOOPS)
def test_a_killed_proved_and_restored_fold_of_topics_is_the_ledgers_fold(
    kind: str, tmp_path: Path, broker: BrokerInfo, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(f"{kind} on Kafka")
    settings = make_kind_project(tmp_path, broker, topic, kind)
    definition = load_definition(settings.definitions / NAME)
    home = settings.pipeline(NAME)
    records = [one for batch in keyed(random_batches(chance, 20), turned=True) for one in batch]
    third = len(records) // 3
    parts = records[:third], records[third : 2 * third], records[2 * third :]
    proof, restored = run_killed_proved_and_restored(
        settings, chance, parts, lambda part: send(settings, definition, part), tmp_path / "driver.log"
    )
    rebuild_served(home, definition)
    report = run_command_warm(settings, "reconcile", NAME)
    check_explained(report)
    read = as_the_ledger_read(settings, definition, records)
    loop = LOOPS[kind]
    history = run_command_warm(settings, "show", NAME, "--history", "--limit", "1000000")["rows"]
    assert sorted(map(shown_as, history), key=str) == sorted(loop(read), key=str)
    assert {view: sum(row["source"] == view for row in history) > 0 for view in VIEWS} == dict.fromkeys(VIEWS, True)
    if kind == "view of sources":
        now = run_command_warm(settings, "show", NAME, "--by-key", "--limit", "1000000")["rows"]
        wanted = newest(loop(sorted(read, key=lambda one: (one.partition, one.offset))))
        assert {row["k"]: shown_as(row)[3] for row in now} == wanted
    found = plant_and_judge(settings, chance)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{kind}: {len(records)} records, {len(path_ledger(home))} batches, {report['counts']}; proof {proof}; restored "
            f"{restored}; {PLANTED} wrong rows planted, {found} found\n"
        )


def plant_and_judge(settings: Settings, chance: random.Random) -> int:
    """Change 20 rows of the changelog; a reconcile calls exactly these DEFECT. Return how many it found."""
    home = settings.pipeline(NAME)
    table = Table(home.tables.changelog).read()
    assert table is not None
    rows = table.to_pylist()
    wrong = set()
    for index in chance.sample(range(len(rows)), PLANTED):
        rows[index]["total"] = (rows[index]["total"] or 0) + chance.choice([-1, 1])
        wrong.add((rows[index]["source"], rows[index]["record"], rows[index]["row"]))
    Table(home.tables.changelog).overwrite(type(table).from_pylist(rows, schema=table.schema))
    run_command_warm(settings, "reconcile", NAME, code=3)
    newest_run = newest_reconcile(home)
    assert newest_run is not None
    keys = [
        json.loads(row["key"])
        for row in verdict_rows(home, newest_run["run"])
        if (row["pair"], row["verdict"]) == ("stream", "DEFECT")
    ]
    assert {(key["source"], key["record"], key["row"]) for key in keys} == wrong
    return len(keys)
