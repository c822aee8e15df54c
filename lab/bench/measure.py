"""Measure a command: CPU-seconds of its whole process tree, polled, and the micro-batches its checkpoint recorded."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

os.environ.setdefault("RIVERTWICE_ENGINE", "off")  # what a verb costs is measured in its own process tree


@dataclass(frozen=True)
class Cost:
    """What a run cost.

    Attributes:
        cpu_s: CPU-seconds of the process tree, start-up included.
        wall_s: seconds.
        reached: number of a micro-batch to the CPU-seconds of the living process tree, with those of its ended
            children, when its commit was seen; only for a command whose checkpoint was watched.
    """

    cpu_s: float
    wall_s: float
    reached: Mapping[int, float] = field(default_factory=dict)

    def between(self, first: int, last: int) -> float:
        """Return the CPU-seconds from the commit of one micro-batch to the commit of a later one: no start, no end."""
        return self.reached[last] - self.reached[first]


def run_measured(command: Sequence[str], env: dict[str, str], log: Path, checkpoint: Path | None = None) -> Cost:
    """Run a command and return its cost; a child that ends between two polls loses at most a tenth of a second.

    Args:
        command: what to run.
        env: its environment.
        log: file that takes its output.
        checkpoint: of the stream that it runs, whose commits are watched.
    """
    begun = time.monotonic()
    spent: dict[tuple[int, float], float] = {}
    reached: dict[int, float] = {}
    with log.open("ab") as out:
        child = subprocess.Popen(list(command), env=env, stdout=out, stderr=subprocess.STDOUT)
        root = psutil.Process(child.pid)
        try:
            while child.poll() is None:
                spent |= tree_cpu_s(root)
                newest = -1 if checkpoint is None else newest_commit(checkpoint)
                if newest not in reached and newest >= 0:
                    reached[newest] = living_cpu_s(root)
                time.sleep(0.1 if checkpoint is None else 0.02)
        finally:
            child.terminate()  # a bench that was interrupted leaves nothing running
    if child.returncode != 0:
        message = f"{command} ended with {child.returncode}; the end of {log}:\n{log.read_text()[-3000:]}"
        raise RuntimeError(message)
    return Cost(sum(spent.values()), time.monotonic() - begun, reached)


def newest_commit(checkpoint: Path) -> int:
    """Return the number of the newest committed batch, -1 without one."""
    folder = checkpoint / "commits"
    names = [entry.name for entry in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def living_cpu_s(root: psutil.Process) -> float:
    """Return the CPU-seconds of a process and its living descendants, with those of the children that they waited for."""
    total = 0.0
    for process in [root, *_children(root)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of the children that ended
    return total


def own_cpu_s(act: Callable[[], object], *, besides: int | None = None) -> float:
    """Return the CPU-seconds that this process and its descendants, its JVM among them, spend on a call.

    Args:
        act: the call.
        besides: a descendant, such as a broker, that does not count.
    """

    def spent() -> float:
        return living_cpu_s(psutil.Process()) - (0.0 if besides is None else living_cpu_s(psutil.Process(besides)))

    before = spent()
    act()
    return spent() - before


def tree_cpu_s(root: psutil.Process) -> dict[tuple[int, float], float]:
    """Return the CPU-seconds of a process and its living descendants, by pid and start; one that ends meanwhile is left out."""
    spent: dict[tuple[int, float], float] = {}
    for process in [root, *_children(root)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spent[process.pid, process.create_time()] = times.user + times.system
    return spent


def _children(root: psutil.Process) -> list[psutil.Process]:
    try:
        return list(root.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def batch_begins(checkpoint: Path) -> list[float]:
    """Return when each retained micro-batch began, in seconds since the epoch."""
    begins = []
    for file in sorted((checkpoint / "offsets").iterdir(), key=lambda path: path.name.zfill(12)):
        if file.name.isdigit():
            begins.append(json.loads(file.read_text().split("\n")[1])["batchTimestampMs"] / 1000)
    return begins


def batch_seconds(checkpoint: Path, *, skip: int = 5) -> list[float]:
    """Return the seconds from each micro-batch's begin to the next one's; the first ones (warm-up) are left out."""
    return [after - before for before, after in itertools.pairwise(batch_begins(checkpoint))][skip:]


def describe(ratios: Sequence[float]) -> str:
    """Return the median and the spread of ratios."""
    return (
        f"median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f} "
        f"({', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    )
