"""The one sentence about a pipeline, from what is known of its stream and its data: what is wrong, since when, what to do. Pure.

All that is wrong is found, the worst comes first. `rivertwice status` and the page print the same sentence. It contains instants and
no ages, so it stays the same while nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rivertwice.agent import (
    AGENT_DEAD,
    AGENT_SILENT,
    HUNG_AFTER,
    KINDS,
    PIPELINE,
    REACTIONS,
    STREAM_KINDS,
    TASK_FAILED,
    Alert,
    AlertSeverity,
    Condition,
    Unreadable,
    meaning_of,
    next_attempt,
)
from rivertwice.core import counted
from rivertwice.read.facts import Facts, GateFinding, RunVerdict
from rivertwice.read.problems import ALERTS, BAD, CALM, DATA, GOOD, LEVELS, NONE, STREAM, WARN, Problem, moment, share
from rivertwice.reconcile import DEAD_SHARE
from rivertwice.timeline import ServedEnd, Verdict

# What is wrong with what a pipeline serves, by its newest reconcile, its own suite and its open alerts. Pure.

UNSCHEDULED = timedelta(days=1)
"""Where no reconcile is scheduled, a verdict that is older than this, with new batches since, is stale."""
_OWN = frozenset({"defect", "late_share", "not_comparable", "quality", DEAD_SHARE})


def find_data_problems(facts: Facts, now: datetime) -> Iterator[Problem]:
    """Yield what is wrong with what is served, and the open alerts about anything else."""
    if facts.verdict is None:
        yield from _never(facts, now)
    else:
        yield from _defect(facts, facts.verdict)
        yield from _late(facts, facts.verdict)
        yield from _not_comparable(facts, facts.verdict)
        yield from _findings(facts, facts.verdict)
    yield from _dead(facts)
    yield from _quality(facts)
    yield from _stale(facts, now)
    if not facts.told:
        what = "no route is configured, so nobody would be told of an alert"
        then = "write `alerts.yaml` (`rivertwice docs howto-watch`), then `rivertwice alerts test`"
        yield Problem("no_route", NONE, ALERTS, what, None, "", then, "alerts")
    yield from (_alert(facts, alert) for alert in facts.alerts)


def expected_every(facts: Facts) -> timedelta:
    """Return how old a verdict may be while new batches come: two rounds of the reconcile's schedule."""
    return UNSCHEDULED if facts.reconcile_every is None else 2 * facts.reconcile_every


def why_stale(facts: Facts) -> str | None:
    """Return why the newest verdict is not about what is served now; None if it is, whatever its age."""
    verdict = facts.verdict
    if verdict is None:
        return None
    if verdict.left_by is not None:
        return f"it is from before the head moved to {verdict.left_by.payload['timeline']} at {moment(verdict.left_by.created_at)}"
    if facts.published is not None and verdict.sequence < facts.published.seq:
        return f"it is from before {facts.published.payload['backfill']} was published at {moment(facts.published.created_at)}"
    return None


def _reconcile(facts: Facts) -> str:
    return f"`rivertwice reconcile {facts.name}`, or start the DAG reconcile"


def _never(facts: Facts, now: datetime) -> Iterator[Problem]:
    if not facts.compare or facts.began_at is None:
        return
    is_due = now - facts.began_at > expected_every(facts)
    what = "no reconcile has compared anything yet, so it is not known whether what is served is right"
    yield Problem(
        "not_reconciled", WARN if is_due else NONE, DATA, what, facts.began_at, "", _reconcile(facts), "correctness"
    )


