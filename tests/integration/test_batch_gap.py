"""S52: a stolen card, an hourly batch job and the stream beside it, over one topic."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from homes.project import EXAMPLES, REPOSITORY, TO_RUN, make_project, replace_text
from lab.faults.events import Event, produce_events
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.engine.case_files import load_case, record_value
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.timeline.served import rebuild_served
from running.warm_spark import run_command_warm, run_driver_warm

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
NAME = "stolen_card"


def hourly(settings: Settings, topic: str, folder: Path, at: str) -> list[dict[str, Any]]:
    """Run the batch job once, as of an hour; return what it blocks."""
    command = ["-m", "lab.control.hourly", "--bootstrap", settings.bootstrap_servers(), "--topic", topic]
    done = subprocess.run(
        [sys.executable, *command, "--folder", str(folder), "--at", at],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_an_hourly_job_lets_thirty_charges_through_and_the_stream_one(
    broker: BrokerInfo, tmp_path: Path, topic: str
) -> None:
    settings = make_project(tmp_path, {NAME: EXAMPLES / NAME}, links=TO_RUN, bootstrap=broker.bootstrap)
    replace_text(settings.definitions / NAME / "pipeline.yaml", "topic: charges", f"topic: {topic}")
    definition = load_definition(settings.definition_folder(NAME))
    case = load_case(EXAMPLES / NAME / "cases" / "thirty_charges.yaml")
    ensure_topic(settings, topic, 3)

    def send(*batches: int) -> None:
        """Send the case's charges; a card's are in one partition, as its key puts them."""
        events = [event for number in batches for event in case.batches[number]]
        produce_events(
            settings,
            topic,
            [Event(1, b"c1", record_value(case, each, definition), int(each.at.timestamp() * 1000)) for each in events],
        )

    # Each of the two sees the records as they come; the hours are the records' own.
    send(0, 1)
    run_driver_warm(settings, NAME, tmp_path / "first.log")
    assert hourly(settings, topic, tmp_path / "job", "2026-01-05T14:00:00Z") == []
    send(2)
    run_driver_warm(settings, NAME, tmp_path / "second.log")
    (blocked,) = hourly(settings, topic, tmp_path / "job", "2026-01-05T15:00:00Z")
    assert blocked == {"card_id": "c1", "minutes": 57.0, "charges": 30, "amount": "14000"}
    assert hourly(settings, topic, tmp_path / "job", "2026-01-05T16:00:00Z") == []  # it is blocked

    rebuild_served(settings.pipeline(NAME), definition)
    rows = run_command_warm(settings, "show", NAME, "--history", "--limit", "100")["rows"]
    abroad = [row for row in rows if row["abroad"]]
    assert (len(abroad), sum(row["accepted"] for row in abroad)) == (30, 1)
    assert {Decimal(str(row["let_through"])) for row in abroad} == {Decimal(400)}
