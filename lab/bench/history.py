"""What looking and serving cost as history grows: CPU-seconds and memory of single acts, at several lengths of the ledger.

`PYTHONPATH=tests .venv/bin/python -m lab.bench.history [LENGTH ...] [--acts served_batch ...] [--times 2] [--rounds 1]` needs no broker
and no Spark. Each act runs in a process of its own, twice or `--times`: its first look, and the median of those after that. Memory is
how much the process's peak rose by all. `2000 200000 --acts served_batch --times 9 --rounds 5` compares a batch at 100,000 served rows
with one at 10,000,000.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from homes.backfill import HOUR, add_timeline, make_home
from homes.ledger import NOW, ledger_row
from rivertwice.agent.metrics import NEWEST, batch_figures
from rivertwice.agent.served import ServedKeeper, state_of, table_of
from rivertwice.agent.view import view_pipeline
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import EPOCH
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, load_bundle
from rivertwice.read.overview import describe_summary
from rivertwice.retention.view import observe_claims
from rivertwice.storage.table import Table
from rivertwice.stream.damage import newest_rows_of_run
from rivertwice.timeline.committed import committed_batches, newest_batch, newest_batches
from rivertwice.timeline.intact import require_rows, require_whole_logs
from rivertwice.timeline.ledger import LEDGER_KEY, append_ledger, heal_ledger
from rivertwice.timeline.lineage import Fork, Timeline, head_path, path_ledger, path_of
from rivertwice.timeline.sequence import head, last_seq, move_head, publish
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.serving import Publication

LENGTHS = (2_000, 20_000, 100_000)
KEYS = 50
CHUNK = 5_000
NEWEST_COMMITS = 20  # batches that were not merged yet
PER_DAY = 1_440  # batches whose rows lie in one partition


def rows_of(first: int, last: int, timeline: str = "t1") -> pa.Table:
    """Return what batches emitted: `KEYS` rows each, of the hour that the batch closed."""
    batches = np.repeat(np.arange(first, last), KEYS)
    starts = (batches - 1) * HOUR * 1000
    count = len(batches)
    days = [f"{EPOCH + timedelta(days=int(batch) // PER_DAY):%Y-%m-%d}" for batch in range(first, last)]
    return pa.table(
        {
            "_format": pa.array(np.ones(count, np.int32)),
            "_timeline": pa.array([timeline] * count, pa.string()),
            "_batch": pa.array(batches, pa.int64()),
            "_day": pa.array(np.repeat(days, KEYS).tolist(), pa.string()),
            "window_start": pa.array(starts, pa.timestamp("us", "UTC")),
            "window_end": pa.array(starts + HOUR * 1000, pa.timestamp("us", "UTC")),
            "k": pa.array([f"k{key}" for key in range(KEYS)] * (last - first), pa.string()),
            "n": pa.array((batches * 7919 + np.tile(np.arange(KEYS), last - first)) % 1000, pa.int64()),
        }
    )


def fill(home: PipelineHome, bundle: str, first: int, last: int, timeline: str = "t1") -> None:
    """Commit batches as a stream that was merged: a ledger row and the rows of one closed hour each."""
    rows = [
        ledger_row(batch, timeline, bundle=bundle, batch_watermark_ms=batch * HOUR, emitted=KEYS)
        for batch in range(first, last)
    ]
    append_ledger(home, rows)
    Table(home.tables.changelog, partition_by=["_day"]).append(
        rows_of(first, last, timeline),
        transactions={f"p#{timeline}": last - 1},
        metadata={LEDGER_KEY: rows[-1].to_json()},
    )


class Acts:
    """Single acts on one home; each returns nothing."""

    def __init__(self, root: Path) -> None:
        self.settings = Settings(root, root / "home")
        self.home = self.settings.pipeline("p")
        name = head(self.home)
        assert name is not None
        self.timeline = name
        self.bundle: Bundle = load_bundle(self.home.bundles, Timeline.load(self.home, name).bundle)
        last = newest_batch(self.home, head_path(self.home))
        assert last is not None
        self.batch = last.batch

    def ledger_rows(self) -> None:
        path_ledger(self.home)

    def ledger_columns(self) -> None:
        committed_batches(self.home)

    def agent_idle(self) -> None:
        """What a pass of the agent reads of the tables: `served`'s state, and the claims on the log."""
        ServedKeeper(self.settings, list, None)._seen["p"] = (state_of(self.home), table_of(self.home))  # type: ignore[arg-type]
        observe_claims(self.settings, "p")

    def status(self) -> None:
        view_pipeline(self.settings, "p", NOW)

    def page(self) -> None:
        describe_summary(self.settings, self.bundle.definition, NOW)

    def metrics(self) -> None:
        path = head_path(self.home)
        committed = committed_batches(self.home, path)
        batch_figures(newest_batches(self.home, committed, path, NEWEST))
        committed.total("read")

    def driver_start(self) -> None:
        require_whole_logs(self.home)
        heal_ledger(self.home)
        line = Timeline.load(self.home, self.timeline)
        newest_rows_of_run(self.home, require_rows(self.home, self.timeline), path_of(self.home, line.timeline))

    def served_whole(self) -> None:
        rebuild_served(self.home, self.bundle.definition, force=True)

    def served_batch(self) -> Callable[[], object]:
        fill(self.home, self.bundle.id, self.batch + 1, self.batch + 2, self.timeline)
        self.batch += 1
        return lambda: rebuild_served(self.home, self.bundle.definition)

    def served_publication(self) -> Callable[[], object]:
        seq = last_seq(self.home) + 1
        first = self.batch // (3 if seq % 2 else 2)
        rows = rows_of(first + 1, first + 11).drop_columns(["_timeline", "_batch"])
        backfill = pa.array([f"bf-{seq}"] * rows.num_rows, pa.string())
        Table(self.home.tables.corrections, partition_by=["_day"]).append(rows.append_column("_backfill", backfill))
        semantics = self.bundle.fingerprint.semantics
        window = ((first * HOUR, (first + 10) * HOUR),)
        entry = Publication(seq, f"bf-{seq}", window, semantics, self.bundle.id, {}, rows=rows.num_rows)
        publish(self.home, entry.to_payload(), expected_seq=seq - 1, now=NOW)
        return lambda: rebuild_served(self.home, self.bundle.definition)

    def served_head_move(self) -> Callable[[], object]:
        fork, seq = self.batch - 2, last_seq(self.home)
        name = f"t{seq + 1}"
        add_timeline(self.home, self.bundle, name, Fork(self.timeline, fork), fork + 1)
        self.timeline = name
        for batch in range(fork + 1, fork + 4):
            fill(self.home, self.bundle.id, batch, batch + 1, name)
        self.batch = fork + 3
        move_head(self.home, name, reason="bench", expected_seq=seq, now=NOW)
        return lambda: rebuild_served(self.home, self.bundle.definition)


