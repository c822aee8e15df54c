"""What many small pipelines of one group cost on one host: at work with a steady stream of records, idle, and asleep.

`PYTHONPATH=tests .venv/bin/python -m lab.bench.many [--pipelines 20] [--records 100] [--trigger 10] [--seconds 120] [--own-jvm]`

Counted are the processes of rivertwice (agent, drivers, JVMs), not the broker and not what produces. Memory is the proportional
set: pages that processes share are counted once. Each pipeline counts and sums its topic's records by key and minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from homes.project import TO_RUN, make_project
from rivertwice.agent.launch import agent_status, start_agent, stop_agent
from rivertwice.core.instants import to_iso, utc_now
from rivertwice.core.processes import end_sessions, is_alive, session_members
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.log import kafka
from rivertwice.storage.local import read_json
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Heartbeat, write_intent

PARTITIONS, KEYS = 2, 50
WARM_S, IDLE_S, ASLEEP_S = 60.0, 90.0, 120.0
PATIENCE_S = 900.0

YAML = """\
name: {name}
description: Records and their sum, by key and minute.
sources:
  records:
    topic: {name}
    partitions: 2
    schema: {{k: string, at: timestamp, v: bigint}}
    required: [k]
    event_time: at
    watermark: 10 seconds
    max_future: 1 hour
window: {{size: 1 minute}}
keys: [k]
count_column: records
columns:
  records: {{compare: exact}}
  total: {{compare: exact}}
stream: {stream}
"""
SQL = """\
SELECT window.start AS window_start, window.end AS window_end, k, COUNT(*) AS records, SUM(v) AS total
FROM records GROUP BY window(at, '1 minute'), k
"""


class Meter:
    """Sums the CPU-seconds of the home's processes while it runs, those that end meanwhile included."""

    def __init__(self, settings: Settings, names: list[str]) -> None:
        self._settings, self._names = settings, names

    def leaders(self) -> list[int]:
        """Return the agent, the drivers and the hosts of groups that live."""
        agent = agent_status(self._settings)
        owners = [lease_owner(self._settings.pipeline(name)) for name in self._names]
        hosts = [read_json(file) or {} for file in self._settings.home.glob("groups/*/host.json")]
        living = [host["pid"] for host in hosts if is_alive(host.get("pid"), host.get("pid_started"))]
        found = [owner.pid for owner in owners if owner is not None] + living
        return found if agent is None else [agent.pid, *found]

    def run(self, seconds: float) -> tuple[float, float, int]:
        """Return the cores used over these seconds, the memory at their end in GB, and how many processes there are."""
        spent: dict[int, tuple[float, float]] = {}
        began = time.monotonic()
        for _ in Deadline.after(seconds).polls(1.0):
            for process in session_members(self.leaders()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    now = times.user + times.system
                    spent[process.pid] = (spent.get(process.pid, (now, now))[0], now)
        cores = sum(last - first for first, last in spent.values()) / (time.monotonic() - began)
        memory, members = 0, session_members(self.leaders())
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                memory += process.memory_full_info().pss
        return cores, memory / 1e9, len(members)


def produce_steadily(settings: Settings, names: list[str], per_s: int, over: threading.Event) -> None:
    """Send so many records a second to each pipeline's topic until it is over, each with the time of its sending."""
    producer = kafka.producer(settings)
    dice = random.Random(1)
    while not over.is_set():
        ends = Deadline.after(1.0)
        for name in names:
            for number in range(per_s):
                value = {"k": f"k{dice.randrange(KEYS)}", "at": to_iso(utc_now()), "v": dice.randrange(1000)}
                producer.produce(name, value=json.dumps(value).encode(), partition=number % PARTITIONS)
        producer.flush(30)
        over.wait(ends.left())


def beats(settings: Settings, names: list[str]) -> list[Heartbeat]:
    """Return the newest word of each driver that lives."""
    found = [(lease_owner(settings.pipeline(name)), Heartbeat.load(settings.pipeline(name))) for name in names]
    return [beat for owner, beat in found if owner is not None and beat is not None and beat.epoch == owner.epoch]


def wait(what: str, condition: Callable[[], bool]) -> None:
    began = time.monotonic()
    if not Deadline.after(PATIENCE_S).wait_until(condition, every=0.5):
        raise TimeoutError(what)
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=20)
    parser.add_argument("--records", type=int, default=100, help="a second, for each pipeline")
    parser.add_argument("--trigger", type=int, default=10, help="seconds between micro-batches")
    parser.add_argument("--seconds", type=float, default=120.0, help="for which the stream at work is measured")
    parser.add_argument("--own-jvm", action="store_true", help="no group")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as root:
        names = [f"p{number:02}" for number in range(asked.pipelines)]
        stream = {"trigger": f"{asked.trigger} seconds", "hibernate": "3 minutes"} | (
            {} if asked.own_jvm else {"group": "small"}
        )
        files = {
            n: {"pipeline.yaml": YAML.format(name=n, stream=json.dumps(stream)), "transform.sql": SQL} for n in names
        }
        world = make_project(Path(root), files, links=TO_RUN)
        world = replace(world, bootstrap=start_broker(world).bootstrap)
        for name in names:
            kafka.ensure_topic(world, name, PARTITIONS, {})
        over, meter = threading.Event(), Meter(world, names)
        sender = threading.Thread(target=produce_steadily, args=(world, names, asked.records, over))
        try:
            start_agent(world)
            for name in names:
                write_intent(world.pipeline(name), "running", "bench", utc_now())
            sender.start()
            wait(
                "all drivers have committed",
                lambda: sum(beat.batch is not None for beat in beats(world, names)) == len(names),
            )
            time.sleep(WARM_S)
            print("| state | cores | GB | processes |\n|---|---|---|---|", flush=True)
            show(f"{asked.records} records/s each", meter.run(asked.seconds))
            lags = [beat.lag or 0 for beat in beats(world, names)]
            print(f"| records that wait, at most | {max(lags)} | | {len(lags)} drivers |", flush=True)
            over.set()
            sender.join()
            time.sleep(45)
            show("idle", meter.run(IDLE_S))
            wait("all hibernate", lambda: not beats(world, names) and len(meter.leaders()) == 1)
            show("hibernating", meter.run(ASLEEP_S))
        finally:
            over.set()
            end_world(world, meter)


def end_world(world: Settings, meter: Meter) -> None:
    """End the agent, all that it started, and the broker."""
    stop_agent(world)
    for pid in meter.leaders():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    time.sleep(3)
    end_sessions(meter.leaders())
    stop_broker(world)


def show(state: str, measured: tuple[float, float, int]) -> None:
    cores, memory, processes = measured
    print(f"| {state} | {cores:.2f} | {memory:.2f} | {processes} |", flush=True)


if __name__ == "__main__":
    main()
