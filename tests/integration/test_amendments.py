"""A dead letter is amended, amended again and discarded: each time its rows are named, and a backfill makes what is served true."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from histories import random_batches
from kinds_world import NAME, check_explained, command, make_project, run_to_end, send
from rivertwice.config import Settings
from rivertwice.instants import EPOCH, to_iso
from rivertwice.log.broker import BrokerInfo
from rivertwice.pipeline.definition import load_definition
from rivertwice.timeline.served import rebuild_served

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def judged(settings: Settings) -> dict[str, Any]:
    rebuild_served(settings.pipeline(NAME), load_definition(settings.definitions / NAME))
    report: dict[str, Any] = command(settings, "reconcile", NAME)
    check_explained(report)
    return report


def amended_verdicts(settings: Settings, pair: str) -> list[dict[str, Any]]:
    found = command(settings, "verdicts", NAME, "--pair", pair, "--last", "1000000")
    return [one for one in found["rows"] if one["dead"]]


@pytest.mark.parametrize("kind", ["tumbling", pytest.param("hopping", marks=pytest.mark.faults), "joined slices"])
def test_an_amendment_reaches_the_truth_and_through_a_backfill_what_is_served(
    kind: str, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings = make_project(tmp_path, broker, topic, kind)
    batches = random_batches(random.Random(f"amendments {kind}"), 20)
    records = [record for batch in batches for record in batch]
    send(settings, load_definition(settings.definitions / NAME), records)
    run_to_end(settings, tmp_path / "driver.log")
    judged(settings)
    command(settings, "backfill", "run", NAME)
    clean = judged(settings)
    assert clean["counts"]["served"]["LATE"] == 0

    broken = next(one for one in records if one.event_s is None)
    fine = [one for one in records if one.event_s is not None]
    place = f"{broken.partition}@{broken.offset}"
    first, last = fine[len(fine) // 4], fine[len(fine) // 3]

    def amend(value: int, event_s: float) -> None:
        at = to_iso(EPOCH + timedelta(milliseconds=round(event_s * 1000)))
        cure = json.dumps({"k": first.key, "at": at, "v": value})
        command(settings, "dead", "amend", NAME, place, "--value", cure, "--why", "test")

    def check_repaired() -> None:
        late = judged(settings)
        assert late["counts"]["served"]["LATE"] > 0
        assert amended_verdicts(settings, "served")
        command(settings, "backfill", "run", NAME)
        assert judged(settings)["counts"]["served"]["LATE"] == 0

    assert first.event_s is not None
    assert last.event_s is not None
    amend(9, first.event_s)
    check_repaired()
    assert amended_verdicts(settings, "stream")
    amend(8, first.event_s)  # the same row, another value: no record is missing, and yet it is not what it should be
    check_repaired()
    amend(8, last.event_s)  # another window: the old one has a record too many now
    check_repaired()
    command(settings, "dead", "discard", NAME, place, "--why", "test")
    check_repaired()
    assert judged(settings)["counts"]["stream"] == clean["counts"]["stream"]
