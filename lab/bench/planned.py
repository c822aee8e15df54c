"""How long a stream stands for a planned restore of a long history, and for one that replays; in one run. Report only.

`PYTHONPATH=tests python -m lab.bench.planned --folder DIR [--batches 1000] [--replayed 60] [--prepare-seconds 280] [--ways planned replaying]`

A stream of batches of one record a partition runs until it has so many batches after a proved savepoint. That takes long: it is cut
off after the given seconds, and the same command goes on with the same folder. Then both ways are measured on that stream: from the
request to drain until the first batch that the new timeline commits of records that wait in the log. The driver is started as soon as
the restore returns; the agent would need up to half a second more. CPU-seconds are those of the process tree of the restore and of that
driver; the load is the machine's, of the last minute, when the drain was asked for and at the end.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from lab.bench.measure import tree_cpu_s
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.savepoint.catalogue import ProofState, Savepoint, list_savepoints
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.prove import prove_savepoint
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.lineage import path_of
from rivertwice.timeline.sequence import head
from streams.synthetic import PARTITIONS, DriverProcess, flights, make_small_project, produce

NAME = "bench-planned"
BEGINS = datetime(2013, 7, 1, 4, tzinfo=UTC)
PATIENCE_S = 300.0
FIRST = 4


@dataclass(frozen=True)
class Stop:
    """How long the stream stood, and what it cost until it went on."""

    replayed: int
    wall_s: float
    restore_wall_s: float
    restore_cpu_s: float
    driver_cpu_s: float
    loads: tuple[float, float]


def last_batch(settings: Settings) -> int:
    """Return the last committed batch of the head's path, -1 without one."""
    home = settings.pipeline(NAME)
    timeline = head(home)
    newest = None if timeline is None else newest_batch(home, path_of(home, timeline))
    return -1 if newest is None else newest.batch


def run_until(settings: Settings, batch: int, seconds: float) -> int:
    """Run the stream until a batch is committed, or for so many seconds; return its last batch."""
    driver = DriverProcess(settings, NAME)
    try:
        Deadline.after(seconds).wait_until(
            lambda: last_batch(settings) >= batch or driver.process.poll() is not None, every=0.5
        )
        driver.drain()
    finally:
        driver.stop()
    return last_batch(settings)


def measure_stop(settings: Settings, savepoint: str) -> Stop:
    """Restore under a running stream; return how long it stood."""
    running = DriverProcess(settings, NAME)
    before = last_batch(settings)
    if not Deadline.after(PATIENCE_S).wait_until(lambda: last_batch(settings) > before, every=0.1):
        message = f"the stream committed no batch after {before}: {running.log.read_text()[-2000:]}"
        raise RuntimeError(message)
    own, drained, loads = psutil.Process(), [], []

    def note(line: str) -> None:
        if line.startswith("draining"):
            drained.append(time.monotonic())
            loads.append(os.getloadavg()[0])

    cpu_before = sum(tree_cpu_s(own).values()) - sum(tree_cpu_s(psutil.Process(running.process.pid)).values())
    report = restore_savepoint(settings, NAME, savepoint, progress=note)
    running.finish(60)
    restored = time.monotonic()
    restore_cpu_s = sum(tree_cpu_s(own).values()) - cpu_before
    driver = DriverProcess(settings, NAME)
    try:
        if not Deadline.after(PATIENCE_S).wait_until(lambda: last_batch(settings) > report.forked_at, every=0.05):
            message = f"no batch after {report.forked_at}: {driver.log.read_text()[-2000:]}"
            raise RuntimeError(message)
        ended = time.monotonic()
        loads.append(os.getloadavg()[0])
        driver_cpu_s = sum(tree_cpu_s(psutil.Process(driver.process.pid)).values())
        driver.drain()
    finally:
        driver.stop()
        running.stop()
    begun = drained[0]
    return Stop(report.replayed, ended - begun, restored - begun, restore_cpu_s, driver_cpu_s, (loads[0], loads[-1]))


def proved_savepoints(settings: Settings) -> list[Savepoint]:
    """Return the proved savepoints, oldest first."""
    return [
        savepoint for savepoint in list_savepoints(settings.pipeline(NAME)) if savepoint.status == ProofState.PROVED
    ]


def prepare(settings: Settings, batches: int, seconds: float) -> bool:
    """Let the stream have so many batches after a proved savepoint; return whether it has."""
    if not proved_savepoints(settings):
        run_until(settings, FIRST, PATIENCE_S)
        taken = take_savepoint(settings, NAME, now=utc_now(), reason="bench")
        run_until(settings, taken.manifest.batch + 4, PATIENCE_S)
        print(prove_savepoint(settings, NAME, taken.id, wait_seconds=0.0).reason, flush=True)
    proved = proved_savepoints(settings)[-1]
    wanted = proved.manifest.batch + batches
    reached = last_batch(settings)
    if reached < wanted:
        reached = run_until(settings, wanted, seconds)
    print(f"{reached - proved.manifest.batch} batches after {proved.id}, {batches} are wanted", flush=True)
    return reached >= wanted


def describe(name: str, batches: int, stop: Stop) -> str:
    """Return a line of the report."""
    return (
        f"{name}, {batches} batches after the proved savepoint: {stop.replayed} replayed; the stream stood {stop.wall_s:.1f} s, of which "
        f"the restore {stop.restore_wall_s:.1f} s; CPU-seconds: restore {stop.restore_cpu_s:.1f}, driver to its first batch {stop.driver_cpu_s:.1f}; "
        f"load {stop.loads[0]:.1f} to {stop.loads[1]:.1f}"
    )


def main() -> None:
    """Prepare, and measure once everything is prepared."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.planned", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="kept from one run to the next")
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--replayed", type=int, default=60)
    parser.add_argument("--ways", nargs="+", choices=("planned", "replaying"), default=("planned", "replaying"))
    parser.add_argument("--prepare-seconds", type=float, default=280.0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    is_new = not (arguments.folder / "project").exists()
    broker = start_broker(Settings(Settings.from_env().project, arguments.folder / "broker"))
    try:
        if is_new:
            settings = make_small_project(arguments.folder, NAME, bootstrap=broker.bootstrap, batch=1)
            records = flights(PARTITIONS * (arguments.batches + 3 * arguments.replayed), start=BEGINS)
            produce(settings, NAME, records)
        settings = Settings(arguments.folder / "project", arguments.folder / "home", broker.bootstrap, "local[2]")
        if "planned" in arguments.ways:
            if not prepare(settings, arguments.batches, arguments.prepare_seconds):
                print("not there yet: run the same command again")
                return
            behind = last_batch(settings) - proved_savepoints(settings)[-1].manifest.batch
            print(describe("planned", behind, measure_stop(settings, StateBase.RESTING)), flush=True)
        if "replaying" in arguments.ways:
            taken = take_savepoint(settings, NAME, now=utc_now(), reason="bench")
            run_until(settings, taken.manifest.batch + arguments.replayed, PATIENCE_S)
            print(prove_savepoint(settings, NAME, taken.id, wait_seconds=0.0).reason, flush=True)
            stop = measure_stop(settings, proved_savepoints(settings)[-1].id)
            print(describe("replaying", stop.replayed, stop))
    finally:
        stop_broker(Settings(Settings.from_env().project, arguments.folder / "broker"))


if __name__ == "__main__":
    main()