def _defect(facts: Facts, verdict: RunVerdict) -> Iterator[Problem]:
    served, stream = verdict.served.get(Verdict.DEFECT, 0), verdict.stream.get(Verdict.DEFECT, 0)
    next_command = f"`rivertwice verdicts {facts.name} --verdict {Verdict.DEFECT}` names them; a backfill of their windows replaces them"
    covers = frozenset({"defect"})
    if served:
        what = f"{counted(served, 'served row is', 'served rows are')} not what the log gives ({Verdict.DEFECT}){_where(verdict, Verdict.DEFECT)}"
        touches = f"{served:,} of {sum(verdict.served.values()):,} served rows are wrong"
        then, tab = _waiting_repair(facts, covers) or (next_command, "correctness")
        yield Problem("defect", BAD, DATA, what, verdict.at, touches, then, tab, covers)
    elif stream:
        what = f"the stream has emitted {counted(stream, 'row', 'rows')} that the log does not give ({Verdict.DEFECT})"
        yield Problem(
            "defect",
            BAD,
            DATA,
            what,
            verdict.at,
            "what is served was put right by backfills",
            next_command,
            "correctness",
            covers,
        )


def _late(facts: Facts, verdict: RunVerdict) -> Iterator[Problem]:
    what = _too_late(verdict)
    if what is None:
        return
    served, stream = verdict.served.get(Verdict.LATE, 0), verdict.stream.get(Verdict.LATE, 0)
    covers = frozenset({"late_share"})
    if served:
        rows = sum(verdict.served.values())
        touches = f"{counted(served, 'served row lacks', 'served rows lack')} late records, of {rows:,}{_where(verdict, Verdict.LATE)}"
        next_act = f"repair them by a backfill: `rivertwice backfill plan {facts.name}` shows it"
        then, tab = _waiting_repair(facts, covers) or (next_act, "backfills")
        yield Problem("served_late", BAD, DATA, what, verdict.at, touches, then, tab, covers)
        return
    touches = f"the stream missed them in {counted(stream, 'row', 'rows')}; backfills have put right all that is served"
    next_act = "nothing is open; `rivertwice advise` measures what a longer watermark would cost"
    yield Problem("late_share", GOOD, DATA, what, verdict.at, touches, next_act, "correctness", covers)


def _waiting_repair(facts: Facts, kinds: frozenset[str]) -> tuple[str, str] | None:
    """Return what to do about alerts of some kinds whose repair waits for a person, and where; None if none does."""
    if any(alert.cause.kind in kinds and alert.details.get("repair_run") for alert in facts.alerts):
        return "a repair is proposed: look at it, then approve or decline it", "alerts"
    return None


def _too_late(verdict: RunVerdict) -> str | None:
    """Return that more records came too late than the limit allows, in all or in one partition; None if they did not."""
    if verdict.late_share is not None and verdict.late_share > verdict.limit:
        return f"{share(verdict.late_share)} of the records came too late, above the limit of {share(verdict.limit)}"
    return next((each.message for each in verdict.findings if each.kind == "late_share"), None)


def _not_comparable(facts: Facts, verdict: RunVerdict) -> Iterator[Problem]:
    found = [each for each in verdict.findings if each.kind in ("not_comparable", "nothing_compared")]
    if not found:
        return
    served = verdict.served.get(Verdict.NOT_COMPARABLE, 0)
    nothing = any(each.severity == AlertSeverity.CRITICAL for each in found)
    rows = served or verdict.stream.get(Verdict.NOT_COMPARABLE, 0)
    which = "served rows" if served else "rows of the stream"
    what = f"{rows:,} {which} cannot be compared, for reasons that are named{_where(verdict, Verdict.NOT_COMPARABLE)}"
    kind = "nothing_compared" if nothing else "not_comparable"
    then = f"`rivertwice verdicts {facts.name} --verdict {Verdict.NOT_COMPARABLE}` names the reasons"
    covers = frozenset({"not_comparable", "nothing_compared"})
    yield Problem(
        kind, BAD if nothing else WARN, DATA, what, verdict.at, KINDS[kind].meaning, then, "correctness", covers
    )


def _findings(facts: Facts, verdict: RunVerdict) -> Iterator[Problem]:
    """Yield what the gate found beyond rows: of each kind one, the critical ones first."""
    said = (*_OWN, "nothing_compared")
    others = [each for each in verdict.findings if each.kind not in said and each.repeats not in said]
    seen: set[str] = set()
    for each in sorted(others, key=lambda one: one.severity != AlertSeverity.CRITICAL):
        if each.kind in seen:
            continue
        seen.add(each.kind)
        alike = sum(one.kind == each.kind for one in others)
        yield _finding(facts, verdict, each, alike)


