"""What the page shows of a pipeline: plain values, read from the home again at each request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rivertwice.cockpit.versions import describe_versions
from rivertwice.config import PipelineHome, Settings
from rivertwice.instants import from_ms, to_iso
from rivertwice.orchestration.dag_names import dag_id, dag_of_step
from rivertwice.pipeline.definition import Definition
from rivertwice.reconcile.results import cause_rows, reconcile_runs, verdict_rows
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.store.files import read_json
from rivertwice.supervise.health import OK, classify_health, observe_stream
from rivertwice.supervise.lag_words import lag_text, stale_lag_text
from rivertwice.supervise.view import view_first_load, view_quality, view_stream, view_stream_load
from rivertwice.timeline.committed import committed_batches, newest_batches
from rivertwice.timeline.judgements import rows_of
from rivertwice.timeline.lineage import head_path
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served import served_stamp
from rivertwice.verdicts import AGREES, BY_GRAVITY

WINDOWS = 50
CAUSES = 3
TREND = 12
SAVEPOINTS = 8
ENTRIES = 10
ALERTS = 8


def describe_pipeline(settings: Settings, definition: Definition, now: datetime) -> dict[str, Any]:
    """Return everything the page shows about one pipeline."""
    home = settings.pipeline(definition.name)
    runs = reconcile_runs(home)
    return {
        "name": definition.name,
        "description": definition.description,
        "now": to_iso(now),
        "stream": _stream(settings, definition.name, now),
        "first_load": view_first_load(home) or view_stream_load(home),
        "ledger": _ledger(home),
        "timeline": _timeline(home),
        "savepoints": _savepoints(home),
        "reconcile": _reconcile(home, runs),
        "quality": view_quality(settings, home),
        "trend": [
            {"run": run["run"], "at": to_iso(run["created_at"]), "counts": run["counts"]} for run in runs[-TREND:]
        ],
        "alerts": _alerts(settings, definition.name),
        "versions": _versions(settings, definition.name, now),
        "reconcile_dag": dag_id("reconcile", definition.name),
    }


def _versions(settings: Settings, name: str, now: datetime) -> list[dict[str, Any]]:
    rows = describe_versions(settings, name, now)
    return [
        {**row, "next": {**row["next"], "dag": dag_of_step(name, row["next"]["act"], row["next"]["version"])}}
        for row in rows
    ]


def _ledger(home: PipelineHome) -> dict[str, Any] | None:
    """Return the sums over the head's path and its last batch; None before the first batch."""
    path = head_path(home)
    committed = committed_batches(home, path)
    if not len(committed):
        return None
    last = newest_batches(home, committed, path, 1)[-1]
    return {
        "batches": len(committed),
        "read": committed.total("read"),
        "accepted": committed.total("accepted"),
        "dead": committed.total("bad"),
        "emitted": committed.total("emitted"),
        "last": {
            "batch": last.batch,
            "timeline": last.timeline,
            "epoch": last.epoch,
            "read": last.read,
            "emitted": last.emitted,
            "watermark": _instant(last.batch_watermark_ms),
            "committed_at": to_iso(last.committed_at),
        },
    }


def describe_windows(
    verdicts: Iterable[Mapping[str, Any]], causes: Iterable[Mapping[str, Any]], limit: int = WINDOWS
) -> dict[str, Any]:
    """Return the result rows whose verdict is not AGREES in some pair, most serious first, with their causes by address.

    All rows of a window that agree, or are open, have one verdict without a key. It holds for a row that has none of its own.
    """
    rows: dict[tuple[Any, str | None], dict[str, Any]] = {}
    others: dict[Any, dict[str, str]] = {}
    for verdict in verdicts:
        place = (verdict["window_start"], verdict["key"])
        if verdict["key"] is None:
            others.setdefault(verdict["window_start"], {})[verdict["pair"]] = verdict["verdict"]
        row = rows.setdefault(
            place,
            {"start": verdict["window_start"], "key": verdict["key"], "pairs": {}, "late": 0, "reason": "", "rows": 0},
        )
        row["rows"] = max(row["rows"], rows_of(verdict))
        row["pairs"][verdict["pair"]] = verdict["verdict"]
        row["late"] = max(row["late"], verdict["late"])
        row["reason"] = row["reason"] or verdict["reason"]
    by_place: dict[tuple[Any, str | None], dict[tuple[Any, ...], Mapping[str, Any]]] = {}
    for cause in causes:
        address = (cause["cause"], cause["topic"], cause["partition"], cause["offset"])
        by_place.setdefault((cause["window_start"], cause["key"]), {}).setdefault(address, cause)
    for row in rows.values():
        row["pairs"] = {**others.get(row["start"], {}), **row["pairs"]}
    differing = [row for row in rows.values() if any(word != AGREES for word in row["pairs"].values())]
    differing.sort(
        key=lambda row: (
            min(_gravity(word) for word in row["pairs"].values()),
            -row["late"],
            row["start"],
            row["key"] or "",
        )
    )
    return {
        "total": len(differing),
        "rows": [
            _window(row, list(by_place.get((row["start"], row["key"]), {}).values())) for row in differing[:limit]
        ],
    }


def _window(row: Mapping[str, Any], causes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "start": to_iso(row["start"]),
        "key": _key(row),
        "stream": row["pairs"].get("stream"),
        "served": row["pairs"].get("served"),
        "late": row["late"],
        "reason": row["reason"],
        "more": max(len(causes) - CAUSES, 0),
        "causes": [
            {
                "cause": cause["cause"],
                "address": None
                if cause["offset"] is None
                else f"{cause['topic']}-{cause['partition']}@{cause['offset']}",
                "batch": cause["batch"],
                "event_time": to_iso(cause["event_time"]) if cause["event_time"] else None,
                "watermark": _instant(cause["late_watermark_ms"]),
                "detail": cause["detail"],
            }
            for cause in causes[:CAUSES]
        ],
    }


