"""What an open page asks again and again: a row of the overview, and the summary of one pipeline, as plain values.

They hold instants and no ages, and what changes every second is rounded, so an answer stays the same while nothing happens. What is
read is kept for two seconds in this process: ten open pages cost what one costs.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rivertwice.agent.ring import CURVES, LEVELS, read_level, ring_file
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import to_iso
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition
from rivertwice.read.fact_lines import describe_facts, lag_count, verdict_stale, why_lag_is_stale
from rivertwice.read.facts import Facts
from rivertwice.read.now import Light, Now, decide_now
from rivertwice.read.problems import Problem
from rivertwice.read.read_facts import read_facts
from rivertwice.storage import Table

if TYPE_CHECKING:
    from rivertwice.read.jobs import Job

KEPT_S = 2.0
SPARK_POINTS = 36
TABS = {
    "health": "Health", "correctness": "Correctness", "timelines": "Timelines", "backfills": "Backfills",
    "letters": "Dead letters", "alerts": "Alerts", "logs": "Logs",
}  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """What was read of a pipeline, and what it comes to."""

    facts: Facts
    now: Now
    jobs: tuple[Job, ...]
    at: datetime


def read_cached(settings: Settings, definition: Definition, now: datetime) -> Snapshot:
    """Return what is true of a pipeline; what this process read in the last two seconds is not read again."""
    key = (settings.home, definition.name)
    with _LOCK:
        kept = _SEEN.get(key)
    if kept is not None and time.monotonic() - kept[0] < KEPT_S:
        return kept[1]
    from rivertwice.read.jobs import find_jobs  # plans of backfills, which `rivertwice status` does not show

    facts = read_facts(settings, definition, now)
    seen = Snapshot(facts, decide_now(facts, now), tuple(find_jobs(settings, facts)), now)
    with _LOCK:
        _SEEN[key] = (time.monotonic(), seen)
    return seen


def describe_row(settings: Settings, definition: Definition, now: datetime) -> dict[str, Any]:
    """Return a pipeline's row of the overview, without what runs in Airflow."""
    seen = read_cached(settings, definition, now)
    facts = seen.facts
    return {
        "name": definition.name,
        "description": definition.description,
        "now": {"tone": seen.now.worst.level, "kind": seen.now.worst.kind, "sentence": seen.now.worst.headline},
        "lights": describe_lights(seen.now.lights, rules=False),
        "lag": {
            "points": spark_points(settings.pipeline(definition.name), now),
            "newest": facts.stream["lag"],
            "text": lag_count(facts),
            "stale": why_lag_is_stale(facts),
        },
        "verdict": None
        if facts.verdict is None
        else {"at": to_iso(facts.verdict.at), "stale": verdict_stale(facts, now)},
        "running": [describe_job(job) for job in seen.jobs],
    }


def describe_summary(settings: Settings, definition: Definition, now: datetime) -> dict[str, Any]:
    """Return what is polled of one pipeline, without what runs in Airflow: the sentence, lights, facts, counts and stamps."""
    seen = read_cached(settings, definition, now)
    return {
        "name": definition.name,
        "description": definition.description,
        "now": {**describe_problem(seen.now.worst), "others": [describe_problem(each) for each in seen.now.others]},
        "lights": describe_lights(seen.now.lights, rules=True),
        "facts": list(describe_facts(seen.facts, now)),
        "running": [describe_job(job) for job in seen.jobs],
        "counts": {"alerts": len(seen.facts.alerts)},
        "stamps": stamps_of(settings, seen.facts, now),
    }


def describe_problem(problem: Problem) -> dict[str, Any]:
    """Return a problem as plain values; `sentence` is what is wrong, the other parts stand beside it."""
    return {
        "tone": problem.level,
        "kind": problem.kind,
        "sentence": problem.headline,
        "since": None if problem.since is None else to_iso(problem.since),
        "touches": f"{problem.touches[:1].upper()}{problem.touches[1:]}." if problem.touches else "",
        "next": problem.next,
        "act": {"tab": problem.tab, "text": f"Open {TABS[problem.tab]}"} if problem.tab else None,
    }