def _finding(facts: Facts, verdict: RunVerdict, found: GateFinding, alike: int) -> Problem:
    more = f" (and {alike - 1} more of this kind)" if alike > 1 else ""
    kind = KINDS.get(found.kind)
    return Problem(
        "finding" if found.severity == AlertSeverity.CRITICAL else "noted", BAD if found.severity == AlertSeverity.CRITICAL else WARN, DATA, f"the reconcile found ({found.kind}): {found.message}{more}",
        verdict.at, "" if kind is None else kind.meaning, "" if kind is None else f"`{_command(kind.verb, facts.name)}`", "correctness",
        frozenset({found.kind}),
    )  # fmt: skip


def _dead(facts: Facts) -> Iterator[Problem]:
    if facts.dead:
        kind = KINDS[DEAD_SHARE]
        then, covers = f"`{_command(kind.verb, facts.name)}`", frozenset({DEAD_SHARE})
        yield Problem(DEAD_SHARE, WARN, DATA, facts.dead, None, kind.meaning, then, "letters", covers)


def _quality(facts: Facts) -> Iterator[Problem]:
    view = facts.quality
    failing = {} if view is None else {word: number for word, number in view.failing.items() if number}
    if view is None or not failing:
        return
    is_critical = bool(failing.get(AlertSeverity.CRITICAL))
    counts = ", ".join(f"{number} {word}" for word, number in failing.items())
    what = f"{counts} of {view.expectations} expectations of the pipeline's own suite fail: {view.found[0].message}"
    if not is_critical and not failing.get("warning"):
        return
    covers = frozenset({"quality"})
    then = f"`rivertwice quality {facts.name}`"
    yield Problem(
        "quality", BAD if is_critical else WARN, DATA, what, None, KINDS["quality"].meaning, then, "correctness", covers
    )


def _stale(facts: Facts, now: datetime) -> Iterator[Problem]:
    verdict = facts.verdict
    if verdict is None:
        return
    why = why_stale(facts)
    if why is not None and verdict.left_by is not None:
        touches = "what is served now was not compared yet"
        yield Problem(
            "stale_verdict",
            WARN,
            DATA,
            f"the verdict is stale: {why}",
            verdict.left_by.created_at,
            touches,
            _reconcile(facts),
            "correctness",
        )
        return
    batch = facts.stream.batch
    has_news = batch is not None and (facts.stream.timeline, batch) != (verdict.timeline, verdict.batch)
    if facts.compare and has_news and facts.stream.desired == "running" and now - verdict.at > expected_every(facts):
        what = f"the verdict is older than it should be: it is of batch {verdict.batch}, and the stream is at batch {batch}"
        touches = "windows that closed since were not compared yet"
        yield Problem("stale_verdict", WARN, DATA, what, verdict.at, touches, _reconcile(facts), "correctness")


def _alert(facts: Facts, alert: Alert) -> Problem:
    kind = KINDS.get(alert.cause.kind)
    command = "" if kind is None else f"`{_command(kind.verb, alert.cause.pipeline)}`"
    about = f" ({alert.cause.subject})" if alert.cause.subject else ""
    return Problem(
        "table_damage" if alert.cause.kind == "table_damage" else "alert", _gravity(alert), ALERTS,
        f"the alert {alert.cause.kind}{about} is open: {alert.message.rstrip('.')}", alert.since, meaning_of(alert.cause), command, "alerts",
        alert=alert.cause.kind,
    )  # fmt: skip


def _gravity(alert: Alert) -> str:
    """Return the level of an alert; no served number depends on a task that failed, so that one is less than a dead driver."""
    return BAD if alert.severity == AlertSeverity.CRITICAL and alert.cause.kind != TASK_FAILED else WARN


def _command(verb: tuple[str, ...], pipeline: str) -> str:
    words = [pipeline if word == PIPELINE else word for word in verb if word != PIPELINE or pipeline]
    return " ".join(("rivertwice", *words))


