"""What the cases of reconciles share: sealed streams, and what a run says of every row compared with what `--full` says."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lab.faults.cases import require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.retention_runs import ask
from rivertwice.core.homes import PipelineHome
from rivertwice.reconcile.results import cause_rows, reconcile_runs, verdict_rows
from rivertwice.reconcile.seals.model import read_seals
from rivertwice.storage.table import Table
from rivertwice.timeline.served import rebuild_served

RECONCILE = ("reconcile", PIPELINE)
REBUILD = ("admin", "rebuild", PIPELINE)
REACHES_MS = 1_700_000
"""Late records of the second chapter reach so far back: into windows that a reconcile of the first one sealed."""
_VERDICT = ("pair", "window_start", "window_end", "key", "verdict", "reason", "late", "dead", "rows")
_CAUSE = ("pair", "cause", "window_start", "key", "topic", "partition", "offset", "batch", "event_time", "detail")


def stored_run(home: PipelineHome, run: str) -> dict[str, Any]:
    """Return all that readers see of a run, without what differs between any two runs."""
    row = next(each for each in reconcile_runs(home) if each["run"] == run)
    return {
        "verdicts": sorted(tuple(str(each[name]) for name in _VERDICT) for each in verdict_rows(home, run)),
        "causes": sorted(tuple(str(each[name]) for name in _CAUSE) for each in cause_rows(home, run)),
        **{name: row[name] for name in ("timeline", "batch", "sequence", "as_of", "counts", "balance")},
        "late": row["late_by_partition"],
        "alerts": sorted(f"{alert['severity']} {alert['message']}" for alert in row["gate"]["alerts"]),
    }


def stream_chapter(lab: Lab, **changes: Any) -> None:
    """Produce the next chapter of the story, stream it to its end and add it to what is served, as the agent does."""
    lab.produce(lab.next_plan(**{"records": 160, "late_share": 0.2, **changes}))
    lab.run_to_end()
    rebuild_served(lab.home, lab.definition)


def require_passed(answer: dict[str, Any]) -> None:
    """Require that a reconcile's gate passed."""
    alerts = [alert["message"] for alert in answer["gate"]["alerts"] if alert["severity"] == "critical"]
    require(answer["gate"]["passed"], f"the gate of {answer['run']} did not pass: {alerts[:3]}")


def seal(lab: Lab) -> str:
    """Reconcile, and require that the run passed and ended with a seal; return its name."""
    answer = ask(lab, *RECONCILE)
    require_passed(answer)
    require(answer["run"] in sealed_runs(lab), f"{answer['run']} passed and left no seal")
    return str(answer["run"])


def sealed_runs(lab: Lab) -> list[str]:
    """Return the runs that ended with a seal."""
    return [each.run for each in read_seals(lab.home)]


def require_as_full(lab: Lab, run: str) -> str:
    """Require that a run says of every row and cause what a run over everything says; return the name of the latter."""
    full = ask(lab, *RECONCILE, "--full")
    require_passed(full)
    said, wanted = stored_run(lab.home, run), stored_run(lab.home, full["run"])
    for name, value in wanted.items():
        require(said[name] == value, f"{name} of {run} are not those of --full: {_difference(said[name], value)}")
    counts = wanted["counts"]
    require(all(counts[pair].get("AGREES") for pair in ("stream", "served")), f"nothing was compared: {counts}")
    lab.fact("counts", counts)
    return str(full["run"])


def require_once(lab: Lab) -> None:
    """Require that every run, and every row that is stored of one, exists once; and that each seal is of a run that exists."""
    runs = [row["run"] for row in reconcile_runs(lab.home)]
    seals = sealed_runs(lab)
    require(len(set(runs)) == len(runs), f"runs are stored twice: {Counter(runs).most_common(3)}")
    require(len(set(seals)) == len(seals) and set(seals) <= set(runs), f"seals {seals} of the runs {runs}")
    for table in ("verdicts", "causes"):
        rows = Table(getattr(lab.home.tables, table)).read()
        stored = Counter(tuple(map(str, row.values())) for row in ([] if rows is None else rows.to_pylist()))
        double = [row for row, count in stored.items() if count > 1]
        require(not double, f"{len(double)} rows of {table} are stored twice: {double[:2]}")


def _difference(said: Any, wanted: Any) -> str:
    if isinstance(said, list) and isinstance(wanted, list):
        return f"only here {[row for row in said if row not in wanted][:3]}, only there {[row for row in wanted if row not in said][:3]}"
    return f"{said}, not {wanted}"