def describe_lights(lights: Sequence[Light], *, rules: bool) -> dict[str, Any]:
    """Return the lights by name, each with its rule in words if asked for."""
    return {
        light.name: {"tone": light.tone, "word": light.word, **({"title": light.rule} if rules else {})}
        for light in lights
    }


def describe_job(job: Job) -> dict[str, Any]:
    """Return a piece of work as plain values."""
    return {
        "title": job.title,
        "state": job.state,
        "since": None if job.since is None else to_iso(job.since),
        "done": job.done,
        "total": job.total,
        "of": job.of,
    }


def spark_points(home: PipelineHome, now: datetime) -> list[int | None]:
    """Return the lag of the last six hours in 36 points, oldest first, the largest of each ten minutes; None where it is not known.

    It is read once a minute.
    """
    minute = int(now.timestamp()) // 60
    with _LOCK:
        kept = _SPARKS.get(home.root)
    if kept is not None and kept[0] == minute:
        return kept[1]
    level = LEVELS[1]
    slots = read_level(ring_file(home), level, now)
    points: list[int | None] = [None] * SPARK_POINTS
    width = int(level.span.total_seconds()) // SPARK_POINTS
    first = level.start_of(now) - 299 * level.step_s
    lags = slots["most"][:, CURVES.index("lag")] if len(slots) else np.empty(0)
    for start, lag in zip(slots["start"].tolist(), lags.tolist(), strict=True):
        place = min((start - first) // width, SPARK_POINTS - 1)
        if not math.isnan(lag) and place >= 0:
            points[place] = max(points[place] or 0, int(lag))
    if not any(point is not None for point in points):
        points = []
    with _LOCK:
        _SPARKS[home.root] = (minute, points)
    return points


def stamps_of(settings: Settings, facts: Facts, now: datetime) -> dict[str, str]:
    """Return a short text for each tab that changes when the data of that tab changed. Files and tables are looked at, not read."""
    home = settings.pipeline(facts.name)
    tables = home.tables
    sequence = max((entry.seq for entry in (facts.head, facts.published) if entry is not None), default=0)
    run = "" if facts.verdict is None else facts.verdict.run
    operation = "" if facts.operation is None else f"{facts.operation.id}/{facts.operation.step}"
    parts: Mapping[str, tuple[object, ...]] = {
        "health": (int(now.timestamp()) // 60, sequence),
        "correctness": (run, sequence),
        "timelines": (
            sequence,
            operation,
            _stat(home.operations),
            *_stats(home.savepoints),
            _stat(home.root / "timelines"),
        ),
        "backfills": (sequence, Table(tables.corrections).newest_commit(), *_stats(home.backfills)),
        "letters": tuple(
            Table(table).newest_commit() for table in (tables.dead_letters, tables.amendments, tables.late_rows)
        ),
        "alerts": (_stat(settings.home / "alerts" / "state.json"), _stat(home.repairs), run, sequence),
    }
    return {tab: hashlib.sha256(repr(each).encode()).hexdigest()[:10] for tab, each in parts.items()}


def _stat(path: object) -> int:
    try:
        return Path(str(path)).stat().st_mtime_ns
    except OSError:
        return -1


def _stats(folder: object) -> tuple[int, ...]:
    """Return when a folder and the folders in it were changed, the newest 50 of them."""
    try:
        inner = [_stat(each) for each in Path(str(folder)).iterdir()]
    except OSError:
        return (-1,)
    return (_stat(folder), *sorted(inner, reverse=True)[:50])


_LOCK = threading.Lock()
_SEEN: dict[tuple[Path, str], tuple[float, Snapshot]] = {}
_SPARKS: dict[Path, tuple[int, list[int | None]]] = {}
