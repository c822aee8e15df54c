"""What is wrong with a pipeline's stream, or under way. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from rivertwice.alerts.kinds import AGENT_DEAD, KINDS, STREAM_KINDS
from rivertwice.cockpit.facts import Facts, instant_of
from rivertwice.cockpit.problems import BAD, CALM, NONE, STREAM, WARN, Problem, moment
from rivertwice.printable import counted
from rivertwice.supervise.backoff import next_attempt
from rivertwice.supervise.classify import REACTIONS
from rivertwice.supervise.decide import HUNG_AFTER
from rivertwice.supervise.health import AGENT_SILENT, UNRESPONSIVE
from rivertwice.supervise.lag_words import is_lag_fresh

CATCHES_UP_S = 60.0
"""A lag that is gone sooner is no news."""
ARRIVALS_S = 60.0
"""A lag of fewer records than arrive in so many seconds is what any batch leaves, and its trend over a few batches is chance."""
FULL = frozenset({"disk_full", "disk"})
STREAM_ALERTS = frozenset(STREAM_KINDS)


def find_stream_problems(facts: Facts, now: datetime) -> Iterator[Problem]:
    """Yield what is wrong with the stream, and what is under way."""
    yield from _disk(facts)
    yield from _work(facts)
    intent = facts.observation.intent
    if intent is None:
        yield Problem(
            "not_asked",
            NONE,
            STREAM,
            "nobody has asked for this stream to run",
            None,
            "",
            f"`rivertwice start {facts.name}`",
        )
    elif intent.desired != "running":
        what = f"the stream is stopped, as {intent.by} asked for"
        yield Problem(
            "stopped",
            NONE,
            STREAM,
            what,
            intent.updated_at,
            _served_until(facts, now),
            f"`rivertwice start {facts.name}`",
        )
    else:
        yield from _running(facts, now)
        yield from _safety(facts, now)
    yield from _retention(facts)


def _disk(facts: Facts) -> Iterator[Problem]:
    alert = next((each for each in facts.alerts if each.cause.kind in FULL), None)
    if alert is not None or not facts.has_room:
        meaning = KINDS["disk_full"].meaning
        what = "the disk of the home is full"
        yield Problem(
            "disk_full", BAD, STREAM, what, None if alert is None else alert.since, meaning,
            "free space on it (`rivertwice doctor` shows what takes it); what was waiting continues by itself", covers=FULL,
        )  # fmt: skip


def _running(facts: Facts, now: datetime) -> Iterator[Problem]:
    seen = facts.observation
    if seen.given_up:
        yield Problem(
            "given_up", BAD, STREAM, f"the agent has given up the stream: {seen.given_up}", seen.memory.broken_at, _gets_older(facts, now),
            f"cure the cause, then `rivertwice start {facts.name}`", "logs", covers=STREAM_ALERTS | {"retention"},
        )  # fmt: skip
        return
    if not _agent_lives(facts, now):
        driver = "the driver runs on" if seen.owner is not None else "no driver runs"
        touches = KINDS[AGENT_DEAD].meaning if seen.owner is not None else _gets_older(facts, now)
        yield Problem(
            "agent_dead", BAD, STREAM, f"no agent lives; {driver}, and nobody would start it again", seen.agent_at, touches,
            "`rivertwice agent start`", covers=STREAM_ALERTS | {AGENT_DEAD},
        )  # fmt: skip
        if seen.owner is None:
            return
    if seen.owner is None:
        yield from _without_driver(facts, now)
    else:
        yield from _with_driver(facts, now)


def _without_driver(facts: Facts, now: datetime) -> Iterator[Problem]:
    seen, memory = facts.observation, facts.observation.memory
    if seen.state == "restoring":
        since = None if memory.fall_back is None else memory.fall_back.since
        yield Problem(
            "restoring", WARN, STREAM, "the live checkpoint was damaged; the agent restores the newest proved savepoint", since,
            _gets_older(facts, now), "nothing: the stream continues by itself after it", "timelines", covers=STREAM_ALERTS,
        )  # fmt: skip
        return
    if seen.state == "starting":
        yield from _starting(facts, now)
        return
    failure = memory.failures[-1] if memory.failures else None
    if failure is not None:
        why, since = f"the last one ended as {failure.failure}: {REACTIONS[failure.failure].because}", failure.at
    elif seen.last_exit is not None:
        why, since = f"the last one ended as {seen.last_exit.failure}: {seen.last_exit.message}", seen.last_exit.at
    else:
        why, since = "none was started yet", None if seen.intent is None else seen.intent.updated_at
    if failure is None and seen.intent is not None and (since is None or seen.intent.updated_at > since):
        why, since = "none was started yet", seen.intent.updated_at
    attempt = next_attempt(memory.failures)
    waits = attempt is not None and attempt > now
    then = (
        f"nothing: the agent starts it again at {moment(attempt)}"
        if attempt is not None and waits
        else "nothing: the agent starts it now"
    )
    if failure is not None and len(memory.failures) > 1 and waits:
        then = f"look at the tab Logs (`rivertwice logs {facts.name}`); the agent tries again at {moment(attempt) if attempt else 'once'}"
    yield Problem(
        "driver_down",
        BAD,
        STREAM,
        f"no driver runs; {why}",
        since,
        _gets_older(facts, now),
        then,
        "logs",
        covers=STREAM_ALERTS,
    )


def _starting(facts: Facts, now: datetime) -> Iterator[Problem]:
    seen, memory = facts.observation, facts.observation.memory
    since = memory.last_start_at
    if memory.failures:
        failure = memory.failures[-1]
        what = f"a driver starts again, after one that ended as {failure.failure}"
        yield Problem(
            "starts_again",
            WARN,
            STREAM,
            what,
            failure.at,
            _gets_older(facts, now),
            "nothing: it is starting",
            "logs",
            covers=STREAM_ALERTS,
        )
    elif facts.began_at is None:
        yield Problem(
            "first_start", CALM, STREAM, "the first driver of this stream starts", since, "nothing is served yet", ""
        )
    else:
        yield Problem(
            "starting",
            CALM,
            STREAM,
            "a driver starts",
            since or (seen.intent.updated_at if seen.intent else None),
            "",
            "",
        )


def _with_driver(facts: Facts, now: datetime) -> Iterator[Problem]:
    seen, view = facts.observation, facts.stream
    beat = seen.heartbeat
    if seen.state == "starting":
        yield from _starting(facts, now)
        return
    if seen.state == UNRESPONSIVE and beat is not None:
        level = BAD if now - beat.at > HUNG_AFTER else WARN
        what = f"the driver (pid {beat.pid}) lives and reports nothing"
        then = f"look at its log (`rivertwice logs {facts.name}`); if it hangs, end process {beat.pid}: the agent starts it again"
        yield Problem(
            "unresponsive", level, STREAM, what, beat.at, _gets_older(facts, now), then, "logs", covers=STREAM_ALERTS
        )
        return
    if seen.state == "draining":
        yield Problem("draining", CALM, STREAM, "the driver ends its running batch, and then itself", None, "", "")
        return
    if not is_lag_fresh(view):
        since = instant_of(view["lag_at"])
        what = "the lag is not known: the driver gets no answer from Kafka"
        yield Problem(
            "lag_unknown",
            WARN,
            STREAM,
            what,
            since,
            "",
            f"`rivertwice metrics {facts.name}` asks Kafka; is the broker up?",
            "health",
        )
        return
    yield from _lag(facts)


def _lag(facts: Facts) -> Iterator[Problem]:
    view = facts.stream
    lag, arriving, gone_in_s = view["lag"], view["arriving_per_s"], view["catch_up_s"]
    is_long = bool(lag) and (arriving is None or lag > ARRIVALS_S * arriving)
    if view["placed_until"] or (is_long and gone_in_s is not None and gone_in_s > CATCHES_UP_S):
        gone = "" if gone_in_s is None else f", gone in about {_rough(gone_in_s)}"
        what = f"the stream catches up: {counted(lag or 0, 'record waits', 'records wait')}{gone}"
        yield Problem(
            "catching_up", CALM, STREAM, what, None, "newer windows are served later than usual", "", "health"
        )
    elif is_long and arriving is not None and gone_in_s is None:
        what = f"{counted(lag, 'record waits', 'records wait')} and the lag does not shrink, while {arriving:.0f} a second arrive"
        touches = "what is served is right, and newer windows come later than usual"
        covers = frozenset({"lag", "latency", "backpressure"})
        yield Problem(
            "lag_grows",
            WARN,
            STREAM,
            what,
            None,
            touches,
            f"`rivertwice diagnose {facts.name}`",
            "health",
            covers=covers,
        )


def _work(facts: Facts) -> Iterator[Problem]:
    operation = facts.operation
    if operation is not None:
        what = f"the {operation.noun} {operation.id} is not done: step {operation.step} of {operation.steps} is ({operation.name})"
        then = f"wait; if it was cut off, `{operation.finish}` finishes it"
        yield Problem(
            "operation",
            CALM,
            STREAM,
            what,
            operation.since,
            "what is served stays the same until the head moves",
            then,
            "timelines",
        )
    if facts.first_load is not None:
        touches = "windows of the past are served once a backfill has published them"
        yield Problem("first_load", CALM, STREAM, str(facts.first_load["message"]), None, touches, "", "backfills")
    if facts.stream_load is not None:
        yield Problem("stream_load", CALM, STREAM, str(facts.stream_load["message"]), None, "", "", "health")


def _safety(facts: Facts, now: datetime) -> Iterator[Problem]:
    saved = facts.savepoints
    if saved is None or facts.began_at is None:
        return
    taken = saved.proved_at or facts.began_at
    if now - taken > saved.limit:
        what = (
            "the newest proved savepoint is too old" if saved.proved_at is not None else "no savepoint was ever proved"
        )
        then = f"`rivertwice savepoint take {facts.name}`, then prove it; the DAG rotate does both"
        touches = KINDS["savepoint_stale"].meaning
        covers = frozenset({"savepoint_stale"})
        yield Problem("savepoint_stale", WARN, STREAM, what, taken, touches, then, "timelines", covers=covers)
    if saved.over and saved.recovery_s is not None:
        what = f"a fall-back would take about {_rough(saved.recovery_s)}, longer than was promised"
        covers = frozenset({"recovery"})
        then = f"`rivertwice savepoint list {facts.name}`"
        yield Problem("recovery", WARN, STREAM, what, None, KINDS["recovery"].meaning, then, "timelines", covers=covers)


def _retention(facts: Facts) -> Iterator[Problem]:
    view = facts.retention
    if view is None or not view.get("summary"):
        return
    worst = view.get("worst") or {}
    is_lost = bool(view.get("gaps")) or worst.get("level") == "lost"
    level = WARN if not is_lost and worst.get("level") == "warning" else BAD
    meaning = KINDS["gap" if is_lost else "retention"].meaning
    what = (
        f"Kafka deletes records that are needed: {view['summary']}"
        if not is_lost
        else f"records are lost: {view['summary']}"
    )
    covers = frozenset({"retention", "archive"})
    yield Problem(
        "retention", level, STREAM, what, None, meaning, f"`rivertwice retention {facts.name}`", "alerts", covers=covers
    )


def _gets_older(facts: Facts, now: datetime) -> str:
    head = "what is served stays right, and gets older"
    served = _served(facts)
    if served is None:
        return head
    if served["is_current"] or _agent_lives(facts, now):  # an agent adds what is closed, also while no driver runs
        closed = instant_of(served["closed"])
        return head if closed is None else f"{head}: no window that ends after {moment(closed)} is added"
    return f"{head}: {_served_until(facts, now)}"


def _served_until(facts: Facts, now: datetime) -> str:
    """Return up to where windows are served; if more are closed, why they are not served yet, and what serves them."""
    served = _served(facts)
    if served is None:
        return ""
    until, closed = instant_of(served["until"]), instant_of(served["closed"])
    shown = "" if until is None else f"windows that ended by {moment(until)} are served"
    if served["is_current"]:
        return shown
    shown = shown or (
        "nothing is served yet" if served["batch"] is None else f"rows up to batch {served['batch']} are served"
    )
    if closed is not None and closed != until:
        shown += f"; those that ended by {moment(closed)} are closed and not served yet"
    else:
        shown += "; a newer batch or publication is not served yet"
    if _agent_lives(facts, now):
        return f"{shown}: the agent builds them next"
    return (
        f"{shown}, because no agent lives: `rivertwice agent start`, or once `rivertwice served rebuild {facts.name}`"
    )


def _served(facts: Facts) -> Mapping[str, Any] | None:
    """Return up to where windows are served; None: it is not known, or nothing was ever committed."""
    served = facts.stream.get("served")
    if served is None or "error" in served or (served["batch"] is None and served["is_current"]):
        return None
    return dict(served)


def _agent_lives(facts: Facts, now: datetime) -> bool:
    seen = facts.observation.agent_at
    return seen is not None and now - seen <= AGENT_SILENT


def _rough(seconds: float) -> str:
    """Return a duration of which only the size is meant, so that it does not change with each look."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{timedelta(seconds=seconds) / timedelta(seconds=size):.0f} {unit}"
    return f"{max(10, round(seconds, -1)):.0f} s"
