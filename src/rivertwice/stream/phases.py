"""How long each phase of a batch took, by Spark's own report of it and by the sink's steps; kept by the driver's main thread.

Spark reports a batch once its checkpoint is written, so after `foreachBatch`. The thread that waits for the query looks for the reports
of the batches that were committed since its last look: no batch waits for it, and no job of Spark is run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from rivertwice.core import PipelineHome, parse_iso
from rivertwice.log import name_parts
from rivertwice.timeline import BatchTimes, LedgerRow

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

MOST = 100
"""Batches that wait for their report; Spark keeps as many reports."""
_log = logging.getLogger(__name__)


class Laps:
    """Seconds of the steps of one batch, which come one after the other."""

    def __init__(self) -> None:
        """Begin the first step."""
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def done(self, step: str) -> None:
        """End a step."""
        now = time.monotonic()
        self.seconds[step] = now - self._since
        self._since = now


def times_of(
    progress: Mapping[str, Any], row: LedgerRow, epoch: int, sink: Mapping[str, float], files: int, cores: int | None
) -> BatchTimes:
    """Return the times of a batch. Pure.

    Args:
        progress: Spark's report of it (`StreamingQueryProgress` as JSON).
        sink: seconds by step of the sink. files: that its commit added.
        cores: of a local session, which bound how many tasks run at one moment; None: the partitions of the state alone do.
    """
    spark = {name: int(value) for name, value in progress["durationMs"].items() if name != "triggerExecution"}
    operators = progress.get("stateOperators", [])
    state = {}
    if operators:
        names = {
            "updated": "numRowsUpdated", "removed": "numRowsRemoved", "memory": "memoryUsedBytes",
            "update_ms": "allUpdatesTimeMs", "remove_ms": "allRemovalsTimeMs", "commit_ms": "commitTimeMs",
        }  # fmt: skip
        state = {name: sum(int(each.get(key, 0)) for each in operators) for name, key in names.items()}
        state["partitions"] = max(int(each.get("numShufflePartitions", 0)) for each in operators)
    sizes = {part: end - start for part, (start, end) in row.parts().items()}
    largest = max(sizes, key=sizes.__getitem__, default=None)
    total = sum(sizes.values())
    partitions = state.get("partitions", 0)
    return BatchTimes(
        timeline=row.timeline,
        batch=row.batch,
        epoch=epoch,
        at=parse_iso(progress["timestamp"]),
        ms=int(progress["durationMs"]["triggerExecution"]),
        read=row.read,
        emitted=row.emitted,
        spark=spark,
        sink={step: round(1000 * seconds) for step, seconds in sink.items()},
        state=state,
        slots=max(1, min(partitions, cores or partitions)),
        files=files,
        parts=len(sizes),
        part="" if largest is None or not total else name_parts(sizes)[largest],
        part_share=0.0 if largest is None or not total else round(sizes[largest] / total, 3),
    )


class PhaseKeeper:
    """Keeps the times of a driver's batches. A batch that cannot be kept is a gap in what is shown, and nothing else."""

    def __init__(self, home: PipelineHome, epoch: int) -> None:
        """Wait for no report yet."""
        self._home = home
        self._epoch = epoch
        self.cores: int | None = None
        """Of a local session; None: not known."""
        self._waiting: dict[int, tuple[LedgerRow, Mapping[str, float], int]] = {}
        self._said = False

    def committed(self, row: LedgerRow, sink: Mapping[str, float], files: int) -> None:
        """Note a batch that was committed; called by the thread that writes batches."""
        self._waiting[row.batch] = (row, sink, files)

    def look(self, query: StreamingQuery) -> None:
        """Keep the batches that Spark has reported since the last look."""
        waiting = self._waiting
        if not waiting:
            return
        try:
            for progress in reversed([*_reports(query, min(waiting))]):
                noted = waiting.pop(int(progress["batchId"]), None)
                if noted is not None:
                    row, sink, files = noted
                    times_of(progress, row, self._epoch, sink, files, self.cores).record(self._home)
        except (Py4JError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            if not self._said:
                _log.warning("how long batches take is not known now: %s", str(error)[:300])
            self._said = True
        for batch in sorted(waiting)[:-MOST]:
            waiting.pop(batch, None)


def _reports(query: StreamingQuery, first: int) -> Iterator[dict[str, Any]]:
    """Yield Spark's reports of batches from `first` on, the newest first; a trigger without a batch has a report too."""
    reports: Any = query._jsq.recentProgress()
    for place in range(len(reports) - 1, -1, -1):
        progress = json.loads(reports[place].json())
        if int(progress["batchId"]) < first:
            return
        if "addBatch" in progress["durationMs"]:
            yield progress