def _where(verdict: RunVerdict, word: str) -> str:
    """Return in which windows served rows have a verdict."""
    windows = verdict.windows.get(word)
    if windows is None:
        return ""
    if windows.count == 1:
        return f", in the window of {moment(windows.first)}"
    return f", in {windows.count:,} windows from {moment(windows.first)} to {moment(windows.last)}"


# What is wrong with a pipeline's stream, or under way. Pure.

CATCHES_UP_S = 60.0
"""A lag that is gone sooner is not news."""
ARRIVALS_S = 60.0
"""A lag of fewer records than arrive in this number of seconds is what any batch leaves, and its trend over a few batches is chance."""
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
            "no start of this stream was requested",
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
            served_until(facts, now),
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
        largest = "" if alert is None else alert.details.get("largest", "")
        which = f"the largest: {largest}" if largest else "`rivertwice doctor` says how much is needed"
        yield Problem(
            "disk_full", BAD, STREAM, what, None if alert is None else alert.since, meaning,
            f"free space on it ({which}); what was waiting continues by itself", covers=FULL,
        )  # fmt: skip


def _running(facts: Facts, now: datetime) -> Iterator[Problem]:
    seen = facts.observation
    if seen.given_up:
        yield Problem(
            "given_up", BAD, STREAM, f"the agent has stopped restarting the stream: {seen.given_up}", seen.memory.broken_at, _gets_older(facts, now),
            f"correct the cause, then `rivertwice start {facts.name}`", "logs", covers=STREAM_ALERTS | {"retention"},
        )  # fmt: skip
        return
    if not agent_lives(facts, now):
        driver = "the driver runs on" if seen.owner is not None else "no driver runs"
        touches = KINDS[AGENT_DEAD].meaning if seen.owner is not None else _gets_older(facts, now)
        yield Problem(
            "agent_dead", BAD, STREAM, f"no agent is running; {driver}, and it would not be restarted", seen.agent_at, touches,
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
    if seen.state == Condition.HIBERNATING:
        what = "no record came for some time, so no driver runs"
        yield Problem(
            "hibernating",
            CALM,
            STREAM,
            what,
            memory.asleep_since,
            "",
            "nothing: the agent starts it when a record comes",
        )
        return
    if seen.state in (Condition.SCHEDULED, Condition.QUEUED):
        yield _by_schedule(facts, now)
        return
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


def _by_schedule(facts: Facts, now: datetime) -> Problem:
    """Return that a stream rests between two runs of its schedule, that a run waits, or that one was missed."""
    seen, run = facts.observation, facts.observation.memory.run
    missed = seen.missed_since(now)
    if missed is not None:
        return Problem(
            "run_missed", BAD, STREAM, f"no run was asked for since one was due at {moment(missed)}", missed, _gets_older(facts, now),
            f"unpause stream__{facts.name} in Airflow, or run `rivertwice start {facts.name} --once`", covers=STREAM_ALERTS,
        )  # fmt: skip
    if seen.state == Condition.QUEUED:
        asked = None if seen.intent is None else seen.intent.run_asked_at
        what, then = "a run by schedule waits for its turn", "nothing: others of its group run before it"
        return Problem("queued", CALM, STREAM, what, asked, "", then)
    due = seen.next_run(now)
    coming = "runs when it is asked to" if due is None else f"next run at {moment(due)}"
    newest = "none was made yet"
    if run is not None and run.ended_at is not None:
        newest = f"newest run from {moment(run.begun_at)} to {moment(run.ended_at)}"
    return Problem("scheduled", CALM, STREAM, f"by schedule: {coming}, {newest}", None, "", "")


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
    if beat is not None and beat.waits and seen.state in ("starting", "running", "idle"):
        touches = "what is served is right, and nothing is added to it"
        then = f"`rivertwice logs {facts.name}` says it too, and when it is over"
        yield Problem("no_executors", WARN, STREAM, beat.waits, None, touches, then, "logs")
    if seen.state == "starting":
        yield from _starting(facts, now)
        return
    if seen.state == Condition.UNRESPONSIVE and beat is not None:
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
    if not view.is_lag_fresh:
        what = "the lag is not known: the driver gets no answer from Kafka"
        yield Problem(
            "lag_unknown",
            WARN,
            STREAM,
            what,
            view.lag_at,
            "",
            f"`rivertwice agent metrics {facts.name}` asks Kafka; is the broker up?",
            "health",
        )
        return
    yield from _lag(facts)


def _lag(facts: Facts) -> Iterator[Problem]:
    view = facts.stream
    lag, arriving, gone_in_s = view.lag or 0, view.arriving_per_s, view.catch_up_s
    is_long = lag > (0 if arriving is None else ARRIVALS_S * arriving)
    if view.placed_until or (is_long and gone_in_s is not None and gone_in_s > CATCHES_UP_S):
        gone = "" if gone_in_s is None else f", gone in about {_rough(gone_in_s)}"
        what = f"the stream catches up: {counted(lag, 'record waits', 'records wait')}{gone}"
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
            f"`rivertwice status {facts.name} --why`",
            "health",
            covers=covers,
        )


