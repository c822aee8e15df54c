"""Savepoints under load: the same stream with one rotation a minute and with none, in turn.

What is told: CPU-seconds and wall seconds of both, and of every rotation its seconds, its bytes, and how long the
micro-batches took that ran meanwhile against the median of the others. A rotation here takes a savepoint; its proof
runs in a process of its own afterwards and is measured where proofs are.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from lab.bench.measure import Cost, batch_begins, describe, run_measured
from lab.bench.ours import make_own_project, our_command
from lab.flights.replay import ReplayRequest, replay
from rivertwice.core.errors import SavepointError
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.savepoint.take import take_savepoint
from streams.flights import PIPELINE

LIMIT = 2_000
EVERY_S = 60.0
FIRST_S = 30.0


@dataclass(frozen=True)
class Rotation:
    """One savepoint taken under load; instants in seconds since the epoch."""

    begun: float
    ended: float
    files: int
    size: int


class Rotator(threading.Thread):
    """Takes a savepoint half a minute after the stream began, and then every minute."""

    def __init__(self, own: Settings) -> None:
        super().__init__(name="rotator", daemon=True)
        self._own = own
        self._ended = threading.Event()
        self.found: list[Rotation] = []

    def run(self) -> None:
        """Rotate until stopped."""
        wait_s = FIRST_S
        while not self._ended.wait(wait_s):
            begun = time.time()
            try:
                savepoint = take_savepoint(self._own, PIPELINE, now=utc_now(), reason="bench")
            except SavepointError:  # nothing is committed yet
                wait_s = 1.0
                continue
            manifest = savepoint.manifest
            self.found.append(Rotation(begun, time.time(), len(manifest.files), manifest.size))
            wait_s = EVERY_S

    def stop(self) -> None:
        """End after the running rotation."""
        self._ended.set()
        self.join()


@dataclass(frozen=True)
class Side:
    """One run."""

    cost: Cost
    begins: list[float]
    rotations: list[Rotation]


def run_side(settings: Settings, folder: Path, topic: str, *, rotate: bool) -> Side:
    """Stream the whole topic, with rotations or without."""
    folder.mkdir()
    own = make_own_project(settings, folder, topic, LIMIT)
    command, env = our_command(own)
    rotator = Rotator(own)
    if rotate:
        rotator.start()
    try:
        cost = run_measured(command, env, folder / "log")
    finally:
        if rotate:
            rotator.stop()
    side = Side(cost, batch_begins(own.pipeline(PIPELINE).checkpoint("t1")), rotator.found)
    shutil.rmtree(folder)
    return side


def delays(side: Side) -> list[float]:
    """Return, for every batch that overlapped a rotation, its seconds over the median of the others'."""
    spans = list(zip(side.begins, side.begins[1:], strict=False))[5:]
    touched = [any(r.begun < end and begin < r.ended for r in side.rotations) for begin, end in spans]
    usual = statistics.median(end - begin for (begin, end), hit in zip(spans, touched, strict=True) if not hit)
    return [(end - begin) / usual for (begin, end), hit in zip(spans, touched, strict=True) if hit]


def report_rotation(settings: Settings, root: Path, pairs: int) -> None:
    """Compare a rotated stream with an undisturbed one."""
    topic = "bench-rotation"
    year = replay(settings, ReplayRequest(topic=topic))
    print(f"rotation: {year.planned} events in batches of {LIMIT}, one savepoint a minute against none, {pairs} pairs")
    found = []
    for number in range(pairs):
        sides = []
        for rotate in (True, False):
            side = run_side(settings, root / f"rotation-{number}-{rotate}", topic, rotate=rotate)
            print(
                f"  pair {number + 1} {'rotated' if rotate else 'at rest'}: {side.cost.cpu_s:.1f} CPU-s, "
                f"{side.cost.wall_s:.1f} s, {len(side.begins)} batches"
            )
            for one in side.rotations:
                print(f"    savepoint: {one.ended - one.begun:.2f} s, {one.files} files, {one.size} bytes")
            if side.rotations:
                print(f"    batches meanwhile, over the usual: {', '.join(f'{x:.2f}' for x in delays(side)) or 'none'}")
            sides.append(side)
        found.append((sides[0], sides[1]))
    print(f"ratio of CPU-seconds, rotated / at rest: {describe([a.cost.cpu_s / b.cost.cpu_s for a, b in found])}")
    print(f"ratio of wall seconds, rotated / at rest: {describe([a.cost.wall_s / b.cost.wall_s for a, b in found])}")
