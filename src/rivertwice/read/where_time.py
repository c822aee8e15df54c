"""Where the time goes: of the newest batches, of the last reconcile and of the last backfill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from rivertwice.agent import CURVES, LEVELS, RingLevel
from rivertwice.backfill import list_backfills, read_audit
from rivertwice.core import PipelineHome, from_ms, parse_iso
from rivertwice.definition import Definition
from rivertwice.read.time_advice import (
    DOWN,
    IDLE,
    PHASES,
    TimeAdvice,
    Usual,
    advise,
    phases_of,
    reason_of,
    state_least,
)
from rivertwice.reconcile import newest_reconcile
from rivertwice.timeline import BatchTimes, Heartbeat

MOST_STEPS = 48
SLOWEST = 10
LEAST_GROWTH = timedelta(minutes=30)
"""The state's growth is told from two samples that are at least so far apart."""
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class TimeStep:
    """A step of the time that is shown: when it begins (epoch s), and its seconds by phase, `idle` and `no driver`."""

    at: float
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class SlowBatch:
    """One of the slowest batches.

    Attributes:
        state_s: the least seconds of the clock that the state took of it, a part of `rows`.
        reason: the phase that took most of it, and why, if a figure says that.
    """

    timeline: str
    batch: int
    at: datetime
    seconds: float
    phases: Mapping[str, float]
    state_s: float
    read: int
    emitted: int
    reason: str


@dataclass(frozen=True)
class StateSize:
    """The size of a stream's state.

    Attributes:
        bytes: of its files in the live checkpoint, by the agent's newest sample. per_day: by how much they grow, since `since`.
        updated, removed: rows of it that a batch puts in and takes out, on average. Rows are not counted: that would read each key.
    """

    bytes: float | None
    per_day: float | None
    since: datetime | None
    updated: float
    removed: float


@dataclass(frozen=True)
class RunSteps:
    """The steps of the last reconcile or backfill, with their seconds, the longest first. rows: that it judged or computed, if that is known."""

    kind: str
    id: str
    at: datetime | None
    rows: int | None
    seconds: Mapping[str, float]
    slowest: str


@dataclass(frozen=True)
class WhereTime:
    """Where the time of a pipeline went.

    Attributes:
        from_, to: what is shown: of the range, the part in which batches are known. batches: how many.
        names: phase to words. sums: phase to seconds.
    """

    from_: datetime | None
    to: datetime | None
    step_s: float
    batches: int
    names: Mapping[str, str]
    sums: Mapping[str, float]
    steps: Sequence[TimeStep]
    slowest: Sequence[SlowBatch]
    state: StateSize
    advice: Sequence[TimeAdvice]
    runs: Sequence[RunSteps]


def describe_time(home: PipelineHome, definition: Definition, level: RingLevel, now: datetime) -> WhereTime:
    """Return where the time went in a range that ends now."""
    batches = [each for each in BatchTimes.newest(home) if each.end > now - level.span]
    beat = Heartbeat.load(home)
    until = beat.at if beat is not None and batches and beat.epoch == batches[-1].epoch else None
    spans = spans_of(batches, until)
    idle = [(end - start).total_seconds() for start, end, seconds in spans if IDLE in seconds]
    first = {each.at for each in batches if each.batch == 0}
    first |= {each.at for before, each in pairwise(batches) if before.epoch != each.epoch}
    later = [each for each in batches if each.at not in first]
    usual = Usual.of(batches) if batches else Usual(0, 0)
    worst = sorted(batches, key=lambda each: each.ms, reverse=True)[:SLOWEST]
    start, end = (spans[0][0], spans[-1][1]) if spans else (None, None)
    step_s = 1.0 if start is None or end is None else max(1.0, (end - start).total_seconds() / MOST_STEPS)
    steps = steps_of(spans, step_s)
    return WhereTime(
        start,
        end,
        round(step_s, 3),
        len(batches),
        {**PHASES, IDLE: "waiting for records", DOWN: "no driver, or one that starts"},
        {name: round(sum(step.seconds.get(name, 0.0) for step in steps), 3) for name in (*PHASES, IDLE, DOWN)},
        steps,
        [_slow(each, usual, is_first=each.at in first) for each in worst],
        _state(home, batches, now),
        advise(later, idle, definition),
        [*_reconcile(home), *_backfill(home)],
    )


Span = tuple[datetime, datetime, Mapping[str, float]]
"""From, to, and the seconds in between by phase."""


