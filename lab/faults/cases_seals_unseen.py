"""F51/unseen: a sealed row altered or deleted, its entry in the Delta log rewritten too, so that no commit shows it."""

from __future__ import annotations

from pathlib import Path

from lab.faults.cases import case, require
from lab.faults.cases_seals import judged_as_defect
from lab.faults.cases_tables import repair
from lab.faults.foreign import first_row_gone, first_value_changed, rewrite_unseen
from lab.faults.lab import Lab
from lab.faults.reconcile_runs import REACHES_MS, RECONCILE, require_passed, seal, stream_chapter
from lab.faults.retention_runs import ask


@case(
    "F51/unseen",
    "a sealed row of the changelog altered or deleted, its entry in the Delta log rewritten too: found by --full, and repaired",
    seeds=4,
    proves=("guarantees.md#what-everything-needs",),
)
def altered_unseen(lab: Lab) -> None:
    """No commit shows it, so only a run over everything can find it; a repair computes the batch again."""
    stream_chapter(lab)
    seal(lab)
    change = (first_value_changed("total"), first_row_gone)[lab.seed % 2]
    lab.fact("damage", rewrite_unseen(Path(lab.home.tables.changelog), change))
    ordinary = ask(lab, *RECONCILE)
    lab.fact("ordinary", f"passed: {ordinary['gate']['passed']}")
    full = ask(lab, *RECONCILE, "--full")
    require(not full["gate"]["passed"], "the gate of --full passed over an altered row")
    require(len(judged_as_defect(lab, "stream")) == 1, f"--full calls {judged_as_defect(lab, 'stream')} DEFECT")
    repair(lab)
    stream_chapter(lab, records=120, late_ms=REACHES_MS)
    answer = ask(lab, *RECONCILE)
    require_passed(answer)
    require(not answer["increment"], "a run after a repair builds on a seal of before")
