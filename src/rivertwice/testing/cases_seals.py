"""F51: another program commits to a table between two reconciles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rivertwice.testing.cases import case, require
from rivertwice.testing.cases_tables import repair
from rivertwice.testing.foreign import (
    commit_by_another,
    first_value_changed,
    nothing_changed,
)
from rivertwice.testing.lab import Lab
from rivertwice.testing.reconcile_runs import (
    REACHES_MS,
    REBUILD,
    RECONCILE,
    require_once,
    require_passed,
    seal,
    sealed_runs,
    stream_chapter,
)
from rivertwice.testing.retention_runs import ask, judged
from rivertwice.testing.savepoint_runs import run_command
from rivertwice.verdicts import DEFECT


def require_alarm(answer: dict[str, Any], word: str) -> None:
    """Require that a run's gate did not pass, for a reason that has this word."""
    alerts = [alert["message"] for alert in answer["gate"]["alerts"] if alert["severity"] == "critical"]
    findings = answer["gate"]["findings"]
    require(not answer["gate"]["passed"], f"the gate of {answer['run']} passed; it should name '{word}'")
    require(any(word in text for text in (*alerts, *findings)), f"no alert names '{word}': {alerts[:3]} {findings[:3]}")


def cure(lab: Lab, table: str) -> None:
    """Write the rows again as the message of the alarm says."""
    if table == "served":
        run_command(lab, *REBUILD)
    else:
        repair(lab)


@case(
    "F51",
    "another program commits to the changelog or what is served between two reconciles: an alarm until --full has compared all",
    seeds=4,
)
def foreign_commit(lab: Lab) -> None:
    """The ordinary run names the commit though it reads other rows; --full names the row, or clears it if nothing changed."""
    stream_chapter(lab)
    sealed = seal(lab)
    table = ("changelog", "served")[lab.seed % 2]
    harms = lab.seed % 4 < 2
    change = first_value_changed("total") if harms else nothing_changed
    lab.fact("commit", f"{commit_by_another(Path(getattr(lab.home.tables, table)), change)}; harm: {harms}")
    lab.produce(lab.next_plan(records=120, late_share=0.2, late_ms=REACHES_MS))
    lab.run_to_end()
    require_alarm(ask(lab, *RECONCILE), "that no stream, backfill or upkeep made")
    require(sealed_runs(lab) == [sealed], "a run with a foreign commit left a seal")
    full = ask(lab, *RECONCILE, "--full")
    defects = judged_as_defect(lab, "stream" if table == "changelog" else "served")
    require(bool(defects) == harms, f"--full calls {len(defects)} rows DEFECT")
    if harms:
        require(not full["gate"]["passed"], "the gate of --full passed over a changed row")
        cure(lab, table)
    answer = ask(lab, *RECONCILE)
    require_passed(answer)
    built_on = (answer["increment"] or {}).get("base")
    require(built_on == (None if harms else full["run"]), f"after the cure it builds on {built_on}")
    require_once(lab)


def judged_as_defect(lab: Lab, pair: str) -> list[int]:
    """Return the starts of the windows in which the newest run has a DEFECT."""
    return sorted({start for start, _, verdict, _ in judged(lab, pair) if verdict == DEFECT})
