"""Each fact of a pipeline as a line: its text, the instant it is of, its tone, and why it is stale. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from rivertwice.agent import SPEAKS_WITHIN, Unreadable
from rivertwice.core import from_ms, to_ms
from rivertwice.read.facts import Facts
from rivertwice.read.now import agent_lives, expected_every, served_keeps_up, served_until, why_stale
from rivertwice.read.problems import BAD, CALM, GOOD, NONE, WARN, moment, share
from rivertwice.timeline import Verdict

BEATS = timedelta(seconds=10)
"""What changes every second is shown to this precision."""


@dataclass(frozen=True)
class FactLine:
    """A fact: its name and text, the instant that it is of, its tone, and why it is stale.

    Attributes:
        to_s: the instant is given to so many seconds; None: exactly.
    """

    name: str
    text: str
    at: datetime | None
    tone: str
    stale: str | None = None
    to_s: int | None = None


def describe_facts(facts: Facts, now: datetime) -> Iterator[FactLine]:
    """Yield each fact with its text, the instant it is of, and why it is stale if it is older than it should be."""
    seen, view = facts.observation, facts.stream
    wanted = seen.intent is not None and seen.intent.desired == "running"
    beat = seen.heartbeat
    if seen.intent is not None:
        yield FactLine("Wanted", f"{seen.intent.desired}, by {seen.intent.by}", seen.intent.updated_at, NONE)
    silent = wanted and not agent_lives(facts, now)
    text = "never ran here" if seen.agent_at is None else "reports each second" if not silent else "does not report"
    yield _beat(
        "Agent",
        text,
        seen.agent_at,
        BAD if silent else GOOD,
        "it should report each second" if silent else None,
    )
    if beat is not None:
        is_silent = seen.owner is not None and now - beat.at > SPEAKS_WITHIN
        driver = (
            f"{seen.state}, epoch {beat.epoch}, batch {view.batch}"
            if seen.owner is not None
            else f"{seen.state}; the last one had epoch {beat.epoch}"
        )
        tone = {"running": GOOD, "idle": GOOD, "down": BAD if wanted else NONE, "unresponsive": BAD, "given_up": BAD}
        why = "it should report each second" if is_silent else None
        yield _beat("Driver", driver, beat.at, tone.get(seen.state, CALM), why)
        yield _beat(
            "Lag",
            lag_count(facts) or "not known",
            view.lag_at,
            GOOD if view.is_lag_fresh else NONE,
            why_lag_is_stale(facts),
        )
    if view.watermark is not None and beat is not None:
        yield _beat("Watermark", f"windows that ended by {moment(view.watermark)} are closed", beat.at, NONE)
    served = view.served
    if not isinstance(served, Unreadable) and served.until is not None:
        waits = None if served_keeps_up(facts, now) else "no agent adds what is committed"
        yield FactLine("Served", served_until(facts, now), None, WARN if waits else NONE, waits)
    if facts.head is not None:
        yield FactLine(
            "Timeline",
            f"{facts.head.payload['timeline']} serves: {facts.head.payload['reason']}",
            facts.head.created_at,
            NONE,
        )
    if facts.published is not None:
        yield FactLine("Published", f"{facts.published.payload['backfill']}", facts.published.created_at, NONE)
    yield from _judged(facts, now)
    if facts.savepoints is not None and facts.savepoints.proved_at is not None:
        proved, limit = facts.savepoints.proved_at, facts.savepoints.limit
        old = f"its limit is {_span(limit)}" if wanted and now - proved > limit else None
        yield FactLine("Proved savepoint", "a fall-back can begin there", proved, WARN if old else GOOD, old)
    if facts.retention_at is not None and facts.retention is not None:
        summary = facts.retention.summary
        yield FactLine(
            "Retention", summary or "no record that is needed is at risk", facts.retention_at, WARN if summary else GOOD
        )
    if not facts.told:
        yield FactLine("Alerts go to", "nobody: no route is configured", None, NONE)
    if seen.last_exit is not None:
        last = seen.last_exit
        yield FactLine(
            "Last end of a driver",
            f"{last.failure}, epoch {last.epoch}: {last.message[:200]}",
            last.at,
            NONE if last.clean else WARN,
        )


def _judged(facts: Facts, now: datetime) -> Iterator[FactLine]:
    verdict, quality = facts.verdict, facts.quality
    if verdict is not None:
        served = ", ".join(f"{word} {number}" for word, number in verdict.served.items() if number)
        late = (
            ""
            if verdict.late_share is None
            else f"; {share(verdict.late_share)} of the records came too late, the limit is {share(verdict.limit)}"
        )
        if late and verdict.stream.get(Verdict.LATE, 0) and not verdict.served.get(Verdict.LATE, 0):
            late += ", and what is served is put right"
        lacks = (
            verdict.late_share is not None
            and verdict.late_share > verdict.limit
            and verdict.served.get(Verdict.LATE, 0)
        )
        open_ones = [each for each in verdict.findings if lacks or "late_share" not in (each.kind, each.repeats)]
        tone = BAD if not verdict.passed or lacks else WARN if open_ones else GOOD
        stale = verdict_stale(facts, now)
        yield FactLine("Verdict on what is served", f"{served or 'no rows'}{late}", verdict.at, tone, stale)
        stream = ", ".join(f"{word} {number}" for word, number in verdict.stream.items() if number)
        yield FactLine("Verdict on the stream", stream or "no rows", verdict.at, NONE, stale)
    if quality is not None:
        failing = ", ".join(f"{number} {word}" for word, number in quality.failing.items() if number)
        text = (
            f"{failing} of {quality.expectations} expectations fail"
            if failing
            else f"all {quality.expectations} expectations hold"
        )
        yield FactLine("Data quality", text, quality.at, WARN if failing else GOOD)


def verdict_stale(facts: Facts, now: datetime) -> str | None:
    """Return why the newest verdict is stale, without an age; None if it is not."""
    verdict = facts.verdict
    if verdict is None:
        return None
    why = why_stale(facts)
    if why is not None:
        return why
    has_news = facts.stream.batch is not None and facts.stream.batch != verdict.batch
    if has_news and facts.stream.desired == "running" and now - verdict.at > expected_every(facts):
        return f"a new one is expected every {_span(expected_every(facts) / 2)}"
    return None


def _beat(name: str, text: str, at: datetime | None, tone: str, stale: str | None = None) -> FactLine:
    """Return a fact whose instant moves each second; it is given to ten seconds: an unchanged answer stays the same for as long."""
    step = BEATS // timedelta(milliseconds=1)
    rounded = None if at is None else from_ms(to_ms(at) // step * step)
    return FactLine(name, text, rounded, tone, stale, to_s=BEATS // timedelta(seconds=1))


def lag_count(facts: Facts) -> str | None:
    """Return the lag as a number with commas; None if nothing ever ran."""
    lag = facts.stream.lag
    if lag is None:
        return None if facts.stream.heartbeat_age_s is None else "not known"
    return f"{lag:,}"


def why_lag_is_stale(facts: Facts) -> str | None:
    """Return why the lag is not of now; None if it is, or nothing ever ran."""
    if facts.stream.heartbeat_age_s is None or facts.stream.is_lag_fresh:
        return None
    if facts.stream.driver is None:
        return "no driver is running to ask Kafka"
    return "the driver gets no answer from Kafka"


def _span(span: timedelta) -> str:
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if span.total_seconds() >= 2 * size:
            return f"{span.total_seconds() / size:g} {unit}"
    return f"{span.total_seconds():g} s"
