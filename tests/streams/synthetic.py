"""A small pipeline over synthetic flights, for savepoint tests: its own project, home and topic on a shared broker."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from homes.project import FLIGHTS, TO_RUN, make_project, rename, replace_text
from lab.flights.plan import Flight, plan_records
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head
from running.waiting import wait_for
from running.warm_spark import run_driver_warm

PARTITIONS = 2


def make_small_project(
    folder: Path, name: str, *, bootstrap: str, batch: int = 12, topic: str | None = None
) -> Settings:
    """Make a project whose one pipeline is flight_delays under another name and topic; None: the topic has its name."""
    topic = topic or name
    settings = make_project(folder, {name: FLIGHTS}, links=TO_RUN, bootstrap=bootstrap)
    rename(settings, FLIGHTS.name, name)
    for old, new in (
        ("topic: flights", f"topic: {topic}"),
        ("partitions: 4", f"partitions: {PARTITIONS}"),
        ("max_offsets_per_trigger: 60", f"max_offsets_per_trigger: {batch}"),
    ):
        replace_text(settings.definitions / name / "pipeline.yaml", old, new)
    kafka.ensure_topic(settings, topic, PARTITIONS)
    return settings


def flights(count: int, *, seed: int = 1, start: datetime = datetime(2013, 7, 1, 4, tzinfo=UTC)) -> list[Flight]:
    """Return flights of about two minutes' distance; one in eight is late by up to four hours, so some are dropped."""
    dice = random.Random(seed)
    made = []
    for number in range(count):
        sched = start + timedelta(minutes=2 * number)
        delay = dice.randint(60, 240) if dice.random() < 0.125 else dice.randint(-10, 40)
        made.append(
            Flight(
                day=date(2013, 7, 1),
                sched_dep=sched,
                dep_delay=None if dice.random() < 0.03 else delay,
                carrier=dice.choice(["UA", "B6", "DL"]),
                flight=dice.randint(1, 999),
                tailnum=None,
                origin=dice.choice(["EWR", "JFK", "LGA"]),
                dest="BOS",
                distance=200,
            )
        )
    return sorted(made, key=lambda flight: flight.record_time)


def produce(settings: Settings, topic: str, records: list[Flight]) -> None:
    producer = kafka.producer(settings)
    for record in plan_records(records, PARTITIONS):
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
        )
    assert producer.flush(30) == 0


class DriverProcess:
    """A real driver in a process of its own."""

    def __init__(self, settings: Settings, pipeline: str, *arguments: str) -> None:
        self.log = settings.home / f"driver-{time.time_ns()}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", pipeline, *arguments],
                env={**os.environ, **settings.to_env()},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self, timeout: float = 300) -> int:
        """Wait for its own end."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError(self.log.read_text()[-4000:]) from None
        assert code == 0, self.log.read_text()[-4000:]
        return code

    def drain(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.finish(60)

    def stop(self) -> None:
        """End it whatever it does."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)


def run_to_end(settings: Settings, pipeline: str) -> list[LedgerRow]:
    """Run the driver until everything in the log is committed."""
    log = settings.home / f"driver-{time.time_ns()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    run_driver_warm(settings, pipeline, log)
    return path_ledger(settings.pipeline(pipeline))


def wait_for_batch(
    settings: Settings, pipeline: str, batch: int, *, driver: DriverProcess, seconds: float = 90
) -> None:
    home = settings.pipeline(pipeline)

    def is_committed() -> bool:
        assert driver.process.poll() in (None, 0), driver.log.read_text()[-4000:]
        rows = [] if head(home) is None else path_ledger(home)
        return bool(rows) and rows[-1].batch >= batch

    wait_for(f"batch {batch}", is_committed, seconds, every=0.2, seen=lambda: driver.log.read_text()[-2000:])
