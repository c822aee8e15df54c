"""The versions of a pipeline side by side: what each serves, how far it is proved, how it compares, and what to do next."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rivertwice.config import Settings
from rivertwice.instants import iso_of_ms, to_iso
from rivertwice.supervise.health import observe_stream
from rivertwice.timeline.committed import committed_batches
from rivertwice.timeline.lineage import head_path
from rivertwice.versions.comparisons import StoredComparison
from rivertwice.versions.view import VersionView, view_versions


def describe_versions(settings: Settings, pipeline: str, now: datetime) -> list[dict[str, Any]]:
    """Return a row for each open version, the first one too; none if there is no other."""
    if not settings.pipeline(pipeline).is_first_version:
        return []
    return [_row(settings, view, now) for view in view_versions(settings, pipeline)]


def _row(settings: Settings, view: VersionView, now: datetime) -> dict[str, Any]:
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
        "accepted": None if view.accepted is None else view.accepted.plain(),
        "next": {"act": view.next.act, "text": view.next.text, "version": view.next.version},
    }


def describe_comparison(stored: StoredComparison) -> dict[str, Any]:
    """Return what is shown of a comparison. Pure; rows without a cause are named by their window and kind, not by their values."""
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
        "different": list(stored.different),
        "proofs": [
            {"version": proof.version, "run": proof.run, "until": proof.run and iso_of_ms(proof.until_ms)}
            for proof in stored.proofs
        ],
        "examples": [
            {"start": row["window_start"], "end": row["window_end"], "kind": row["kind"]} for row in stored.examples[:5]
        ],
    }
