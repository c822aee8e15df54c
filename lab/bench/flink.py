"""Our stream against PyFlink SQL: records per CPU-second over the same topic and windows, start-up left out. Report only.

`python -m lab.bench.flink ENVIRONMENT CONNECTOR_JAR [--records 200000 2000000] [--batch 200000] [--rounds 3]`. ENVIRONMENT is a folder with
`bin/python` that has Flink; it is no dependency of this project. With Python 3.11 and Java 17:

    python3.11 -m venv ENVIRONMENT && ENVIRONMENT/bin/pip install apache-flink==2.2.1
    mvn dependency:copy -Dartifact=org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2 -DoutputDirectory=FOLDER

The log is that of `bench.minutes`. Each side reads a small and a large topic, in turn, with two slots: the difference of both runs'
CPU-seconds is what the records between them cost, without the start of JVM and Python. Flink has its state in RocksDB, takes a checkpoint
every two seconds and writes JSON files; ours has its state in RocksDB, and a checkpoint, a ledger row and a Delta commit for each batch.
Flink's job runs in one JVM, without a cluster. The broker is left out on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from lab.bench.measure import Cost, describe, run_measured
from lab.bench.minutes import NAME, fill, make_minutes_project, stream
from rivertwice.core.settings import Settings
from rivertwice.engine.java import java_env
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.storage.table import Table

SLOTS = 2


def run_ours(settings: Settings, folder: Path, topic: str, batch: int) -> tuple[Cost, int, int]:
    """Stream a topic in a project of its own; return the cost, the rows, and the records that they count."""
    own = make_minutes_project(folder, settings.bootstrap_servers(), topic, batch)
    run = stream(own, folder)
    rows = Table(own.pipeline(NAME).tables.changelog).read(columns=["n"])
    counts = [] if rows is None else rows["n"].to_pylist()
    return run.cost, len(counts), sum(counts)


def run_flink(settings: Settings, folder: Path, topic: str, python: Path, jar: Path) -> tuple[Cost, int, int]:
    """Run Flink's job over a topic; return the cost, the rows, and the records that they count."""
    arguments = [str(jar), settings.bootstrap_servers(), topic, str(folder), str(SLOTS)]
    env = {**os.environ, **java_env(settings)}
    env.pop("PYTHONPATH", None)
    cost = run_measured([str(python), str(Path(__file__).with_name("flink_job.py")), *arguments], env, folder / "log")
    files = [path for path in (folder / "rows").rglob("*") if path.is_file() and path.name.startswith("part-")]
    counts = [json.loads(line)["n"] for path in files for line in path.read_text().splitlines()]
    return cost, len(counts), sum(counts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.flink", description=__doc__)
    parser.add_argument("environment", type=Path, help="folder of the Python environment that has Flink")
    parser.add_argument("jar", type=Path, help="Flink's SQL connector for Kafka")
    parser.add_argument("--records", type=int, nargs=2, default=[200_000, 2_000_000], help="a small and a large topic")
    parser.add_argument("--batch", type=int, default=200_000, help="records of our micro-batch, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=("ours", "flink"), default=["ours", "flink"])
    arguments = parser.parse_args()
    few, many = arguments.records
    python, jar = (arguments.environment / "bin/python").absolute(), arguments.jar.absolute()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as name:
        root = Path(name)
        settings = Settings(Settings.from_env().project, root / "broker", spark_master=f"local[{SLOTS}]")
        start_broker(settings)
        try:
            for size in (few, many):
                fill(settings, f"bench-{size}", 0, size)
            sides: dict[str, Callable[[Path, str], tuple[Cost, int, int]]] = {
                "ours": lambda folder, topic: run_ours(settings, folder, topic, arguments.batch),
                "flink": lambda folder, topic: run_flink(settings, folder, topic, python, jar),
            }
            rates: dict[str, list[float]] = {side: [] for side in arguments.sides}
            for number in range(1, arguments.rounds + 1):
                for side in rates:
                    spent = []
                    for size in (few, many):
                        folder = root / f"{number}-{side}-{size}"
                        folder.mkdir()
                        cost, rows, counted = sides[side](folder, f"bench-{size}")
                        spent.append(cost.cpu_s)
                        print(
                            f"round {number} {side}: {size:,} records, {cost.cpu_s:.2f} CPU-s, {cost.wall_s:.1f} s, "
                            f"{rows:,} rows of {counted:,} records"
                        )
                        sys.stdout.flush()
                        shutil.rmtree(folder)
                    rates[side].append((many - few) / (spent[1] - spent[0]))
                    print(
                        f"round {number} {side}: {rates[side][-1]:,.0f} records per CPU-s, start left out", flush=True
                    )
            for side, own in rates.items():
                print(f"records per CPU-s, {side}: {', '.join(f'{rate:,.0f}' for rate in own)}")
            if len(rates) == len(sides):
                ratios = [ours / flink for ours, flink in zip(rates["ours"], rates["flink"], strict=True)]
                print(f"ours / flink: {describe(ratios)}")
        finally:
            stop_broker(settings)


if __name__ == "__main__":
    main()
