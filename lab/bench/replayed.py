"""What a restore by replay costs, from the command line; two checkouts in turn over copies of one home. Report only.

`PYTHONPATH=tests:src python -m lab.bench.replayed --folder DIR [--batches 123 400] [--rounds 2] [--trees before=PATH after=.] [--planned]`

A stream of batches of 12 records runs once for each number of batches, and its home is kept in the folder. Each run is
`rivertwice savepoint restore NAME --from-beginning --yes` over a fresh copy of that home, in its own process, without the warm engine; with
`--planned` it is that restore. CPU-seconds are those of its process tree.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab.bench.measure import run_measured
from rivertwice.core.settings import Settings
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.timeline.lineage import path_ledger
from streams.synthetic import DriverProcess, flights, make_small_project, produce, wait_for_batch

BATCH = 12
PATIENCE_S = 3600.0


def prepare(folder: Path, name: str, bootstrap: str, batches: int) -> None:
    """Let a stream commit so many batches, unless it has."""
    if (folder / name).exists():
        return
    settings = make_small_project(folder / name, name, bootstrap=bootstrap, batch=BATCH)
    produce(settings, name, flights(BATCH * batches))
    driver = DriverProcess(settings, name)
    try:
        wait_for_batch(settings, name, batches - 1, driver=driver, seconds=PATIENCE_S)
        driver.drain()
    finally:
        driver.stop()
    rows = path_ledger(settings.pipeline(name))
    print(f"{name}: {len(rows)} batches, {sum(row.read for row in rows)} records", flush=True)


def measure(folder: Path, name: str, bootstrap: str, tree: Path, way: Sequence[str]) -> str:
    """Restore over a copy of the home by one checkout; return a line of the report."""
    run = folder / "runs" / f"{name}-{time.time_ns()}"
    shutil.copytree(folder / name / "home", run / "home")
    env = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "RIVERTWICE_ENGINE": "off",
        "RIVERTWICE_BOOTSTRAP": bootstrap,
        "RIVERTWICE_SPARK_MASTER": "local[2]",
    }
    command = [sys.executable, "-m", "rivertwice.cli.main", "--project", str(folder / name / "project")]
    command += ["--home", str(run / "home"), "savepoint", "restore", name, *way, "--yes"]
    cost = run_measured(command, env, run / "log")
    shutil.rmtree(run)
    return f"{cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU-s, load {os.getloadavg()[0]:.1f}"


def main() -> None:
    """Prepare each stream, then measure in turn."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.replayed", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="kept from one run to the next")
    parser.add_argument("--batches", type=int, nargs="+", default=[123, 400])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--trees", nargs="+", default=["this=."], help="NAME=PATH of each checkout")
    parser.add_argument("--planned", action="store_true")
    arguments = parser.parse_args()
    project = Settings.from_env().project
    broker = start_broker(Settings(project, arguments.folder / "broker"))
    trees = {name: Path(path).resolve() for name, _, path in (tree.partition("=") for tree in arguments.trees)}
    try:
        for batches in arguments.batches:
            name = f"replay-{batches}"
            prepare(arguments.folder, name, broker.bootstrap, batches)
            for _ in range(arguments.rounds):
                for label, tree in trees.items():
                    way = ["--planned", "--unproved"] if arguments.planned else ["--from-beginning"]
                    print(
                        f"{name}, {label}: {measure(arguments.folder, name, broker.bootstrap, tree, way)}", flush=True
                    )
    finally:
        stop_broker(Settings(project, arguments.folder / "broker"))


if __name__ == "__main__":
    main()
