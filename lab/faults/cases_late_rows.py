"""F40/late-rows: a commit of the table of late rows torn; its rows are computed again, each of them, by Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from lab.faults.cases import case, require
from lab.faults.cases_tables import HOW, WHERE, stop_and_repair, tear
from lab.faults.lab import Lab
from lab.faults.lab_project import edit_definition
from lab.faults.retention_runs import reconcile, to_ms
from lab.oracle.expect import expect
from lab.oracle.rules import WINDOW_MS, Row, read_record
from lab.oracle.sources import read_batches, read_log, read_path
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import path_ledger

Late = tuple[int, int, int, int]
"""(partition, offset, start and end of the window in epoch ms)."""


def keep_late_rows(lab: Lab) -> None:
    """Let the run's pipeline keep its late rows."""

    def change(document: dict[str, Any]) -> None:
        document["late"]["policy"] = "side_output"

    edit_definition(lab.settings, change)


def stored(lab: Lab) -> list[str]:
    """Return the late rows of committed batches, every column of them, in an order of their own."""
    committed = {(row.timeline, row.batch) for row in path_ledger(lab.home)}
    table = Table(lab.home.tables.late_rows).read()
    rows = [] if table is None else table.to_pylist()
    return sorted(
        json.dumps(row, sort_keys=True, default=str) for row in rows if (row["_timeline"], row["_batch"]) in committed
    )


def expected_late(lab: Lab) -> Counter[Late]:
    """Return the late records, as the oracle computes them from the log and the recorded batches alone."""
    records = read_log(lab.settings.bootstrap_servers(), lab.topic, lab.folder / "produced.jsonl").records
    home = Path(lab.home.place)
    path = read_path(home, lab.topic)
    recorded = read_batches(home / "tables", lab.topic)
    batches = [batch for segment in path for batch in recorded if segment.holds(batch.timeline, batch.number)]
    batches.sort(key=lambda batch: ([segment.timeline for segment in path].index(batch.timeline), batch.number))
    late: Counter[Late] = Counter()
    for address in expect(records, batches).late:
        row = read_record(records[address])
        if isinstance(row, Row):
            late[(*address, row.window, row.window + WINDOW_MS)] += 1
    return late


def require_all_late(lab: Lab) -> None:
    """Require that the table holds the oracle's late rows, each once."""
    rows = [json.loads(text) for text in stored(lab)]
    table = Table(lab.home.tables.late_rows).read(columns=["partition", "offset", "window_start", "window_end"])
    held: Counter[Late] = Counter(
        (row["partition"], row["offset"], to_ms(row["window_start"]), to_ms(row["window_end"]))
        for row in ([] if table is None else table.to_pylist())
    )
    wanted = expected_late(lab)
    lab.fact("late_rows", sum(wanted.values()))
    require(len(rows) == held.total(), f"{held.total() - len(rows)} late rows are of batches that nobody committed")
    require(held == wanted, f"missing late rows: {(wanted - held).total()}, too many: {(held - wanted).total()}")


@case(
    "F40/late-rows",
    "a commit of the late rows torn (newest, middle; zero, half, removed), its data files gone: computed again",
    seeds=6,
    kills=1,
    proves=("guarantees.md#late-rows",),
)
def torn_late_rows(lab: Lab) -> None:
    """No row that the stream left out may be forgotten: the oracle, and a reconcile, know each of them."""
    keep_late_rows(lab)
    lab.produce(lab.next_plan(late_share=0.3))
    driver, steps = lab.start_driver(), lab.steps()
    require(lab.kill_when(driver, lambda: steps.finished(8)), f"the driver ended by itself; {lab.log_end()}")
    before = stored(lab)
    where, how = WHERE[lab.seed % 2], HOW[lab.seed // 2 % 3]
    lab.fact("damage", tear(Path(lab.home.tables.late_rows), where, how, with_files=True))
    uncounted = (where, how) == ("newest", "removed") and stored(
        lab
    ) == before  # rows of a batch that was never committed
    stopped = stop_and_repair(lab, may_pass=uncounted)
    lab.fact("stopped", stopped)
    if not uncounted:
        after = stored(lab)
        require(
            after == before,
            f"{len(after)} late rows after the repair, {len(before)} before; {set(before) ^ set(after)}",
        )
    lab.run_to_end()
    require_all_late(lab)
    reconcile(lab)
