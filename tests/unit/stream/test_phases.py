"""Spark's report of a batch and the sink's steps become one record; a batch without a report is waited for, and holds up none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from homes.ledger import ledger_row
from rivertwice.core.homes import PipelineHome
from rivertwice.stream.phases import PhaseKeeper, times_of
from rivertwice.timeline.batch_times import BatchTimes
from rivertwice.timeline.ledger import LedgerRow

OPERATOR = {
    "operatorName": "stateStoreSave", "numRowsTotal": 0, "numRowsUpdated": 13, "allUpdatesTimeMs": 21, "numRowsRemoved": 4,
    "allRemovalsTimeMs": 30, "commitTimeMs": 43, "memoryUsedBytes": 1056928, "numShufflePartitions": 8,
}  # fmt: skip
"""As Spark 4.2 reports it."""
DURATIONS = {
    "addBatch": 1342, "commitOffsets": 2, "getBatch": 1, "latestOffset": 11, "queryPlanning": 113, "triggerExecution": 1480,
    "walCommit": 3,
}  # fmt: skip
SINK = {"rows": 1.24, "commit": 0.005}


def progress(
    batch: int, durations: dict[str, int] = DURATIONS, operators: Sequence[Any] = (OPERATOR,)
) -> dict[str, Any]:
    at = f"2026-11-30T03:33:{batch:02d}.935Z"
    return {"batchId": batch, "timestamp": at, "durationMs": durations, "stateOperators": list(operators)}


def row(batch: int) -> LedgerRow:
    starts, ends = {"flights": {"0": 0, "1": 0}}, {"flights": {"0": 30, "1": 90}}
    return replace(ledger_row(batch, start_offsets=starts, end_offsets=ends), read=120)


def test_a_record_has_what_spark_and_the_sink_measured_and_the_fullest_partition() -> None:
    made = times_of(progress(1), row(1), 3, SINK, 2, 2)
    assert (made.ms, made.epoch, made.read, made.files) == (1480, 3, 120, 2)
    assert made.spark == {name: value for name, value in DURATIONS.items() if name != "triggerExecution"}
    assert made.sink == {"rows": 1240, "commit": 5}
    assert (made.state["commit_ms"], made.state["updated"], made.state["partitions"], made.slots) == (43, 13, 8, 2)
    assert (made.parts, made.part, made.part_share) == (2, "1", 0.75)
    several = times_of(progress(1, operators=[OPERATOR, OPERATOR]), row(1), 3, SINK, 2, None)
    assert (several.state["commit_ms"], several.slots) == (86, 8)
    assert times_of(progress(1, operators=[]), row(1), 3, SINK, 2, 2).state == {}


class Query:
    """Stands for a query: its newest reports, as the JVM gives them, and how many were read."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.reads = 0
        self._jsq = SimpleNamespace(
            recentProgress=lambda: [SimpleNamespace(json=self._json(each)) for each in self.reports]
        )

    def _json(self, report: dict[str, Any]) -> Any:
        def read() -> str:
            self.reads += 1
            return json.dumps(report)

        return read


def test_a_batch_is_kept_once_spark_has_reported_it_and_old_reports_are_not_read(tmp_path: Path) -> None:
    home, query = PipelineHome(tmp_path), Query()
    keeper = PhaseKeeper(home, 3)
    spark: Any = query
    keeper.look(spark)
    query.reports = [progress(number) for number in range(7)]
    keeper.committed(row(7), SINK, 1)
    keeper.look(spark)
    assert (BatchTimes.newest(home), query.reads) == ([], 1)
    quiet = {name: value for name, value in DURATIONS.items() if name != "addBatch"}
    query.reports += [progress(7), progress(8, quiet)]
    keeper.committed(row(8), SINK, 1)
    keeper.look(spark)
    assert [each.batch for each in BatchTimes.newest(home)] == [7]  # a trigger without a batch is none
    query.reports.append(progress(8))
    keeper.look(spark)
    assert [each.batch for each in BatchTimes.newest(home)] == [7, 8]
    reads = query.reads
    keeper.look(spark)
    assert query.reads == reads


def test_a_full_disk_or_a_strange_report_stops_nothing(tmp_path: Path) -> None:
    query: Any = Query()
    query.reports = [{"batchId": 1, "durationMs": {"addBatch": 3}}]
    keeper = PhaseKeeper(PipelineHome(tmp_path), 3)
    keeper.committed(row(1), SINK, 1)
    keeper.look(query)
    (tmp_path / "a-file").write_text("")
    query.reports = [progress(2)]
    blocked = PhaseKeeper(PipelineHome(tmp_path / "a-file"), 3)
    blocked.committed(row(2), SINK, 1)
    blocked.look(query)
    assert BatchTimes.newest(PipelineHome(tmp_path)) == []
