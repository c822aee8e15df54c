"""What streams by schedule cost a day at 5, 15 and 60 minutes, and what they cost if their drivers run all the time.

`PYTHONPATH=tests .venv/bin/python -m lab.bench.by_schedule [--pipelines 10] [--records 10] [--runs 2] [--seconds 180]`

Each pipeline counts and sums its topic's records by key and minute; several are one group. A run is measured over what would have come since
the last one, from when it is asked for until its JVM has ended, a minute after the last driver; a day has so many of these. A
stream that runs all the time is measured while its records come. Counted are the CPU-seconds of rivertwice's processes (agent, drivers,
JVMs), not those of the broker and of what produces. An agent that does nothing is counted for the rest of the day.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from homes.project import TO_RUN, edit_yaml, make_project
from lab.bench.many import KEYS, PARTITIONS, SQL, YAML, Meter, beats, end_world, produce_steadily, wait
from rivertwice.agent.launch import start_agent
from rivertwice.agent.memory import load_memory
from rivertwice.core.instants import to_iso, utc_now
from rivertwice.core.processes import session_members
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.local.broker import start_broker
from rivertwice.log import kafka
from rivertwice.timeline.intent import Intent, write_intent
from rivertwice.timeline.ledger import read_ledger

DAY_S, LOOK_S, WARM_S, QUIET_S = 86_400.0, 0.2, 60.0, 60.0
EVERY_MIN = (5, 15, 60)
BEGINS = datetime(2026, 1, 1, tzinfo=UTC)


class Spent:
    """Sums the CPU-seconds of the processes of a home from now on; of one that begins later, all of them."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._over = threading.Event()
        self._before = {process.pid: _cpu_s(process) for process in session_members(meter.leaders())}
        self._last = dict(self._before)
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            for process in session_members(self._meter.leaders()):
                self._last[process.pid] = max(_cpu_s(process), self._last.get(process.pid, 0.0))

    def seconds(self) -> float:
        """Stop, and return the sum."""
        self._over.set()
        self._thread.join()
        return sum(last - self._before.get(pid, 0.0) for pid, last in self._last.items())


def _cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0


def produce(settings: Settings, names: Sequence[str], begins: datetime, minutes: float, per_s: int) -> datetime:
    """Send what comes in a time to each pipeline's topic; return the end of that time."""
    producer, dice, count = kafka.producer(settings), random.Random(1), int(minutes * 60 * per_s)
    for name in names:
        for number in range(count):
            at = to_iso(begins + timedelta(seconds=number / per_s))
            value = {"k": f"k{dice.randrange(KEYS)}", "at": at, "v": dice.randrange(1000)}
            producer.produce(name, value=json.dumps(value).encode(), partition=number % PARTITIONS)
            if number % 10_000 == 0:
                producer.flush(60)
    producer.flush(60)
    return begins + timedelta(minutes=minutes)


def run_once(settings: Settings, names: Sequence[str], meter: Meter) -> tuple[float, float]:
    """Ask for a run of each pipeline; return the CPU-seconds until all JVMs have ended, and the seconds until the last had read its log."""
    asked, spent, began = utc_now(), Spent(meter), time.monotonic()
    for name in names:
        Intent.ask_run(settings.pipeline(name), "bench", asked)

    def are_done() -> bool:
        runs = [load_memory(settings, name).run for name in names]
        return all(run is not None and run.ended_at is not None and run.begun_at >= asked for run in runs)

    wait("all runs", are_done)
    took = time.monotonic() - began
    wait("the end of their JVM", lambda: len(meter.leaders()) == 1)
    return spent.seconds(), took


def measure(settings: Settings, names: Sequence[str], asked: argparse.Namespace, meter: Meter) -> None:
    """Print a row for each schedule, and one for drivers that run all the time."""

    def show(how: str, cpu_s: float, more: str) -> None:
        print(f"| {len(names)} | {how} | {cpu_s:,.0f} | {cpu_s / DAY_S:.3f} | {more} |", flush=True)

    print("| pipelines | mode | CPU-seconds a day | cores | measured |\n|---|---|---|---|---|", flush=True)
    begins = produce(settings, names, BEGINS, 5, asked.records)
    run_once(settings, names, meter)  # the first run makes tables, and is not counted
    spent = Spent(meter)
    time.sleep(QUIET_S)
    idle = spent.seconds() / QUIET_S
    print(f"| {len(names)} | an agent that waits | {idle * DAY_S:,.0f} | {idle:.3f} | {QUIET_S:.0f} s |", flush=True)
    for every in EVERY_MIN:
        seen = []
        for _ in range(asked.runs):
            begins = produce(settings, names, begins, every, asked.records)
            began = time.monotonic()
            cpu_s, took = run_once(settings, names, meter)
            seen.append((cpu_s - idle * (time.monotonic() - began), took))
        own, took = (sum(column) / len(seen) for column in zip(*seen, strict=True))
        runs = f"{len(seen)} runs of {own:.1f} CPU-seconds beside the agent, read in {took:.0f} s"
        show(f"every {every} minutes", own * 24 * 60 / every + idle * DAY_S, runs)
    for name in names:
        edit_yaml(
            settings.definitions / name,
            lambda document: document.update(stream={"trigger": "10 seconds", **_group(names)}),
        )
    over = threading.Event()
    sender = threading.Thread(target=produce_steadily, args=(settings, list(names), asked.records, over))
    sender.start()
    try:
        wait("all drivers", lambda: len(beats(settings, list(names))) == len(names))
        time.sleep(WARM_S)
        spent, began = Spent(meter), time.monotonic()
        Deadline.after(asked.seconds).wait_until(lambda: False, every=1.0)
        cores = spent.seconds() / (time.monotonic() - began)
        show("continuous, a batch every 10 s", cores * DAY_S, f"{asked.seconds:.0f} s")
    finally:
        over.set()
        sender.join()


def _group(names: Sequence[str]) -> dict[str, str]:
    return {"group": "small"} if len(names) > 1 else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=10)
    parser.add_argument("--records", type=int, default=10, help="a second, for each pipeline")
    parser.add_argument("--runs", type=int, default=2, help="of each schedule")
    parser.add_argument(
        "--seconds", type=float, default=180.0, help="for which drivers that run all the time are measured"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as root:
        names = [f"p{number:02}" for number in range(asked.pipelines)]
        stream = json.dumps({"mode": "scheduled", "schedule": "none", **_group(names)})
        files = {name: {"pipeline.yaml": YAML.format(name=name, stream=stream), "transform.sql": SQL} for name in names}
        world = make_project(Path(root), files, links=TO_RUN)
        world = replace(world, bootstrap=start_broker(world).bootstrap)
        for name in names:
            kafka.ensure_topic(world, name, PARTITIONS, {})
            write_intent(world.pipeline(name), "running", "bench", utc_now())
        meter = Meter(world, names)
        try:
            start_agent(world)
            measure(world, names, asked, meter)
            print(
                f"{sum(row.read for row in read_ledger(world.pipeline(names[0])))} records of {names[0]} were read",
                flush=True,
            )
        finally:
            end_world(world, meter)


if __name__ == "__main__":
    main()