def _key(row: Mapping[str, Any]) -> str:
    if row["key"] is None:
        return f"{row['rows']} rows" if row["rows"] != 1 else "1 row"
    return ", ".join(str(value) for value in json.loads(row["key"]).values()) or "all"


def _gravity(word: str) -> int:
    return BY_GRAVITY.index(word) if word in BY_GRAVITY else 0


def _stream(settings: Settings, name: str, now: datetime) -> dict[str, Any]:
    observation = observe_stream(settings, name, now)
    health = classify_health(observation, now)
    agent = read_json(settings.home / "agent" / "heartbeat.json") or {}
    beat = observation.heartbeat
    return {
        "healthy": health.word == OK,
        "message": health.message,
        "desired": None
        if observation.intent is None
        else {
            "desired": observation.intent.desired,
            "by": observation.intent.by,
            "at": to_iso(observation.intent.updated_at),
        },
        "agent": {
            "age_s": None if observation.agent_at is None else (now - observation.agent_at).total_seconds(),
            "reason": (agent.get("pipelines") or {}).get(name, {}).get("reason"),
        },
        "driver": None
        if beat is None
        else {
            "state": observation.state,
            "epoch": beat.epoch,
            "pid": beat.pid,
            "age_s": (now - beat.at).total_seconds(),
            "batch": beat.batch,
            "watermark": _instant(beat.watermark_ms),
        },
        "lag": describe_lag(view_stream(settings, name, now, observation)),
        "last_exit": None
        if observation.last_exit is None
        else {
            "class": observation.last_exit.failure,
            "at": to_iso(observation.last_exit.at),
            "epoch": observation.last_exit.epoch,
        },
    }


def describe_lag(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lag as `rivertwice status` shows it, with why it is not known now, and the pace of a driver that responds."""
    return {"text": lag_text(item), "stale": stale_lag_text(item), "rows_per_s": item["rows_per_s"]}


def _timeline(home: PipelineHome) -> dict[str, Any]:
    entries = read_sequence(home)
    stamp = served_stamp(home)
    return {
        "path": [{"timeline": part.timeline, "first": part.first, "last": part.last} for part in head_path(home)],
        "sequence": entries[-1].seq if entries else 0,
        "served": None if stamp is None else {"sequence": stamp.sequence, "batch": stamp.batch},
        "entries": [
            {
                "seq": entry.seq,
                "kind": entry.kind,
                "at": to_iso(entry.created_at),
                "text": _entry_text(entry.kind, entry.payload),
            }
            for entry in reversed(entries[-ENTRIES:])
        ],
    }


def _entry_text(kind: str, payload: Mapping[str, Any]) -> str:
    if kind == "head":
        return f"{payload['timeline']} serves: {payload['reason']}"
    ranges = payload["ranges"]
    first, last = min(start for start, _ in ranges), max(end for _, end in ranges)
    return f"{payload['backfill']}, {len(ranges)} range{'s'[: len(ranges) != 1]} within {_instant(first)} to {_instant(last)}"


def _savepoints(home: PipelineHome) -> dict[str, Any]:
    savepoints = list_savepoints(home)
    return {
        "total": len(savepoints),
        "proved": sum(savepoint.status == "proved" for savepoint in savepoints),
        "rows": [
            {
                "id": savepoint.id,
                "status": savepoint.status,
                "timeline": savepoint.manifest.timeline,
                "batch": savepoint.manifest.batch,
                "at": to_iso(savepoint.manifest.created_at),
                "bytes": savepoint.manifest.size,
                "pinned": savepoint.pinned,
                "reason": savepoint.manifest.reason,
            }
            for savepoint in reversed(savepoints[-SAVEPOINTS:])
        ],
    }


def _reconcile(home: PipelineHome, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not runs:
        return None
    run = runs[-1]
    return {
        "run": run["run"],
        "at": to_iso(run["created_at"]),
        "timeline": run["timeline"],
        "batch": run["batch"],
        "sequence": run["sequence"],
        "counts": run["counts"],
        "balance": run["balance"],
        "late_by_partition": run["late_by_partition"],
        "gate": {"passed": run["gate"]["passed"], "alerts": run["gate"]["alerts"]},
        "duration_s": run["duration_s"],
        "windows": describe_windows(verdict_rows(home, run["run"]), cause_rows(home, run["run"])),
    }


def _alerts(settings: Settings, name: str) -> list[dict[str, Any]]:
    path = settings.home / "alerts.jsonl"
    if not path.exists():
        return []
    with path.open("rb") as handle:
        handle.seek(max(path.stat().st_size - 200_000, 0))
        lines = handle.read().decode(errors="replace").splitlines()
    rows = []
    for line in reversed(lines):
        try:
            alert = json.loads(line)
        except ValueError:
            continue  # the first line of the tail may be cut
        if isinstance(alert, dict) and alert.get("pipeline") == name:
            row = {key: alert.get(key) for key in ("at", "severity", "kind", "message")}
            if alert.get("status") == "resolved":
                row |= {"severity": "resolved", "message": alert.get("resolution")}
            rows.append(row)
        if len(rows) == ALERTS:
            break
    return rows


def _instant(epoch_ms: int | None) -> str | None:
    return None if not epoch_ms else to_iso(from_ms(epoch_ms))
