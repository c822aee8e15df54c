"""What the commits of a micro-batch cost: changelog and ledger with kept handles, against one bare append. Without Spark and Kafka.

`python -m lab.bench.commits [--batches 40 200]`: three rows a batch; CPU-milliseconds a batch of all threads of the process, the first
five batches left out. `opened` opens the tables for each use, as a writer does that commits once.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from rivertwice.store import delta
from rivertwice.stream.result_rows import changelog_rows

WARM = 5
BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
LEDGER = {"text": "x" * 2_000}  # about as long as a ledger row with its offsets


def result_rows(batch: int) -> pa.Table:
    """Return three result rows of one hour."""
    start = BEGIN + timedelta(hours=batch)
    times = [pa.array([at] * 3, pa.timestamp("us", "UTC")) for at in (start, start + timedelta(hours=1))]
    return pa.table({"window_start": times[0], "window_end": times[1], "origin": ["EWR", "JFK", "LGA"], "n": [1, 2, 3]})


def bare(folder: Path) -> Callable[[int], object]:
    """Return a function that appends a batch's rows to one table, and nothing more."""
    return lambda batch: write_deltalake(str(folder / "table"), result_rows(batch), mode="append")


def committed(folder: Path, *, keeps: bool) -> Callable[[int], object]:
    """Return a function that commits a batch as the sink does."""
    changelog, ledger = delta.KeptTable(folder / "changelog"), delta.KeptTable(folder / "ledger")

    def commit(batch: int) -> None:
        if not keeps:
            changelog.forget()
            ledger.forget()
        changelog.applied_version("p#t1")
        rows = changelog_rows(result_rows(batch), "t1", batch)
        delta.append(
            changelog.place,
            rows,
            transactions={"p#t1": batch},
            metadata={"ledger": LEDGER},
            partition_by=["_day"],
            kept=changelog if keeps else None,
        )
        delta.append(
            ledger.place, pa.table({"batch": [batch], **{name: [text] for name, text in LEDGER.items()}}), widen=True,
            kept=ledger if keeps else None,
        )  # fmt: skip

    return commit


def cpu_s() -> float:
    """Return the CPU-seconds of this process."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def main() -> None:
    """Run each way over each number of batches and print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.commits", description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[40, 200])
    print(f"{'batches':>8} {'bare':>8} {'opened':>8} {'kept':>8}   CPU-ms a batch")
    for batches in parser.parse_args().batches:
        costs = []
        for make in (bare, lambda at: committed(at, keeps=False), lambda at: committed(at, keeps=True)):
            with tempfile.TemporaryDirectory(prefix="rivertwice-commits-") as folder:
                commit = make(Path(folder))
                for batch in range(WARM):
                    commit(batch)
                begun = cpu_s()
                for batch in range(WARM, batches):
                    commit(batch)
                costs.append((cpu_s() - begun) / (batches - WARM) * 1000)
        print(f"{batches:>8} {costs[0]:>8.1f} {costs[1]:>8.1f} {costs[2]:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
