"""What an open page asks again and again: a row of the overview, and the summary of one pipeline, as plain values.

They hold instants and no ages, and what changes every second is rounded, so an answer stays the same while nothing happens. What is
read is kept for two seconds in this process: ten open pages cost what one costs.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from rivertwice.cockpit.facts import Facts, instant_of
from rivertwice.cockpit.jobs import Job, find_jobs
from rivertwice.cockpit.now import Light, Now, decide_now
from rivertwice.cockpit.now_data import expected_every, why_stale
from rivertwice.cockpit.problems import BAD, CALM, GOOD, NONE, WARN, Problem, moment, share
from rivertwice.cockpit.read_facts import read_facts
from rivertwice.config import PipelineHome, Settings
from rivertwice.instants import from_ms, to_iso, to_ms
from rivertwice.metrics.ring import CURVES, LEVELS, read_level, ring_file
from rivertwice.pipeline.definition import Definition
from rivertwice.store.remembered import newest_commit
from rivertwice.supervise.health import AGENT_SILENT, SPEAKS_WITHIN
from rivertwice.supervise.lag_words import is_lag_fresh

KEPT_S = 2.0
BEATS = timedelta(seconds=10)
"""What changes every second is shown to this precision."""
SPARK_POINTS = 36
TABS = {
    "health": "Health", "correctness": "Correctness", "timelines": "Timelines", "backfills": "Backfills",
    "letters": "Dead letters", "alerts": "Alerts", "logs": "Logs",
}  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What was read of a pipeline, and what it comes to."""

    facts: Facts
    now: Now
    jobs: tuple[Job, ...]
    at: datetime


def see(settings: Settings, definition: Definition, now: datetime) -> Seen:
    """Return what is true of a pipeline; what this process read in the last two seconds is not read again."""
    key = (settings.home, definition.name)
    with _LOCK:
        kept = _SEEN.get(key)
    if kept is not None and time.monotonic() - kept[0] < KEPT_S:
        return kept[1]
    facts = read_facts(settings, definition, now)
    seen = Seen(facts, decide_now(facts, now), tuple(find_jobs(settings, facts)), now)
    with _LOCK:
        _SEEN[key] = (time.monotonic(), seen)
    return seen


def describe_row(settings: Settings, definition: Definition, now: datetime) -> dict[str, Any]:
    """Return a pipeline's row of the overview, without what runs in Airflow."""
    seen = see(settings, definition, now)
    facts = seen.facts
    return {
        "name": definition.name,
        "description": definition.description,
        "now": {"tone": seen.now.worst.level, "kind": seen.now.worst.kind, "sentence": seen.now.worst.headline},
        "lights": describe_lights(seen.now.lights, rules=False),
        "lag": {
            "points": spark_points(settings.pipeline(definition.name), now),
            "newest": facts.stream["lag"],
            "text": _lag_text(facts),
            "stale": _lag_stale(facts),
        },
        "verdict": None
        if facts.verdict is None
        else {"at": to_iso(facts.verdict.at), "stale": verdict_stale(facts, now)},
        "running": [describe_job(job) for job in seen.jobs],
    }


def describe_summary(settings: Settings, definition: Definition, now: datetime) -> dict[str, Any]:
    """Return what is polled of one pipeline, without what runs in Airflow: the sentence, lights, facts, counts and stamps."""
    seen = see(settings, definition, now)
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


def describe_facts(facts: Facts, now: datetime) -> Iterator[dict[str, Any]]:
    """Yield each fact with its text, the instant it is of, and why it is stale if it is older than it should be."""
    seen, view = facts.observation, facts.stream
    wanted = seen.intent is not None and seen.intent.desired == "running"
    beat = seen.heartbeat
    if seen.intent is not None:
        yield _fact("Wanted", f"{seen.intent.desired}, by {seen.intent.by}", seen.intent.updated_at, NONE)
    silent = wanted and (seen.agent_at is None or now - seen.agent_at > AGENT_SILENT)
    text = "never ran here" if seen.agent_at is None else "reports each second" if not silent else "does not report"
    yield _fact(
        "Agent",
        text,
        _rounded(seen.agent_at),
        BAD if silent else GOOD,
        "it should report each second" if silent else None,
    )
    if beat is not None:
        is_silent = seen.owner is not None and now - beat.at > SPEAKS_WITHIN
        driver = (
            f"{seen.state}, epoch {beat.epoch}, batch {view['batch']}"
            if seen.owner is not None
            else f"{seen.state}; the last one had epoch {beat.epoch}"
        )
        tone = {"running": GOOD, "idle": GOOD, "down": BAD if wanted else NONE, "unresponsive": BAD, "given_up": BAD}
        why = "it should report each second" if is_silent else None
        yield _fact("Driver", driver, _rounded(beat.at), tone.get(seen.state, CALM), why)
        yield _fact(
            "Lag",
            _lag_text(facts) or "not known",
            _rounded(instant_of(view["lag_at"])),
            GOOD if is_lag_fresh(view) else NONE,
            _lag_stale(facts),
        )
    watermark = instant_of(view["watermark"])
    if watermark is not None and beat is not None:
        yield _fact("Watermark", f"windows that ended by {moment(watermark)} are closed", _rounded(beat.at), NONE)
    if facts.head is not None:
        yield _fact(
            "Timeline",
            f"{facts.head.payload['timeline']} serves: {facts.head.payload['reason']}",
            facts.head.created_at,
            NONE,
        )
    if facts.published is not None:
        yield _fact("Published", f"{facts.published.payload['backfill']}", facts.published.created_at, NONE)
    yield from _judged(facts, now)
    if facts.savepoints is not None and facts.savepoints.proved_at is not None:
        proved, limit = facts.savepoints.proved_at, facts.savepoints.limit
        old = f"its limit is {_span(limit)}" if wanted and now - proved > limit else None
        yield _fact("Proved savepoint", "a fall-back can begin there", proved, WARN if old else GOOD, old)
    if facts.retention_at is not None and facts.retention is not None:
        summary = facts.retention.get("summary")
        yield _fact(
            "Retention", summary or "no record that is needed is at risk", facts.retention_at, WARN if summary else GOOD
        )
    if seen.last_exit is not None:
        last = seen.last_exit
        yield _fact(
            "Last end of a driver",
            f"{last.failure}, epoch {last.epoch}: {last.message[:200]}",
            last.at,
            NONE if last.clean else WARN,
        )