NAMES = (
    "ledger_rows", "ledger_columns", "agent_idle", "status", "page", "metrics", "driver_start",
    "served_whole", "served_batch", "served_publication", "served_head_move",
)  # fmt: skip


def forget_peak() -> None:
    """Make the kernel count this process's largest memory from now on; `getrusage` begins with the parent's."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """Return this process's largest memory since then."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def measure(root: Path, name: str, times: int) -> dict[str, Any]:
    """Do an act several times, and return the CPU-seconds of the first, the median of the others and how much the peak rose."""
    acts = Acts(root)
    forget_peak()
    before = peak_mb()
    seconds = []
    for _ in range(times):
        act = getattr(acts, name)
        prepared = act() if name.startswith("served_") and name != "served_whole" else act
        began = time.process_time()
        prepared()
        seconds.append(time.process_time() - began)
    return {"first": seconds[0], "again": statistics.median(seconds[1:]), "mb": peak_mb() - before}


def make_history(folder: Path, batches: int) -> tuple[PipelineHome, Bundle]:
    """Make a home of so many batches; all but the newest were merged."""
    _, home, bundle = make_home(folder, batches=1)
    merged = batches - NEWEST_COMMITS
    for first in range(1, merged, CHUNK):
        fill(home, bundle.id, first, min(merged, first + CHUNK))
    for batch in range(merged, batches):
        fill(home, bundle.id, batch, batch + 1)
    return home, bundle


def shorten_logs(home: PipelineHome) -> None:
    """Give the logs a checkpoint, as writers do every hundred commits: opening a table reads the entries since, at any length."""
    for place in (home.tables.ledger, home.tables.changelog, home.tables.served):
        if Path(str(place)).exists():
            DeltaTable(str(place)).create_checkpoint()


def main(lengths: list[int], names: list[str], times: int, rounds: int) -> None:
    print(
        "| batches / served rows | act | first look, CPU-s | one more, CPU-s | peak rose by, MB |\n|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as root:
        for batches in lengths:
            home, bundle = make_history(Path(root) / str(batches), batches)
            if "served_whole" not in names:
                rebuild_served(home, bundle.definition)
        for name in names:
            for _, batches in itertools.product(range(rounds), lengths):
                folder = str(Path(root) / str(batches))
                shorten_logs(Settings(Path(folder), Path(folder) / "home").pipeline("p"))
                command = [sys.executable, "-m", "lab.bench.history", "--act", name, folder, str(times)]
                answer = subprocess.run(command, check=True, capture_output=True, text=True)
                figures = json.loads(answer.stdout.splitlines()[-1])
                shown = f"{figures['first']:.3f} | {figures['again']:.3f} | {figures['mb']:.0f}"
                print(f"| {batches:,} / {batches * KEYS:,} | {name} | {shown} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--act"]:
        print(json.dumps(measure(Path(sys.argv[3]), sys.argv[2], int(sys.argv[4]))))
    else:
        parser = argparse.ArgumentParser(prog="python -m lab.bench.history", description=__doc__)
        parser.add_argument("lengths", nargs="*", type=int, default=list(LENGTHS), help="batches of each history")
        parser.add_argument("--acts", nargs="+", choices=NAMES, default=list(NAMES))
        parser.add_argument("--times", type=int, default=2, help="how often each act is done; at least 2")
        parser.add_argument("--rounds", type=int, default=1, help="how often each act is measured, the lengths in turn")
        arguments = parser.parse_args()
        main(arguments.lengths, arguments.acts, arguments.times, arguments.rounds)
