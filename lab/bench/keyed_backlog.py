"""How many records of a keyed backlog are late, and what it costs to read it together in event time. Report only.

`PYTHONPATH=tests python -m lab.bench.keyed_backlog [--records 200000] [--days 60] [--batch 1000] [--share 0.25] [--seed 1]`

The backlog has 4 partitions whose keys live in eras: each is dense at another time. Some records are sent hours after their
event. It lies in the topic before a driver starts. Late are records whose window had ended by the watermark of the batch
before, by the ranges and watermarks of the ledger. Compared are:

- arrival, alone: each record arrives by itself, in the order in which it was sent;
- arrival, in batches: the same order, in batches of the same size, judged as Spark judges batches;
- split: Spark splits batches by what waits (`catch_up_share: 0`);
- placed: batches end at one event time in all partitions.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.bench.measure import Cost, run_measured
from rivertwice.core.settings import Settings
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.timeline.lineage import path_ledger
from streams.keyed import (
    MINUTE_MS,
    NAME,
    Keyed,
    drift_ms,
    keyed_backlog,
    late_by_arrival,
    late_by_arrival_in_batches,
    late_in_the_stream,
    make_keyed_project,
    send,
)

TOPIC = "bench-keyed"
SAMPLED = 40
"""Batches whose drift is looked at."""


@dataclass(frozen=True)
class Run:
    """One run of the driver over the whole backlog."""

    late: int
    batches: int
    drift_minutes: float
    cost: Cost


def run_driver(settings: Settings, folder: Path, records: Sequence[Keyed], batch: int, share: float) -> Run:
    """Run a driver in a project and home of its own, and judge what it read."""
    own = make_keyed_project(
        folder, settings.bootstrap_servers(), TOPIC, max_offsets_per_trigger=batch, catch_up_share=share
    )
    command = [sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", NAME, "--until-end"]
    cost = run_measured(command, {**os.environ, **own.to_env()}, folder / "log")
    rows = path_ledger(own.pipeline(NAME))
    read = sum(row.read for row in rows)
    if read != len(records):
        message = f"the stream read {read} of {len(records)} records"
        raise RuntimeError(message)
    some = rows[: -1 : max(1, len(rows) // SAMPLED)]
    drift = max(drift_ms(records, TOPIC, row) for row in some) / MINUTE_MS
    return Run(late_in_the_stream(records, rows, TOPIC), len(rows), drift, cost)


def report(settings: Settings, root: Path, arguments: argparse.Namespace) -> None:
    """Fill the topic, run both ways and print the shares."""
    records = keyed_backlog(arguments.seed, arguments.records, days=arguments.days)
    send(make_keyed_project(root / "sender", settings.bootstrap_servers(), TOPIC), TOPIC, records)
    alone, batched = late_by_arrival(records), late_by_arrival_in_batches(records, arguments.batch)
    print(f"{len(records)} records of {arguments.days} days, batches of {arguments.batch}, seed {arguments.seed}")
    print(f"arrival, alone: {alone / len(records):.2%} late")
    print(f"arrival, in batches: {batched / len(records):.2%} late")
    for name, share in (("split", 0.0), ("placed", arguments.share)):
        run = run_driver(settings, root / name, records, arguments.batch, share)
        print(
            f"{name}: {run.late / len(records):.2%} late, {run.late / max(1, alone):.2f} of arrival alone, "
            f"{run.late / max(1, batched):.2f} of arrival in batches; drift up to {run.drift_minutes:.0f} min; "
            f"{run.batches} batches, {run.cost.cpu_s:.1f} CPU-s, {run.cost.wall_s:.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.keyed_backlog", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--days", type=float, default=60)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as folder:
        root = Path(folder)
        settings = Settings(project=Settings.from_env().project, home=root / "home", spark_master="local[2]")
        start_broker(settings)
        try:
            report(settings, root, arguments)
        finally:
            stop_broker(settings)


if __name__ == "__main__":
    main()
