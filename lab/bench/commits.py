"""What the commits of a micro-batch cost: changelog and ledger with kept handles, against one bare append. Without Spark and Kafka.

`python -m lab.bench.commits [--batches 40 200]`: three rows a batch; CPU-milliseconds a batch of all threads of the process, the first
five batches left out. `opened` opens the tables for each use, as a writer does that commits once.
`python -m bench.commits --growth 900`: the same as the tables grow without upkeep, the last twenty of each hundred batches; `before`
has tables as 0.1 made them, and handles that are never renewed. The two take turns.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.storage.snapshot import Snapshot
from rivertwice.storage.table import RETENTION, Table
from rivertwice.stream.result_rows import changelog_rows
from rivertwice.timeline import ledger
from rivertwice.timeline.counts import BatchCounts

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
    changelog, ledger = Table(folder / "changelog"), Table(folder / "ledger")

    def commit(batch: int) -> None:
        nonlocal changelog, ledger
        if not keeps:
            changelog, ledger = Table(changelog.place), Table(ledger.place)
        changelog.applied_version("p#t1")
        rows = changelog_rows(result_rows(batch), "t1", batch)
        changelog.append(rows, transactions={"p#t1": batch}, metadata={"ledger": LEDGER})
        ledger.append(pa.table({"batch": [batch], **{name: [text] for name, text in LEDGER.items()}}), widen=True)  # fmt: skip

    return commit


def cpu_s() -> float:
    """Return the CPU-seconds of this process."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def ledger_row(batch: int) -> ledger.LedgerRow:
    """Return the row of a batch of 500 records of a topic with two partitions, as long as a stream's."""
    at, (start, end) = 1_357_000_000_000 + batch * 60_000, ({"0": n * 250, "1": n * 250} for n in (batch, batch + 1))
    head = {
        "batchWatermarkMs": at,
        "batchTimestampMs": at,
        "conf": {f"spark.sql.streaming.{n}": "on" for n in range(20)},
    }
    offsets = "\n".join(["v1", json.dumps(head), json.dumps({"events": end})])
    return ledger.LedgerRow(
        "p", "t1", batch, 1, "b" * 64, "c" * 22, {"events": "i" * 22}, {"events": start}, {"events": end}, offsets, at, at,
        500, 0, 500, at, at + 60_000, 3, f"d1:3:{batch:032x}", {"sources": "s" * 64}, BEGIN, {"events": BatchCounts(500, 0, 500)},
    )  # fmt: skip


class NeverRenewed(Table):
    """A handle as 0.1 kept it."""

    def _is_due(self, table: Snapshot) -> bool:
        return False


class Writer:
    """Commits batches as the sink does."""

    def __init__(self, home: PipelineHome, *, is_old: bool) -> None:
        """Begin with no tables, or with those of 0.1."""
        self._home, self._batch = home, 0
        kind = NeverRenewed if is_old else Table
        self._changelog, self._ledger = kind(home.tables.changelog), kind(home.tables.ledger)
        if is_old:
            rows = changelog_rows(result_rows(0), "t1", 0)
            DeltaTable.create(str(home.tables.changelog), rows.schema, partition_by=["_day"], configuration=RETENTION)
            DeltaTable.create(str(home.tables.ledger), ledger.SCHEMA, configuration=RETENTION)

    def write(self, batches: int) -> list[float]:
        """Commit batches; return the CPU-milliseconds a batch of the ledger's append and of the changelog's commit."""
        spent = [0.0, 0.0]
        for batch in range(self._batch, self._batch + batches):
            row, rows, begun = ledger_row(batch), changelog_rows(result_rows(batch), "t1", batch), cpu_s()
            ledger.append_ledger(self._home, [row], self._ledger)
            spent[0] += cpu_s() - begun
            begun = cpu_s()
            self._changelog.applied_version("p#t1")
            self._changelog.append(rows, transactions={"p#t1": batch}, metadata={ledger.LEDGER_KEY: row.to_json()})  # fmt: skip
            spent[1] += cpu_s() - begun
        self._batch += batches
        return [seconds * 1000 / batches for seconds in spent]


def print_growth(batches: int) -> None:
    """Print what the two commits cost as the tables grow."""
    print(
        f"{'':>8} {'before':>18} {'now':>18}\n{'batches':>8} {'ledger  changelog':>18} {'ledger  changelog':>18}   CPU-ms a batch"
    )
    with tempfile.TemporaryDirectory(prefix="rivertwice-commits-") as folder:
        homes = [Settings(project=Path(folder), home=Path(folder) / name).pipeline("p") for name in ("before", "now")]
        writers = [Writer(home, is_old=number == 0) for number, home in enumerate(homes)]
        for batch in range(100, batches + 1, 100):
            for writer in writers:
                writer.write(80)
            costs = [cost for writer in writers for cost in writer.write(20)]
            print(
                f"{batch:>8} " + " ".join(f"{ours:>8.1f} {theirs:>9.1f}" for ours, theirs in (costs[:2], costs[2:])),
                flush=True,
            )


def main() -> None:
    """Run each way over each number of batches and print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.commits", description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[40, 200])
    parser.add_argument("--growth", type=int)
    if growth := parser.parse_args().growth:
        print_growth(growth)
        return
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