def _work(facts: Facts) -> Iterator[Problem]:
    operation = facts.operation
    if operation is not None:
        what = f"the {operation.noun} {operation.id} is not done: step {operation.step} of {operation.steps} is ({operation.name})"
        then = f"wait; if it was interrupted, `{operation.finish}` finishes it"
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
        yield Problem("first_load", CALM, STREAM, facts.first_load.message, None, touches, "", "backfills")
    if facts.stream_load is not None:
        yield Problem("stream_load", CALM, STREAM, facts.stream_load.message, None, "", "", "health")


def _safety(facts: Facts, now: datetime) -> Iterator[Problem]:
    saved = facts.savepoints
    if saved is None or facts.began_at is None:
        return
    taken = saved.proved_at or facts.began_at
    if now - taken > saved.limit:
        what = (
            "the newest proved savepoint is too old" if saved.proved_at is not None else "no savepoint was ever proved"
        )
        then = f"`rivertwice savepoint take {facts.name}`, then prove it; the DAG care does both"
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
    if view is None or not view.summary:
        return
    worst = view.worst or {}
    is_lost = bool(view.gaps) or worst.get("level") == "lost"
    level = WARN if not is_lost and worst.get("level") == "warning" else BAD
    meaning = KINDS["gap" if is_lost else "retention"].meaning
    what = (
        f"Kafka deletes records that are needed: {view.summary}" if not is_lost else f"records are lost: {view.summary}"
    )
    covers = frozenset({"retention", "archive"})
    yield Problem(
        "retention",
        level,
        STREAM,
        what,
        None,
        meaning,
        f"`rivertwice admin retention {facts.name}`",
        "alerts",
        covers=covers,
    )


def _gets_older(facts: Facts, now: datetime) -> str:
    head = "what is served stays right, and gets older"
    served = _served(facts)
    if served is None:
        return head
    if served_keeps_up(facts, now):
        return head if served.closed is None else f"{head}: no window that ends after {moment(served.closed)} is added"
    return f"{head}: {served_until(facts, now)}"


def served_until(facts: Facts, now: datetime) -> str:
    """Return up to where windows are served; if more are closed, why they are not served yet, and what serves them. Pure."""
    served = _served(facts)
    if served is None:
        return ""
    until, closed = served.until, served.closed
    shown = "" if until is None else f"windows that ended by {moment(until)} are served"
    if served.is_current:
        return shown
    shown = shown or (
        "nothing is served yet" if served.batch is None else f"rows up to batch {served.batch} are served"
    )
    if closed is not None and closed != until:
        shown += f"; those that ended by {moment(closed)} are closed and not served yet"
    else:
        shown += "; a newer batch or publication is not served yet"
    if agent_lives(facts, now):
        return f"{shown}: the agent builds them next"
    return f"{shown}, because no agent is running: `rivertwice agent start`, or once `rivertwice admin rebuild {facts.name}`"


