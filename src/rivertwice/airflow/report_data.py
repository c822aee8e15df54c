"""The report of one run: a reconcile, a comparison of versions or a backfill, as the page shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivertwice.backfill import explain_plan, load_backfill_plan
from rivertwice.core import RequestError, Settings, require_name
from rivertwice.reconcile import reconcile_runs
from rivertwice.versions import find_comparison

RECONCILE, COMPARISON = "rc-", "pc-"


@dataclass(frozen=True)
class RunReport:
    """A run: what it is, its name, when it was stored, whether it passed (None: it judges nothing), and what it found."""

    kind: str
    run: str
    at: datetime | None
    passed: bool | None
    lines: tuple[str, ...]


def find_report(settings: Settings, pipeline: str, run: str) -> RunReport:
    """Return the report of a run.

    Args:
        pipeline: its name, or that of a version.
        run: its name, as the commands and the DAGs show it.

    Raises:
        RequestError: there is no such pipeline, or nothing of that run is stored.
    """
    home = settings.pipeline(settings.known_pipeline(pipeline))
    require_name(run, "run")
    if run.startswith(COMPARISON):
        stored = find_comparison(home, run)
        if stored is not None:
            lines = [stored.verdict, *stored.reasons, *(f"warning: {text}" for text in stored.warnings)]
            return RunReport("comparison of versions", run, stored.created_at, stored.passed, tuple(lines))
    elif run.startswith(RECONCILE):
        found = next((each for each in reconcile_runs(home) if each["run"] == run), None)
        if found is not None:
            passed = bool(found["gate"]["passed"])
            return RunReport("reconcile", run, found["created_at"], passed, tuple(reconcile_lines(found)))
    else:
        return RunReport("backfill", run, None, None, tuple(explain_plan(load_backfill_plan(home, run)).splitlines()))
    message = (
        f"nothing of the run {run} of {pipeline} is stored: its job ended before it wrote its result, or the result is older than "
        "what is kept; the task's log says more"
    )
    raise RequestError(message)


def reconcile_lines(run: Mapping[str, Any]) -> list[str]:
    """Return what a reconcile found, one fact a line. Pure.

    Args:
        run: as `reconcile_runs` gives it.
    """
    lines = [
        f"{pair} against truth: " + ", ".join(f"{number} {word}" for word, number in counts.items() if number)
        for pair, counts in run["counts"].items()
    ]
    lines += [f"{alert['severity']}: {alert['kind']}: {alert['message']}" for alert in run["gate"]["alerts"]]
    if run["gate"].get("reason"):
        lines.append(f"reason: {run['gate']['reason']}")
    lines.append(f"as of batch {run['batch']} of {run['timeline']}, entry {run['sequence']} of the sequence")
    return lines