def _judged(facts: Facts, now: datetime) -> Iterator[dict[str, Any]]:
    verdict, quality = facts.verdict, facts.quality
    if verdict is not None:
        served = ", ".join(f"{word} {number}" for word, number in verdict.served.items() if number)
        late = (
            ""
            if verdict.late_share is None
            else f"; {share(verdict.late_share)} of the records came too late, the limit is {share(verdict.limit)}"
        )
        tone = BAD if not verdict.passed else WARN if verdict.findings else GOOD
        stale = verdict_stale(facts, now)
        yield _fact("Verdict on what is served", f"{served or 'no rows'}{late}", verdict.at, tone, stale)
        stream = ", ".join(f"{word} {number}" for word, number in verdict.stream.items() if number)
        yield _fact("Verdict on the stream", stream or "no rows", verdict.at, NONE, stale)
    if quality is not None:
        failing = ", ".join(f"{number} {word}" for word, number in quality["failing"].items() if number)
        text = (
            f"{failing} of {quality['expectations']} expectations fail"
            if failing
            else f"all {quality['expectations']} expectations hold"
        )
        yield _fact("Data quality", text, instant_of(quality["at"]), WARN if failing else GOOD)


def verdict_stale(facts: Facts, now: datetime) -> str | None:
    """Return why the newest verdict is stale, without an age; None if it is not."""
    verdict = facts.verdict
    if verdict is None:
        return None
    why = why_stale(facts)
    if why is not None:
        return why
    has_news = facts.stream.get("batch") is not None and facts.stream["batch"] != verdict.batch
    if has_news and facts.stream.get("desired") == "running" and now - verdict.at > expected_every(facts):
        return f"a new one is expected every {_span(expected_every(facts) / 2)}"
    return None


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
        "backfills": (sequence, newest_commit(tables.corrections), *_stats(home.backfills)),
        "letters": tuple(newest_commit(table) for table in (tables.dead_letters, tables.amendments, tables.late_rows)),
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


def _fact(name: str, text: str, at: datetime | None, tone: str, stale: str | None = None) -> dict[str, Any]:
    return {"name": name, "text": text, "at": None if at is None else to_iso(at), "tone": tone, "stale": stale}


def _rounded(at: datetime | None) -> datetime | None:
    """Return an instant that moves each second, to ten seconds: so an unchanged answer stays the same for as long."""
    step = BEATS // timedelta(milliseconds=1)
    return None if at is None else from_ms(to_ms(at) // step * step)


def _lag_text(facts: Facts) -> str | None:
    lag = facts.stream["lag"]
    if lag is None:
        return None if facts.stream["heartbeat_age_s"] is None else "not known"
    return f"{lag:,}"


def _lag_stale(facts: Facts) -> str | None:
    if facts.stream["heartbeat_age_s"] is None or is_lag_fresh(facts.stream):
        return None
    if facts.stream["driver"] is None:
        return "no driver lives to ask Kafka"
    return "the driver gets no answer from Kafka"


def _span(span: timedelta) -> str:
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if span.total_seconds() >= 2 * size:
            return f"{span.total_seconds() / size:g} {unit}"
    return f"{span.total_seconds():g} s"


_LOCK = threading.Lock()
_SEEN: dict[tuple[Path, str], tuple[float, Seen]] = {}
_SPARKS: dict[Path, tuple[int, list[int | None]]] = {}
