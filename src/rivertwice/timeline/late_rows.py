"""The late rows that the stream stored, only those of committed batches on the head's path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rivertwice.config import PipelineHome
from rivertwice.store import delta
from rivertwice.timeline.ledger import LedgerRow

COLUMNS = ("window_start", "window_end", "event_time", "late_watermark", "topic", "partition", "offset", "fields")


def read_late_rows(
    home: PipelineHome, path: Sequence[LedgerRow], columns: Sequence[str] = COLUMNS
) -> list[dict[str, Any]]:
    """Return the stored late rows of the batches of `path`, each with its ledger row as `batch`, in the order of the log.

    Rows of batches that were never committed do not count: a crash may leave them.
    """
    table = delta.read(home.tables.late_rows, columns=["_timeline", "_batch", *columns])
    if table is None:
        return []
    by_batch = {(row.timeline, row.batch): row for row in path}
    late_rows = []
    for row in table.to_pylist():
        batch = by_batch.get((row.pop("_timeline"), row.pop("_batch")))
        if batch is not None:
            late_rows.append({**row, "batch": batch})
    return sorted(late_rows, key=lambda row: (row["topic"], row["partition"], row["offset"], row["window_start"]))
