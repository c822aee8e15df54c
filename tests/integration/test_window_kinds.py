"""Hopping windows, sessions, intervals and folds on a real broker: the driver is killed on the way, every row is explained, windows and sessions repaired.

The histories are others at each landing.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from histories.random_histories import PARTITIONS, Record, keyed, random_batches
from homes.project import edit_yaml
from rivertwice.core.instants import EPOCH, to_iso
from rivertwice.definition.definition import load_definition
from rivertwice.engine.fold_buckets import PER_KEY
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.timeline.lineage import Timeline, path_ledger
from rivertwice.timeline.served import rebuild_served
from running.tiers import LANDING, in_turn
from running.warm_spark import run_command_warm
from streams.kinds import (
    NAME,
    check_explained,
    make_kind_project,
    run_killed,
    run_killed_proved_and_restored,
    send,
)

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]


MIDDLE = ("1970-01-02T03:47:40Z", "1970-01-02T03:49:40Z")
"""A stretch of the histories' only epoch, which begins at 03:46:40 and lasts some minutes."""


def settling() -> list[Record]:
    """Return records far behind all others, enough for some batches: by their watermark no record can join an earlier session."""
    return [Record(number % PARTITIONS, 1_000_000 + number, "last", 200_000 + number, 1) for number in range(150)]


@pytest.mark.proves("guarantees.md#changelog")
def test_a_killed_stream_is_explained_to_the_last_row(
    tmp_path: Path, broker: BrokerInfo, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (kind,) = in_turn(["hopping", "session", "joined intervals", "joined sources", "as-of intervals"])
    chance = random.Random(f"{kind} on Kafka {LANDING}")
    settings = make_kind_project(tmp_path, broker, topic, kind)
    definition = load_definition(settings.definitions / NAME)
    records = [record for batch in random_batches(chance, 20) for record in batch]
    if kind == "session":
        records += settling()
    send(settings, definition, records)
    run_killed(settings, chance.randint(2, 8), tmp_path / "driver.log")
    home = settings.pipeline(NAME)
    rebuild_served(home, definition)
    report = run_command_warm(settings, "reconcile", NAME)
    check_explained(report)
    assert set(report["counts"]) == {"stream", "served"}
    assert report["balance"]["total"]["late"]
    said = [f"{kind} {LANDING}: {len(records)} records, {len(path_ledger(home))} batches, {report['counts']['stream']}"]
    if kind == "session":
        half = run_command_warm(settings, "backfill", "run", NAME, "--yes", "--from", MIDDLE[0], "--to", MIDDLE[1])
        rebuild_served(home, definition)
        between = run_command_warm(settings, "reconcile", NAME)
        check_explained(between)
        assert 0 < between["counts"]["served"]["LATE"] < report["counts"]["served"]["LATE"]
        said.append(f"{half['windows']} published first: {between['counts']['served']}")
    run_command_warm(settings, "backfill", "run", NAME, "--yes")
    rebuild_served(home, definition)
    repaired = run_command_warm(settings, "reconcile", NAME)
    check_explained(repaired)
    assert repaired["counts"]["stream"] == report["counts"]["stream"]
    assert repaired["counts"]["served"]["LATE"] == 0
    said.append(f"served after a backfill {repaired['counts']['served']}")
    with capsys.disabled():
        sys.stdout.write("\n" + "; ".join(said) + "\n")


def folded(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return what the definition's fold makes of the records, worked out by a loop of its own."""
    states: dict[str, dict[str, Any]] = {}
    rows = []
    for one in records:
        if one.event_s is None or one.value == 7:
            continue
        state = states.get(one.key, {"n": 0, "total": 0, "top": None})
        count = 2 if one.value == 5 else 1
        if one.value == 11 and state["n"] > 9:
            states.pop(one.key)
            shown = {"n": 0, "total": state["total"], "top": None}
        else:
            total = (state["total"] * 31 + one.value) % 1_000_003
            shown = {"n": state["n"] + 1, "total": total, "top": max(one.value, state["top"] or 0)}
            states[one.key] = shown
        at = to_iso(EPOCH + timedelta(milliseconds=round(one.event_s * 1000)))
        address = {"partition": one.partition, "offset": one.offset}
        rows += [{"k": one.key, "at": at, **shown, **address, "row": row} for row in range(count)]
    return rows


@pytest.mark.proves(
    "architecture.md#folds",
    "howto-folds.md#a-long-log-and-a-past-that-must-be-computed-again",
    "guarantees.md#folds-and-views",
)
def test_a_killed_proved_and_restored_fold_is_the_fold_of_the_log(
    tmp_path: Path, broker: BrokerInfo, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (buckets,) = in_turn([64, 3, PER_KEY])
    chance = random.Random(f"fold on Kafka {LANDING}")
    settings = make_kind_project(tmp_path, broker, topic, "fold")
    edit_yaml(settings.definitions / NAME, lambda document: document["stream"].update(fold_buckets=buckets))
    ensure_topic(settings, topic, PARTITIONS)
    records = [record for batch in keyed(random_batches(chance, 20), spread=False) for record in batch]
    thirds = [
        records[: len(records) // 3],
        records[len(records) // 3 : len(records) * 2 // 3],
        records[len(records) * 2 // 3 :],
    ]
    home = settings.pipeline(NAME)
    definition = load_definition(settings.definitions / NAME)

    def send_part(part: list[Record]) -> None:
        send(settings, definition, part)
        if path_ledger(home):  # another number counts for a new stream only, as does the default where 0.1 began one
            edit_yaml(settings.definitions / NAME, lambda document: document["stream"].pop("fold_buckets", None))

    proof, restored = run_killed_proved_and_restored(settings, chance, thirds, send_part, tmp_path / "driver.log")
    for name in Timeline.names(home):
        assert Timeline.load(home, name).fold_buckets == buckets
    rebuild_served(home, definition)
    report = run_command_warm(settings, "reconcile", NAME)
    check_explained(report)
    for pair in ("stream", "served"):
        assert {verdict for verdict, rows in report["counts"][pair].items() if rows} == {"AGREES"}
    total = report["balance"]["total"]
    assert (total["late"], total["open"]) == (0, 0)
    assert total["excluded"] == sum(one.value == 7 and one.event_s is not None for one in records)
    shown = run_command_warm(settings, "show", NAME, "--history", "--limit", "1000000")["rows"]
    address = ("partition", "offset", "row")
    wanted = sorted(folded(records), key=lambda row: [row[name] for name in address])
    assert sorted(shown, key=lambda row: [row[name] for name in address]) == wanted
    with pytest.raises(AssertionError, match=r"is a fold: none of its events is ever late.*--new-version"):
        run_command_warm(settings, "backfill", "run", NAME, "--yes")
    with capsys.disabled():
        sys.stdout.write(
            f"\nfold {LANDING}: {len(records)} records, {len(path_ledger(home))} batches, {report['counts']['stream']}; proof {proof}; "
            f"restored {restored}\n"
        )
