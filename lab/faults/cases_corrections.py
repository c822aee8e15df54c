"""F40/corrections: a commit of the corrections torn; what is published is not served without its rows, which a backfill brings back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.faults.cases import case, require
from lab.faults.cases_backfill import closed_ms, plan_range, published, require_truth
from lab.faults.cases_tables import HOW, WHERE, require_stopped, tear
from lab.faults.events import BEGIN_MS
from lab.faults.lab import PIPELINE, Lab
from lab.faults.savepoint_runs import command_log, run_command, start_command
from rivertwice.core.errors import LedgerError
from rivertwice.timeline.served import read_served, rebuild_served


def rows_of(lab: Lab, backfill: str) -> list[dict[str, Any]]:
    """Return what is served of a backfill."""
    table = read_served(lab.home)
    rows = [] if table is None else table.to_pylist()
    return [row for row in rows if row["_backfill"] == backfill]


def require_refused(lab: Lab) -> str:
    """Require that nothing is served over the damage, with a message that names the way out; return the message."""
    try:
        rebuild_served(lab.home, lab.definition, force=True)
    except LedgerError as error:
        require("corrections" in str(error) and "rivertwice admin repair" in str(error), f"the refusal says {error}")
        return str(error)
    require(False, "a publication is served although rows of it are gone")
    return ""


def _repair(lab: Lab, backfill: str) -> None:
    """Mend the log; the rows that are still missing then come from their backfill, whose audit passes over them."""
    for words in (("admin", "repair", PIPELINE), ("admin", "repair", PIPELINE, "--yes")):
        code = lab.wait(start_command(lab, *words), 120)
        require(code == 3, f"{' '.join(words)} ended with {code}: {command_log(lab)}")
    run_command(lab, "backfill", "run", PIPELINE, "--yes", "--id", backfill)
    run_command(lab, "admin", "repair", PIPELINE)


@case(
    "F40/corrections",
    "a commit of the corrections torn (newest, middle; zero, half, removed), its files kept or gone: a repair, its backfill again",
    seeds=6,
)
def torn_corrections(lab: Lab) -> None:
    """A window that a publication covers serves its rows and nothing else: without them it would be served empty."""
    lab.produce(lab.next_plan(records=300, late_share=0.3))
    lab.run_to_end()
    plan = plan_range(lab, BEGIN_MS, closed_ms(lab), chunk_records=60)
    require(len(plan.chunks) > 2, f"{len(plan.chunks)} chunks have no middle")
    run_command(lab, "backfill", "run", PIPELINE, "--yes", "--id", plan.id)
    rebuild_served(lab.home, lab.definition)
    require_truth(lab, plan)
    before = rows_of(lab, plan.id)
    require(bool(before), "nothing of the backfill is served")
    where, how = WHERE[lab.seed % 2], HOW[lab.seed // 2 % 3]
    gone = lab.random.random() < 0.6
    lab.fact("damage", tear(Path(lab.home.tables.corrections), where, how, with_files=gone))
    lab.fact("refused", require_refused(lab)[:200])
    require(rows_of(lab, plan.id) == before, "what is served changed over the damage")
    lab.produce(lab.next_plan(records=60))
    if (where, how) == ("newest", "removed"):  # the log is whole but a commit shorter, and the stream needs none of it
        lab.run_to_end()
        require_refused(lab)
    else:
        lab.fact("stopped", require_stopped(lab))
    _repair(lab, plan.id)
    lab.run_to_end()
    require_truth(lab, plan)
    require(len(published(lab, plan.id)) == 1, f"the backfill is published at {published(lab, plan.id)}")
    rebuild_served(lab.home, lab.definition)
    require(rows_of(lab, plan.id) == before, "other rows of the backfill are served than before the damage")
