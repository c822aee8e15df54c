"""F51: another program commits to a table between two reconciles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.faults.cases import case, require
from lab.faults.cases_tables import repair
from lab.faults.foreign import (
    commit_by_another,
    first_value_changed,
    nothing_changed,
)
from lab.faults.lab import Lab
from lab.faults.reconcile_runs import (
    REACHES_MS,
    REBUILD,
    RECONCILE,
    require_once,
    require_passed,
    seal,
    sealed_runs,
    stream_chapter,
)
from lab.faults.retention_runs import ask, judged
from lab.faults.savepoint_runs import run_command
from rivertwice.reconcile.gate import FOREIGN_WRITE
from rivertwice.timeline.verdicts import Verdict


def require_judged_all(answer: dict[str, Any], table: str) -> None:
    """Require that a run judged everything, and that its reason names another program's commit to a table."""
    reason = answer["gate"]["reason"]
    require(answer["increment"] is None, f"{answer['run']} builds on {answer['increment']}")
    named = "another program made version" in reason and f"of the table {table} " in reason
    require(named, f"the reason of {answer['run']} names no commit to {table}: {reason}")


def require_warning(answer: dict[str, Any], *, warns: bool) -> None:
    """Require that a run warns of another program's commit, or that it does not."""
    alerts = [alert["severity"] for alert in answer["gate"]["alerts"] if alert["kind"] == FOREIGN_WRITE]
    require(alerts == (["warning"] if warns else []), f"{answer['run']} has the alerts {FOREIGN_WRITE}: {alerts}")


def cure(lab: Lab, table: str) -> None:
    """Write the rows of a table again."""
    if table == "served":
        run_command(lab, *REBUILD)
    else:
        repair(lab)


@case(
    "F51",
    "another program commits to the changelog or what is served between two reconciles: the next one judges everything",
    seeds=4,
)
def foreign_commit(lab: Lab) -> None:
    """The ordinary run judges everything: it names the changed row, or passes with a warning and a seal if nothing changed."""
    stream_chapter(lab)
    sealed = seal(lab)
    table = ("changelog", "served")[lab.seed % 2]
    harms = lab.seed % 4 < 2
    change = first_value_changed("total") if harms else nothing_changed
    lab.fact("commit", f"{commit_by_another(Path(getattr(lab.home.tables, table)), change)}; harm: {harms}")
    lab.produce(lab.next_plan(records=120, late_share=0.2, late_ms=REACHES_MS))
    lab.run_to_end()
    seen = ask(lab, *RECONCILE)
    require_judged_all(seen, table)
    require_warning(seen, warns=not harms)
    defects = judged_as_defect(lab, "stream" if table == "changelog" else "served")
    require(len(defects) == harms, f"the run calls {len(defects)} rows DEFECT")
    require(seen["gate"]["passed"] != harms, f"passed: {seen['gate']['passed']}, harm: {harms}")
    require(sealed_runs(lab) == ([sealed] if harms else [sealed, seen["run"]]), f"seals: {sealed_runs(lab)}")
    if harms:
        cure(lab, table)
    answer = ask(lab, *RECONCILE)
    require_passed(answer)
    require_warning(answer, warns=False)  # the run before it has said so
    built_on = (answer["increment"] or {}).get("base")
    require(built_on == (None if harms else seen["run"]), f"at the end it builds on {built_on}")
    require_once(lab)


def judged_as_defect(lab: Lab, pair: str) -> list[int]:
    """Return the starts of the windows in which the newest run has a DEFECT."""
    return sorted({start for start, _, verdict, _ in judged(lab, pair) if verdict == Verdict.DEFECT})
