"""Projects of one definition per kind of windows on a real broker: their records, a driver that is killed, the commands."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from histories.kinds import definition_files
from histories.random_histories import Record, places_of, record_bytes
from homes.project import TO_RUN, make_project
from lab.faults.events import Event, produce_events
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.definition.definition import Definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.lineage import path_ledger
from running.warm_spark import run_command_warm, run_driver_warm

NAME = "histories"
DRIVER = [sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", NAME, "--until-end"]
PATIENCE_S = 600
T = TypeVar("T")


def make_kind_project(folder: Path, broker: BrokerInfo, topic: str, kind: str, *, batch: int = 50) -> Settings:
    """Make a project of one pipeline; a micro-batch takes at most `batch` records. Only a stream that is killed needs many."""
    files = definition_files(kind)
    for own in ("events", "others", "names"):
        files["pipeline.yaml"] = files["pipeline.yaml"].replace(f"topic: {own}\n", f"topic: {topic_of(topic, own)}\n")
    files["pipeline.yaml"] += f"stream: {{max_offsets_per_trigger: {batch}}}\n"
    return make_project(folder, {NAME: files}, links=TO_RUN, bootstrap=broker.bootstrap)


def topic_of(topic: str, own: str) -> str:
    return topic if own == "events" else f"{topic}-{own}"


def send(settings: Settings, definition: Definition, records: list[Record]) -> None:
    """Create the topics and send the records, in order; all of one topic before those of the next."""
    places = places_of(definition)
    for source in definition.sources.values():
        ensure_topic(settings, source.topic, source.partitions)
        mine = [one for one in records if places[one.partition].topic == source.topic]
        events = [
            Event(places[one.partition].partition, one.key.encode(), record_bytes(one, definition), 1_767_225_600_000)
            for one in mine
        ]
        produce_events(settings, source.topic, events)


def run_killed(settings: Settings, batches: int, log: Path) -> None:
    """Run the driver, kill it and its JVM when so many batches are committed, and run it again to the end."""
    env = {**os.environ, **settings.to_env()}
    with log.open("ab") as out:
        driver = subprocess.Popen(DRIVER, env=env, stdout=out, stderr=out, start_new_session=True)
        Deadline.after(PATIENCE_S).wait_until(
            lambda: driver.poll() is not None or committed(settings) >= batches, every=0.05
        )
        assert driver.poll() is None, log.read_text()[-3000:]
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    run_to_end(settings, log)


def run_killed_proved_and_restored(
    settings: Settings, chance: random.Random, parts: Sequence[T], send_part: Callable[[T], object], log: Path
) -> tuple[Any, Any]:
    """Stream three parts, each by a driver that is killed: a savepoint behind the first, its proof behind the second, before the third its restore.

    Returns what the proof and the restore told.
    """
    first, second, third = parts
    send_part(first)
    run_killed(settings, committed(settings) + chance.randint(2, 4), log)
    taken = take_savepoint(settings, NAME, now=utc_now(), reason="test")
    send_part(second)
    run_killed(settings, committed(settings) + chance.randint(2, 4), log)
    proof = run_command_warm(settings, "savepoint", "prove", NAME, taken.id)
    send_part(third)
    restored = run_command_warm(settings, "savepoint", "restore", NAME, "--yes")
    run_killed(settings, committed(settings) + chance.randint(2, 4), log)
    return proof, restored


def run_to_end(settings: Settings, log: Path) -> None:
    """Run the driver to the end of the log."""
    run_driver_warm(settings, NAME, log)


def committed(settings: Settings) -> int:
    try:
        return len(path_ledger(settings.pipeline(NAME)))
    except OSError:
        return 0


def check_explained(report: dict[str, Any]) -> None:
    for pair, counts in report["counts"].items():
        assert (pair, counts["DEFECT"], counts["NOT_COMPARABLE"]) == (pair, 0, 0)
    balance = report["balance"]
    assert {account["unexplained"] for account in (balance["total"], *balance["partitions"].values())} == {0}
    assert report["gate"]["passed"]