def _served(facts: Facts) -> ServedEnd | None:
    """Return up to where windows are served; None: it is not known, or nothing was ever committed."""
    served = facts.stream.served
    if isinstance(served, Unreadable) or (served.batch is None and served.is_current):
        return None
    return served


def served_keeps_up(facts: Facts, now: datetime) -> bool:
    """Say whether all that is committed is served, or an agent adds what is not, also while no driver runs. Pure."""
    return getattr(facts.stream.served, "is_current", True) or agent_lives(facts, now)


def agent_lives(facts: Facts, now: datetime) -> bool:
    """Say whether an agent works. Pure."""
    seen = facts.observation.agent_at
    return seen is not None and now - seen <= AGENT_SILENT


def _rough(seconds: float) -> str:
    """Return a duration of which only the size is meant, so that it does not change with each look."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{timedelta(seconds=seconds) / timedelta(seconds=size):.0f} {unit}"
    return f"{max(10, round(seconds, -1)):.0f} s"


ORDER = (
    "disk_full", "given_up", "agent_dead", "table_damage", "defect", "served_late", "finding", "nothing_compared", "quality", "dead_share",
    "unresponsive", "driver_down", "no_executors", "run_missed", "retention", "not_comparable", "noted", "starts_again", "alert", "lag_grows",
    "lag_unknown", "stale_verdict", "savepoint_stale", "recovery", "unread", "late_share",
    "restoring", "operation", "hibernating", "scheduled", "queued", "first_load", "stream_load", "first_start", "starting", "draining", "catching_up", "not_reconciled",
    "stopped", "not_asked", "no_route", "well",
)  # fmt: skip
"""Within one level the earlier kind is the worse one."""


@dataclass(frozen=True)
class Light:
    """One of the three lights.

    Attributes:
        tone: one of `LEVELS`. word: its state in one or two words. title: what makes it so, in words.
    """

    tone: str
    word: str
    title: str | None


@dataclass(frozen=True)
class Now:
    """The answer to "what is wrong now": the worst problem, and what else is wrong.

    Attributes:
        worst: with `GOOD`, nothing is wrong.
        others: further problems, the worst first.
    """

    worst: Problem
    others: tuple[Problem, ...]
    lights: Mapping[str, Light]

    @property
    def sentence(self) -> str:
        """The sentence, as `rivertwice status` and the page print it."""
        return self.worst.sentence


NOT_SERVED = "no served number depends on it: another version of the pipeline serves"
RULES = {
    STREAM: "Red: no driver, a silent one, no agent, not restarted any more, or a full disk. Yellow: it starts again, its lag does not shrink or is not known, "
    "or what a restart needs is too old. Green: a driver runs. Grey: the desired state is stopped.",
    DATA: "Red: served rows that are a DEFECT or lack late records above the limit, a gate that did not pass, a critical expectation "
    "that fails. Yellow: too many dead letters among the newest records, rows that cannot be "
    "compared, a verdict that is stale. "
    "Green: the newest verdict holds and agrees, also where backfills have put right late records above the limit. Grey: nothing was compared yet.",
    ALERTS: "Red: a critical alert is open. Yellow: a warning is open. Green: none is, and one would be sent. Grey: no route is configured, so nobody would be told.",
}


def decide_now(facts: Facts, now: datetime) -> Now:
    """Return what is wrong with a pipeline, the worst first, and its lights."""
    found = [*find_stream_problems(facts, now), *find_data_problems(facts, now), *_unread(facts)]
    if not facts.stream.serves:
        found = [replace(each, touches=NOT_SERVED if each.touches else "") for each in found]
    problems = sorted(
        found,
        key=lambda each: (LEVELS.index(each.level), ORDER.index(each.kind)),
    )
    covered = {kind for each in problems if each.level != GOOD for kind in each.covers}
    wrong = [
        each
        for each in problems
        if each.level in (BAD, WARN, CALM) and not (each.kind == "alert" and each.alert in covered)
    ]
    rest = [each for each in problems if each.level == NONE and each.light != ALERTS]
    # What is not wrong now, and should be known: it follows what is, and makes nothing worse.
    aside = tuple(each for each in problems if each.level == GOOD or (each.level == NONE and each.light == ALERTS))
    lights = {
        STREAM: _stream_light(facts, problems),
        DATA: _data_light(facts, problems),
        ALERTS: _alert_light(facts),
    }
    if wrong and wrong[0].level != CALM:
        return Now(wrong[0], (*wrong[1:], *aside), lights)
    if rest or wrong:  # a stream whose desired state is stopped says so before what is calm
        first, *others = [*rest, *wrong]
        return Now(first, (*others, *aside), lights)
    return Now(_well(facts), aside, lights)


def _unread(facts: Facts) -> list[Problem]:
    """Return a problem for each reason, however many parts cannot be read for it: most read several tables."""
    parts: dict[str, list[str]] = {}
    for what, why in facts.unread:
        parts.setdefault(why, []).append(what)
    return [
        Problem(
            "unread",
            WARN,
            DATA,
            f"its {', '.join(dict.fromkeys(what))} cannot be read: {why}",
            None,
            "",
            f"`rivertwice admin repair {facts.name}`",
        )
        for why, what in parts.items()
    ]


def _well(facts: Facts) -> Problem:
    verdict, batch = facts.verdict, facts.stream.batch
    rows = 0 if verdict is None else sum(verdict.served.values())
    running = f"the stream runs, at batch {batch}" if batch is not None else "the stream runs"
    told = "" if facts.told else "; nobody would be told if that changed, because alerts have no route"
    if verdict is None:
        return Problem("well", GOOD, STREAM, f"{running}{told}", None, "", "")
    agree = verdict.served.get("AGREES", 0)
    text = f"{running}; {agree} of {rows} served rows agree with the log, and nothing is wrong with the others"
    return Problem("well", GOOD, STREAM, f"{text}, by the reconcile of {moment(verdict.at)}{told}", None, "", "")


def _worst(problems: Sequence[Problem], light: str) -> Problem | None:
    return next((each for each in problems if each.light == light and each.level in (BAD, WARN, CALM, NONE)), None)


def _stream_light(facts: Facts, problems: Sequence[Problem]) -> Light:
    worst = _worst(problems, STREAM)
    state = facts.observation.state
    if worst is None:
        return Light(GOOD, "runs", RULES[STREAM])
    words = {
        "stopped": "stopped",
        "not_asked": "not started",
        "agent_dead": "no agent",
        "savepoint_stale": "old savepoint",
    }
    word = words.get(
        worst.kind, worst.kind.replace("_", " ") if state != Condition.UNRESPONSIVE else Condition.UNRESPONSIVE
    )
    return Light(worst.level, word, RULES[STREAM])


def _data_light(facts: Facts, problems: Sequence[Problem]) -> Light:
    worst = _worst(problems, DATA)
    if worst is not None:
        words = {
            "served_late": "late rows missing", "defect": "DEFECT", "stale_verdict": "stale",
            "not_reconciled": "not compared", "quality": "quality", "not_comparable": "not comparable", "dead_share": "dead letters",
        }  # fmt: skip
        return Light(worst.level, words.get(worst.kind, worst.kind.replace("_", " ")), RULES[DATA])
    if facts.verdict is None:
        return Light(NONE, "not compared", RULES[DATA])
    was_late = any(each.kind == "late_share" for each in problems)
    return Light(GOOD, "agrees, repaired" if was_late else "agrees", RULES[DATA])


def _alert_light(facts: Facts) -> Light:
    critical = sum(alert.severity == "critical" for alert in facts.alerts)
    total = len(facts.alerts)
    if not total:
        return Light(GOOD, "none", RULES[ALERTS]) if facts.told else Light(NONE, "nobody would be told", RULES[ALERTS])
    word = f"{critical} critical" if critical else f"{total} open"
    if not facts.told:
        word = f"{word}, nobody is told"
    return Light(BAD if critical else WARN, word, RULES[ALERTS])
