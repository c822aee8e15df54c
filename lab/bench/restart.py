"""Restart after kill -9: from the new process's start to the first new micro-batch, ours against the hand-written job.

Both sides read the same topic in batches of a dozen. The process group is killed at the same batch of both; the clock
runs until `commits/` of the checkpoint holds a batch that it did not hold at the kill. Pairs are interleaved.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from lab.bench.measure import describe, newest_commit, tree_cpu_s
from lab.bench.ours import hand_command, make_own_project, our_command
from lab.flights.plan import STORM
from lab.flights.replay import ReplayRequest, replay
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from streams.flights import PIPELINE

FLIGHTS = 600
LIMIT = 12
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Restart:
    """One restart: seconds until the first new commit, and what the process tree had burnt by then."""

    wall_s: float
    cpu_s: float


def start(command: Sequence[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a side in a process group of its own."""
    with log.open("ab") as out:
        return subprocess.Popen(list(command), env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)


def wait_for_commit(process: subprocess.Popen[bytes], checkpoint: Path, beyond: int, log: Path) -> None:
    """Wait until a batch after `beyond` is committed."""

    def is_committed() -> bool:
        return newest_commit(checkpoint) > beyond

    Deadline.after(PATIENCE_S).wait_until(lambda: is_committed() or process.poll() is not None, every=0.01)
    if not is_committed():
        message = f"no batch after {beyond} was committed; the end of the log: {log.read_text()[-2000:]}"
        raise RuntimeError(message)


def restart_once(
    command: Sequence[str], env: dict[str, str], checkpoint: Path, log: Path, kill_at: int, pause_s: float
) -> Restart:
    """Run, kill at a batch, start again, and measure until the first new commit."""
    first = start(command, env, log)
    wait_for_commit(first, checkpoint, kill_at - 1, log)
    time.sleep(pause_s)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    seen = newest_commit(checkpoint)
    begun = time.monotonic()
    second = start(command, env, log)
    try:
        wait_for_commit(second, checkpoint, seen, log)
        return Restart(time.monotonic() - begun, sum(tree_cpu_s(psutil.Process(second.pid)).values()))
    finally:
        os.killpg(second.pid, signal.SIGKILL)
        second.wait()


def report_restart(settings: Settings, root: Path, pairs: int, seed: int = 1) -> None:
    """Compare the two restarts, A B A B."""
    topic = "bench-restart"
    replay(settings, ReplayRequest(topic=topic, days=STORM, limit=FLIGHTS))
    print(f"restart after kill -9: {pairs} pairs, seed {seed}")
    moments = random.Random(seed)
    found: list[tuple[Restart, Restart]] = []
    for number in range(pairs):
        kill_at, pause_s = moments.randrange(8, 20), moments.uniform(0.0, 0.5)
        sides = []
        for name in ("ours", "hand"):
            folder = root / f"{topic}-{number}-{name}"
            folder.mkdir()
            if name == "ours":
                own = make_own_project(settings, folder, topic, LIMIT)
                (command, env), checkpoint = our_command(own), own.pipeline(PIPELINE).checkpoint("t1")
            else:
                (command, env), checkpoint = hand_command(settings, folder, topic, LIMIT), folder / "checkpoint"
            side = restart_once(command, env, checkpoint, folder / "log", kill_at, pause_s)
            print(f"  pair {number + 1} {name}: {side.wall_s:.2f} s, {side.cpu_s:.1f} CPU-s, killed at batch {kill_at}")
            sides.append(side)
            shutil.rmtree(folder)
        found.append((sides[0], sides[1]))
    print(f"seconds to the first new commit, ours: {describe([a.wall_s for a, _ in found])}")
    print(f"seconds to the first new commit, by hand: {describe([b.wall_s for _, b in found])}")
    print(f"ratio of seconds, ours / by hand: {describe([a.wall_s / b.wall_s for a, b in found])}")
    print(f"ratio of CPU-seconds, ours / by hand: {describe([a.cpu_s / b.cpu_s for a, b in found])}")
