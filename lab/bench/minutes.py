"""The log and the pipeline that benches of throughput share: minutes of 200 keys on a real topic of two partitions.

`python -m lab.bench.minutes TOPIC FIRST END` sends the records of those numbers, so that a bench can leave that to a process of its own.
The story is that of `bench.reconcile`: 100 records a second of event time, one in a hundred late by up to a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from homes.project import TO_RUN, make_project
from lab.bench.measure import Cost, run_measured
from lab.bench.reconcile import KEYS, LATE_MS, SQL, STEP_MS, TOPIC, WINDOW_MS, YAML
from rivertwice.core.instants import TimeRange, from_ms
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import path_ledger

NAME = "p"
PARTITIONS = 2
BEGIN_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z, the start of a window."""
ROUND = 50_000
"""Records that are made together; the queue of a producer holds more."""
LATE_SHARE = 0.01
STARTED = 2
"""The batch whose commit ends the start of a stream."""


def windows(first: int, count: int) -> TimeRange:
    """Return the range of `count` windows, the first of which has the number `first`."""
    start = BEGIN_MS + first * WINDOW_MS
    return TimeRange(from_ms(start), from_ms(start + count * WINDOW_MS))


def make_minutes_project(folder: Path, bootstrap: str, topic: str, batch: int) -> Settings:
    """Make a project of one pipeline that reads `topic` in batches of at most `batch` records."""
    text = YAML.replace(f"topic: {TOPIC}\n", f"topic: {topic}\n").replace("partitions: 1", f"partitions: {PARTITIONS}")
    files = {"pipeline.yaml": f"{text}stream: {{max_offsets_per_trigger: {batch}}}\n", "transform.sql": SQL}
    return make_project(folder, {NAME: files}, links=TO_RUN, bootstrap=bootstrap)


def fill(settings: Settings, topic: str, first: int, end: int) -> None:
    """Send the records from number `first` to `end`, in a process of its own, into a topic that is made if there is none."""
    kafka.ensure_topic(settings, topic, PARTITIONS)
    command = [sys.executable, "-m", "lab.bench.minutes", topic, str(first), str(end)]
    subprocess.run(command, env={**os.environ, **settings.to_env()}, check=True)


def values(first: int, end: int) -> Iterator[bytes]:
    """Yield the values of the records from number `first` to `end`; a number always has the same value."""
    for start in range(first - first % ROUND, end, ROUND):
        chance = np.random.default_rng(start)
        at = BEGIN_MS + STEP_MS * np.arange(start, start + ROUND, dtype=np.int64)
        is_late = chance.random(ROUND) < LATE_SHARE
        at = np.maximum(np.where(is_late, at - chance.integers(0, LATE_MS, ROUND), at), BEGIN_MS)
        keys = chance.integers(0, KEYS, ROUND).tolist()
        instants = np.datetime_as_string(at.astype("datetime64[ms]")).tolist()
        for number in range(max(first, start), min(end, start + ROUND)):
            key = keys[number - start]
            yield f'{{"k":"k{key}","at":"{instants[number - start]}Z","v":{key}}}'.encode()


def send(settings: Settings, topic: str, first: int, end: int) -> None:
    """Send the records from number `first` to `end`, by turns to the partitions, and wait for all acknowledgements."""
    client = kafka.producer(settings)
    for number, value in enumerate(values(first, end), start=first):
        client.produce(topic, value, partition=number % PARTITIONS)
        if number % ROUND == 0:
            client.flush()
    if left := client.flush():
        message = f"{left} records were not acknowledged"
        raise RuntimeError(message)


@dataclass(frozen=True)
class Streamed:
    """A run of the driver over what waited in the topic.

    Attributes:
        cost: of its whole process tree.
        rows: of the ledger, those of this run.
    """

    cost: Cost
    rows: list[LedgerRow]

    @property
    def records(self) -> int:
        """Records that the run read."""
        return sum(row.read for row in self.rows)

    @property
    def steady_records(self) -> int:
        """Records of the batches after the start."""
        return sum(row.read for row in self.rows[STARTED + 1 :])

    @property
    def steady_cpu_s(self) -> float:
        """CPU-seconds from the commit of the third batch to that of the last one with records."""
        last = max(row.batch for row in self.rows if row.read)
        return self.cost.between(self.rows[STARTED].batch, last)


def stream(settings: Settings, folder: Path) -> Streamed:
    """Run the driver until it has committed what waits."""
    home = settings.pipeline(NAME)
    before = len(path_ledger(home)) if home.root.exists() else 0
    command = [sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", NAME, "--until-end"]
    env = {**os.environ, **settings.to_env()}
    cost = run_measured(command, env, folder / "log", home.checkpoint("t1"))
    return Streamed(cost, path_ledger(home)[before:])


if __name__ == "__main__":
    send(Settings.from_env(), sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
