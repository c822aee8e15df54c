"""The alerts of a pipeline by cause: what lasts, who knows of it, what to do next, and when the same was there before. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rivertwice.agent.alert_kinds import meaning_of, next_command
from rivertwice.agent.alert_model import RESOLVED, Alert, AlertCause, RouteState, State, due, open_alerts
from rivertwice.agent.alert_routes import Routes
from rivertwice.core.instants import to_iso
from rivertwice.core.settings import Settings
from rivertwice.core.text import printable_line
from rivertwice.upkeep.window_repairs import RUNNING, WAITING, RepairRecord, count_rows, describe

MOST_READ = 400_000  # bytes of `alerts.jsonl` that are read from its end
MOST_EARLIER = 5
"""Earlier times of one cause that are listed; the others are counted."""

NEXT_ACTS: Mapping[str, tuple[str, ...]] = {
    "defect": ("repair",),
    "late_share": ("repair",),
    "nothing_compared": ("reconcile",),
    "not_comparable": ("reconcile",),
    "partitions_added": ("reconcile",),
    "foreign_write": ("reconcile",),
    "archive": ("archive",),
    "retention": ("archive",),
    "savepoint_stale": ("rotate",),
    "recovery": ("rotate",),
    "unproved_start": ("rotate",),
}
"""Kind of alert to the acts that may end it; for other kinds the page shows the command."""


def describe_alerts(
    settings: Settings,
    pipeline: str,
    state: State,
    routes: Routes,
    past: Iterable[Mapping[str, Any]],
    repairs: Sequence[RepairRecord],
) -> dict[str, Any]:
    """Return what the page shows of a pipeline's alerts, and of those that concern the whole home. Pure; instants are texts.

    Args:
        settings: for the commands.
        pipeline: its name.
        state: of all alerts.
        routes: that are configured.
        past: lines of `alerts.jsonl`, oldest first.
        repairs: of the pipeline, oldest first.
    """
    episodes = _episodes(past, pipeline)
    lasting = [alert for alert in open_alerts(state) if alert.cause.pipeline in ("", pipeline)]
    under_way = [record for record in repairs if record.outcome in (WAITING, RUNNING)]
    opened = [_lasting(settings, alert, routes, episodes[_key(alert.cause)], under_way) for alert in lasting]
    lasting_keys = {_key(alert.cause) for alert in lasting}
    over = [
        {
            **_cause(AlertCause(*key)),
            "times": len(ended),
            "earlier": list(reversed(ended))[:MOST_EARLIER],
            **_newest(ended),
        }
        for key, ended in episodes.items()
        if key not in lasting_keys and ended
    ]
    return {
        "open": opened,
        "over": sorted(over, key=lambda group: str(group["until"]), reverse=True),
        "routes": [_route(name, route.to, route.severities, state) for name, route in routes.routes.items()],
        "repairs": [_repair(record) for record in reversed(repairs)],
    }


def read_past(path: Path, most: int = MOST_READ) -> list[dict[str, Any]]:
    """Return the last lines of `alerts.jsonl`, oldest first; a truncated or damaged line is left out."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - most, 0))
            data = file.read(most)
    except FileNotFoundError:
        return []
    lines = []
    for line in data.splitlines()[1 if size > most else 0 :]:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            lines.append(value)
    return lines


def _lasting(
    settings: Settings,
    alert: Alert,
    routes: Routes,
    earlier: Sequence[Mapping[str, Any]],
    under_way: Sequence[RepairRecord],
) -> dict[str, Any]:
    due_to = [name for name, route in routes.routes.items() if due([alert], name, route.severities)]
    known = None
    if alert.acknowledged_by:
        known = {"by": alert.acknowledged_by, "at": _iso(alert.acknowledged_at), "why": alert.acknowledgement}
    repair = next((record for record in under_way if alert.cause.kind in record.proposal.kinds), None)
    return {
        **_cause(alert.cause),
        "id": alert.id,
        "severity": alert.severity,
        "message": printable_line(alert.message),
        "since": to_iso(alert.since),
        "seen_at": to_iso(alert.seen_at),
        "over_at": _iso(alert.resolved_at),
        "resolution": printable_line(alert.resolution),
        "times": alert.times,
        "acknowledged": known,
        "sent_to": sorted(alert.sent),
        "waits_for": due_to,
        "dag": alert.details.get("dag"),
        "run": alert.details.get("run"),
        "repair": alert.details.get("repair") or None,
        "repair_under_way": None if repair is None else _repair(repair),
        "command": next_command(settings, alert.cause),
        "acts": list(NEXT_ACTS.get(alert.cause.kind, ())) if alert.cause.pipeline else [],
        "earlier": list(reversed(earlier))[:MOST_EARLIER],
        "earlier_times": len(earlier),
    }


def _cause(cause: AlertCause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "subject": cause.subject,
        "whole_home": not cause.pipeline,
        "meaning": meaning_of(cause),
    }


def _key(cause: AlertCause) -> tuple[str, str, str]:
    return cause.pipeline, cause.kind, cause.subject


def _episodes(past: Iterable[Mapping[str, Any]], pipeline: str) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Return cause to the times that it was over, oldest first."""
    episodes: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in past:
        of = line.get("pipeline") or ""
        if of in ("", pipeline) and line.get("status") == RESOLVED:
            names = ("id", "severity", "since", "until", "message", "resolution", "acknowledged_by", "acknowledgement")
            episodes[of, str(line.get("kind")), str(line.get("subject") or "")].append({n: line.get(n) for n in names})
    return episodes


def _newest(ended: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: ended[-1][name] for name in ("severity", "since", "until", "message", "resolution")}


def _route(name: str, to: str, severities: Iterable[str], state: State) -> dict[str, Any]:
    known = state.routes.get(name, RouteState())
    return {
        "route": name,
        "to": to,
        "severities": list(severities),
        "waiting": len(due(state.alerts, name, severities)),
        "failures": known.failures,
        "error": known.error,
    }


def _repair(record: RepairRecord) -> dict[str, Any]:
    """Return a repair in words."""
    return {
        "run": record.id,
        "outcome": record.outcome,
        "at": to_iso(record.at),
        "ended_at": _iso(record.ended_at),
        "by": record.by,
        "reason": record.reason,
        "backfill": record.backfill,
        "reconcile": record.proposal.reconcile,
        "what": describe(record.proposal),
        "windows": record.proposal.windows,
        "records": record.proposal.records,
        "before": count_rows(record.proposal.rows),
        "after": None if record.after is None else count_rows(record.after),
        "note": record.note,
    }


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else to_iso(instant)
