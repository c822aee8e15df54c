"""What the page shows of a pipeline's versions: plain values, for a pipeline that has more than one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rivertwice.config import Settings
from rivertwice.instants import to_iso
from rivertwice.orchestration.dag_names import dag_id
from rivertwice.supervise.health import observe_stream
from rivertwice.timeline.committed import committed_batches
from rivertwice.timeline.lineage import head_path
from rivertwice.versions.comparisons import StoredComparison
from rivertwice.versions.view import BACK, COMPARE, RECONCILE, SERVE, Step, VersionView, view_versions


def describe_versions(settings: Settings, pipeline: str, now: datetime) -> list[dict[str, Any]]:
    """Return a row for each open version, the first one too; none if there is no other."""
    if not settings.pipeline(pipeline).is_first_version:
        return []
    return [_row(settings, pipeline, view, now) for view in view_versions(settings, pipeline)]


def _row(settings: Settings, pipeline: str, view: VersionView, now: datetime) -> dict[str, Any]:
    home = settings.pipeline(view.name)
    return {
        "name": view.name,
        "serves": view.serves,
        "since": view.since,
        "began": view.began,
        "state": observe_stream(settings, view.name, now).state,
        "batches": len(committed_batches(home, head_path(home))),
        "proved_until": view.proved_until,
        "comparison": None if view.comparison is None else describe_comparison(view.comparison),
        "next": {"text": view.next.text, "dag": dag_of(pipeline, view.next)},
    }


def describe_comparison(stored: StoredComparison) -> dict[str, Any]:
    """Return what the page shows of a comparison. Pure."""
    return {
        "run": stored.run,
        "at": to_iso(stored.created_at),
        "by": stored.by,
        "beside": stored.beside,
        "start": stored.start,
        "end": stored.end,
        "passed": stored.passed,
        "policy": stored.policy,
        "counts": dict(stored.counts),
        "left_out": stored.left_out_windows,
        "expected": [{"reason": rule["reason"], "rows": rule["rows"]} for rule in stored.expected],
        "reasons": list(stored.reasons),
        "warnings": list(stored.warnings),
    }


def dag_of(pipeline: str, step: Step) -> str | None:
    """Return the DAG that does a step, with the value for its form, or None. Pure."""
    if step.act == RECONCILE:
        return dag_id("reconcile", step.version)
    if step.act not in (COMPARE, SERVE, BACK):
        return None
    return f"{dag_id('switch', pipeline)}, version {step.version}"
