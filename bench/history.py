"""What looking often costs as history grows: the ledger, and `served` after one more batch, at three lengths.

`python -m bench.history` needs no broker and no Spark. Figures are CPU-seconds of this process.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from homes.backfill import HOUR, emitted, make_home
from homes.ledger import ledger_row
from rivertwice.config import PipelineHome
from rivertwice.metrics.measure import NEWEST
from rivertwice.pipeline.bundle import Bundle
from rivertwice.store import delta
from rivertwice.timeline.committed import committed_batches, newest_batches
from rivertwice.timeline.ledger import METADATA_KEY, append_ledger
from rivertwice.timeline.lineage import head_path, path_ledger
from rivertwice.timeline.served import rebuild_served

LENGTHS = (1_000, 10_000, 100_000)
KEYS = 10
CHUNK = 5_000


def cpu_of(act: Callable[[], object]) -> float:
    """Return the CPU-seconds of a call."""
    began = time.process_time()
    act()
    return time.process_time() - began


def fill(home: PipelineHome, bundle: Bundle, first: int, last: int) -> None:
    """Commit batches as a stream that was merged: a ledger row and the rows of one closed hour each."""
    rows = [
        ledger_row(batch, bundle=bundle.id, batch_watermark_ms=batch * HOUR, emitted=KEYS)
        for batch in range(first, last)
    ]
    append_ledger(home, rows)
    tables = [
        emitted("t1", batch, *[(batch - 1, f"k{key}", batch) for key in range(KEYS)]) for batch in range(first, last)
    ]
    delta.append(
        home.tables.changelog,
        pa.concat_tables(tables),
        transactions={"p#t1": last - 1},
        metadata={METADATA_KEY: rows[-1].to_json()},
        partition_by=["_day"],
    )


def measure_length(folder: Path, batches: int) -> list[float]:
    """Return the figures at a number of batches, in the order of `HEADER`."""
    _, home, bundle = make_home(folder, batches=1)
    for first in range(1, batches, CHUNK):
        fill(home, bundle, first, min(batches, first + CHUNK))
    definition = bundle.definition
    figures = [
        cpu_of(lambda: path_ledger(home)),
        cpu_of(lambda: committed_batches(home)),
        cpu_of(lambda: newest_batches(home, committed_batches(home), head_path(home), NEWEST)),
        cpu_of(lambda: rebuild_served(home, definition)),
    ]
    after = []
    for batch in range(batches, batches + 3):
        fill(home, bundle, batch, batch + 1)
        after.append(cpu_of(lambda: rebuild_served(home, definition)))
    return [*figures, min(after)]


HEADER = (
    "batches",
    "ledger, all rows",
    "ledger, columns",
    "columns and newest 1,000 rows",
    "served, whole",
    "served, one more batch",
)


def main() -> None:
    print("| " + " | ".join(HEADER) + " |\n" + "|---" * len(HEADER) + "|")
    for batches in LENGTHS:
        with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as folder:
            figures = measure_length(Path(folder), batches)
        print(f"| {batches:,} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    main()
