"""`make bench`: the stream against a hand-written Spark job, interleaved pairs. Report only; no bar yet.

1. CPU-seconds per million events: the year's flights in batches of 20,000; start-up included, and left out: from the
   commit of the third batch to that of the last one that has records.
2. CPU-milliseconds of a micro-batch of 500 flights, at its 150th to 250th batch and in the last hundred of the year's 674
   (`--only small`).
3. p50 of a micro-batch: the first of the stormy flights in batches of a dozen.
4. Restart after kill -9: from the new process's start to the first new commit (`--only restart`).
5. Rotation under load: one savepoint a minute against none, ours against ours (`--only rotation`).
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab.bench.measure import Cost, batch_seconds, describe, run_measured
from lab.bench.ours import hand_command, make_own_project, our_command
from lab.bench.restart import report_restart
from lab.bench.rotation import report_rotation
from lab.flights.plan import STORM
from lab.flights.replay import ReplayRequest, replay
from rivertwice.core.settings import Settings
from rivertwice.local.broker import start_broker, stop_broker
from streams.flights import PIPELINE

STORM_FLIGHTS = 420  # 35 batches; the first five are left out
YEAR_LIMIT = 20_000
SMALL_LIMIT = 500
STARTED = 2  # the batch whose commit ends the start


@dataclass(frozen=True)
class Side:
    """One run of one side."""

    cost: Cost
    batches: list[float]


def run_ours(settings: Settings, folder: Path, topic: str, limit: int) -> Side:
    """Run our driver over the whole topic, in a project and home of its own."""
    own = make_own_project(settings, folder, topic, limit)
    checkpoint = own.pipeline(PIPELINE).checkpoint("t1")
    cost = run_measured(*our_command(own), folder / "log", checkpoint)
    return Side(cost, batch_seconds(checkpoint))


def run_by_hand(settings: Settings, folder: Path, topic: str, limit: int) -> Side:
    """Run the hand-written job over the whole topic."""
    cost = run_measured(*hand_command(settings, folder, topic, limit), folder / "log", folder / "checkpoint")
    return Side(cost, batch_seconds(folder / "checkpoint"))


def run_pairs(settings: Settings, root: Path, topic: str, limit: int, pairs: int) -> list[tuple[Side, Side]]:
    """Run both sides in turn, A B A B."""
    found = []
    for number in range(pairs):
        sides = []
        for name, run in (("ours", run_ours), ("hand", run_by_hand)):
            folder = root / f"{topic}-{number}-{name}"
            folder.mkdir()
            side = run(settings, folder, topic, limit)
            p50 = statistics.median(side.batches)
            text = f"{side.cost.cpu_s:.1f} CPU-s, {side.cost.wall_s:.1f} s, p50 {p50:.3f} s"
            print(f"  pair {number + 1} {name}: {text}", flush=True)
            sides.append(side)
            shutil.rmtree(folder)
        found.append((sides[0], sides[1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="interleaved pairs of each comparison")
    parser.add_argument("--only", choices=tuple(REPORTS), help="run one of the comparisons")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as folder:
        root = Path(folder)
        settings = Settings(project=Settings.from_env().project, home=root / "home", spark_master="local[2]")
        start_broker(settings)
        try:
            for name in [arguments.only] if arguments.only else list(REPORTS):
                REPORTS[name](settings, root, arguments.pairs)
        finally:
            stop_broker(settings)


def report_cpu(settings: Settings, root: Path, pairs: int) -> None:
    """Compare CPU-seconds per million events over the year's flights."""
    year = replay(settings, ReplayRequest(topic="bench-year"))
    print(f"CPU: {year.planned} events, batches of {YEAR_LIMIT:,}")
    bulk = run_pairs(settings, root, "bench-year", YEAR_LIMIT, pairs)
    millions = year.planned / 1_000_000
    for name, index in (("ours", 0), ("by hand", 1)):
        per_million = [pair[index].cost.cpu_s / millions for pair in bulk]
        print(f"CPU-seconds per million events, {name}: {describe(per_million)}")
    print(f"ratio of CPU-seconds, ours / by hand: {describe([a.cost.cpu_s / b.cost.cpu_s for a, b in bulk])}")
    last = math.ceil(year.planned / YEAR_LIMIT) - 1  # a batch without records may follow
    steady = [(a.cost.between(STARTED, last), b.cost.between(STARTED, last)) for a, b in bulk]
    millions = (year.planned - (STARTED + 1) * YEAR_LIMIT) / 1_000_000
    for name, index in (("ours", 0), ("by hand", 1)):
        per_million = [pair[index] / millions for pair in steady]
        print(f"CPU-seconds per million events, start-up left out, {name}: {describe(per_million)}")
    print(f"ratio of CPU-seconds, start-up left out, ours / by hand: {describe([a / b for a, b in steady])}")


def report_small(settings: Settings, root: Path, pairs: int) -> None:
    """Compare CPU-milliseconds of a micro-batch of 500 flights, early and late in a stream without upkeep."""
    year = replay(settings, ReplayRequest(topic="bench-small"))
    last = math.ceil(year.planned / SMALL_LIMIT) - 1
    print(f"small: {year.planned} events in {last + 1} batches of {SMALL_LIMIT}")
    found = run_pairs(settings, root, "bench-small", SMALL_LIMIT, pairs)
    for first, end in ((STARTED, last), (150, 250), (last - 100, last)):
        each = [[side.cost.between(first, end) * 1000 / (end - first) for side in pair] for pair in found]
        print(f"CPU-ms a batch, {first} to {end}, ours: {describe([a for a, _ in each])}")
        print(f"CPU-ms a batch, {first} to {end}, by hand: {describe([b for _, b in each])}")
        print(f"ratio, ours / by hand: {describe([a / b for a, b in each])}")


def report_latency(settings: Settings, root: Path, pairs: int) -> None:
    """Compare the p50 of a micro-batch of a dozen flights."""
    storm = replay(settings, ReplayRequest(topic="bench-storm", days=STORM, limit=STORM_FLIGHTS))
    print(f"latency: {storm.planned} events, batches of 12")
    small = run_pairs(settings, root, "bench-storm", 12, pairs)
    medians = [(statistics.median(a.batches), statistics.median(b.batches)) for a, b in small]
    print(f"p50 of a micro-batch in s, ours: {describe([a for a, _ in medians])}")
    print(f"p50 of a micro-batch in s, by hand: {describe([b for _, b in medians])}")
    print(f"ratio of p50, ours / by hand: {describe([a / b for a, b in medians])}")


REPORTS = {
    "cpu": report_cpu,
    "small": report_small,
    "latency": report_latency,
    "restart": report_restart,
    "rotation": report_rotation,
}


if __name__ == "__main__":
    main()