def spans_of(batches: Sequence[BatchTimes], until: datetime | None) -> list[Span]:
    """Return the batches, in the order in which they ran, and what is between them. Pure.

    Args:
        until: to when the driver of the last batch is known to live; None: not known.
    """
    spans: list[Span] = []
    for before, each in pairwise([None, *batches]):
        if each is None:
            continue
        if before is not None and each.at > before.end:
            between = IDLE if each.epoch == before.epoch else DOWN
            spans.append((before.end, each.at, {between: (each.at - before.end).total_seconds()}))
        spans.append((each.at, each.end, phases_of(each)))
    if batches and until is not None and until > batches[-1].end:
        spans.append((batches[-1].end, until, {IDLE: (until - batches[-1].end).total_seconds()}))
    return spans


def steps_of(spans: Sequence[Span], step_s: float) -> list[TimeStep]:
    """Return the seconds of equal steps by phase; a batch that is in several steps is spread over them. Pure."""
    steps: dict[int, dict[str, float]] = {}
    if not spans:
        return []
    zero = spans[0][0].timestamp()
    for start, end, seconds in spans:
        begin, stop = start.timestamp() - zero, end.timestamp() - zero
        for place in range(int(begin / step_s), int(stop / step_s) + 1):
            inside = min(stop, (place + 1) * step_s) - max(begin, place * step_s)
            if inside <= 0:
                continue
            own = steps.setdefault(place, {})
            for name, value in seconds.items():
                own[name] = own.get(name, 0.0) + value * inside / (stop - begin)
    rounded = {
        place: {name: round(value, 3) for name, value in own.items() if round(value, 3)} for place, own in steps.items()
    }
    return [TimeStep(round(zero + place * step_s, 3), own) for place, own in sorted(rounded.items()) if own]


def _slow(times: BatchTimes, usual: Usual, *, is_first: bool) -> SlowBatch:
    least = round(state_least(times, "update", "remove", "commit"), 3)
    reason = reason_of(times, usual, is_first=is_first)
    return SlowBatch(
        times.timeline,
        times.batch,
        times.at,
        times.ms / 1000,
        phases_of(times),
        least,
        times.read,
        times.emitted,
        reason,
    )


def _state(home: PipelineHome, batches: Sequence[BatchTimes], now: datetime) -> StateSize:
    count = max(len(batches), 1)
    updated, removed = (sum(each.state.get(name, 0) for each in batches) / count for name in ("updated", "removed"))
    newest, per_day, since = None, None, None
    for level in reversed(LEVELS):
        points = _state_bytes(home, level, now)
        if points:
            (first, before), (last, newest) = points[0], points[-1]
            if last - first >= LEAST_GROWTH:
                return StateSize(newest, (newest - before) / ((last - first) / _DAY), first, updated, removed)
    return StateSize(newest, per_day, since, updated, removed)


def _state_bytes(home: PipelineHome, level: RingLevel, now: datetime) -> list[tuple[datetime, float]]:
    slots, place = level.read(home, now), CURVES.index("state_bytes")
    known = slots[slots["known"][:, place] > 0] if len(slots) else slots
    return [(from_ms(int(slot["start"]) * 1000), float(slot["mean"][place])) for slot in known]


def _reconcile(home: PipelineHome) -> list[RunSteps]:
    run = newest_reconcile(home)
    if run is None or not run["gate"].get("phases"):
        return []
    rows = sum(sum(counts.values()) for counts in run["counts"].values())
    return [_steps("reconcile", run["run"], run["created_at"], rows, run["gate"]["phases"])]


def _backfill(home: PipelineHome) -> list[RunSteps]:
    for backfill in reversed(list_backfills(home)):
        audit = read_audit(home, backfill)
        if audit is not None:  # the newest that was computed; earlier releases measured no step
            seconds = audit.get("seconds")
            return (
                [_steps("backfill", backfill, parse_iso(audit["audited_at"]), audit["rows"], seconds)]
                if seconds
                else []
            )
    return []


def _steps(kind: str, run: str, at: datetime, rows: int | None, seconds: Mapping[str, float]) -> RunSteps:
    whole, slowest = sum(seconds.values()), max(seconds, key=seconds.__getitem__)
    share = seconds[slowest] / whole if whole else 0.0
    by_length = dict(sorted(seconds.items(), key=lambda item: item[1], reverse=True))
    return RunSteps(kind, run, at, rows, by_length, f"{slowest} took {share:.0%} of {whole:.1f} s".replace("%", " %"))
