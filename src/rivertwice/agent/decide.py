"""What to do about a pipeline's driver. Pure: the input is the desired and the observed state, the result an action with its reason.

The agent and Airflow share it. It is level-triggered: it looks at what is, not at what happened, so a pass that was
missed or repeated changes nothing. It never asks for a kill: a driver that hangs is paged, because only a person can decide
whether its batch may be interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from rivertwice.agent.backoff import (
    CONTENDED_AFTER,
    DEFAULT_POLICY,
    FULL_AFTER,
    REACTIONS,
    BackoffPolicy,
    Response,
    breaks_circuit,
    full_disk_ends,
    lease_losses,
    next_attempt,
)
from rivertwice.agent.by_schedule import describe, is_open, missed_since
from rivertwice.agent.memory import CONTENDED, DIED, FULL, REFUSED, RESTORED, DriverRef, Memory
from rivertwice.core import to_iso
from rivertwice.timeline import Heartbeat, Intent

HUNG_AFTER = timedelta(seconds=120)
STALLED_AFTER = timedelta(seconds=600)
START_SLOW_AFTER = timedelta(seconds=180)
DRAIN_SLOW_AFTER = timedelta(seconds=300)
UNRECORDED_START = timedelta(seconds=30)
FALL_BACKS = 3  # processes of one fall-back; each continues where the one that was killed stopped
BETWEEN_STARTS = timedelta(seconds=2)
STOPPED, ASLEEP, BY_SCHEDULE = "stopped, as desired", "hibernates", "by schedule"
"""How the reasons of a stream begin that is at rest as it should be."""
QUEUED, MISSED = "waits for its turn", "run_missed"


class ActionKind(StrEnum):
    """What the agent can do."""

    START = "start"
    DRAIN = "drain"
    ADOPT = "adopt"
    WAIT = "wait"
    RESTORE = "restore"
    PAGE = "page"
    STOP_AND_PAGE = "stop_and_page"
    HIBERNATE = "hibernate"


@dataclass(frozen=True)
class Action:
    """One decision.

    Attributes:
        reason: for people; names the fact that decided.
        page: key that distinguishes pages, so that each is sent once per driver.
        lasts: key of a page that was sent and whose cause lasts.
    """

    kind: ActionKind
    reason: str
    page: str = ""
    lasts: str = ""


@dataclass(frozen=True)
class DrainMarker:
    """The drain marker as it is on disk.

    Attributes:
        by_agent: the agent put it there for an intent.
        held: somebody else put it there and is still at work (a restore, `rivertwice down`).
    """

    since: datetime
    by_agent: bool
    held: bool


@dataclass(frozen=True)
class Quiet:
    """What decides whether a stream hibernates.

    Attributes:
        after: how long no record has to come (`stream.hibernate`); None: it never does.
        lag: records in the log beyond what is committed; None: it is not known.
        at: when that was looked at.
    """

    after: timedelta | None
    lag: int | None
    at: datetime


@dataclass(frozen=True)
class Observed:
    """What is true of one pipeline now.

    Attributes:
        owner: the live process that holds the lease, or None.
        launched: a live driver that the agent started and that does not hold the lease (starting or leaving).
        heartbeat: the last one, of any epoch.
        memory: what the agent remembers, ends already counted.
        position_since: when the agent first saw the last committed batch that the heartbeat reports.
        restoring: pid of the agent's own fall-back while its process lives.
        quiet: the newest look at the log; None: there was none yet.
        ahead: of a stream by schedule: the stream whose run comes before its own; None: it has its turn.
    """

    owner: DriverRef | None
    launched: DriverRef | None
    heartbeat: Heartbeat | None
    drain: DrainMarker | None
    defined: bool
    memory: Memory
    position_since: datetime | None = None
    restoring: int | None = None
    quiet: Quiet | None = None
    ahead: str | None = None


def decide(desired: Intent | None, observed: Observed, now: datetime, policy: BackoffPolicy = DEFAULT_POLICY) -> Action:
    """Return the next action for one pipeline.

    What must hold: while a driver lives (`owner` or `launched`), the answer is never START nor RESTORE; while a
    fall-back is under way it is neither. When the desired state is running, no process lives, the drain marker is free, the
    checkpoint is not known to be damaged and patience is not used up, the answer is START once the backoff has passed.
    """
    live = observed.owner or observed.launched
    if desired is None or desired.desired != "running":
        return _decide_stopped(live, observed, now)
    if observed.owner is not None:
        return _decide_owned(observed.owner, observed, now)
    if observed.launched is not None:
        return _decide_launched(observed.launched, observed, now)
    return _decide_absent(desired, observed, now, policy)


def runs_as_wanted(action: Action, observed: Observed) -> bool:
    """Say whether the stream is in its desired state: a driver owns it and nothing is paged, or it is stopped and none is running."""
    if action.kind is not ActionKind.WAIT or action.lasts:
        return False
    return observed.owner is not None or action.reason.startswith((STOPPED, ASLEEP, BY_SCHEDULE))


def _decide_stopped(live: DriverRef | None, observed: Observed, now: datetime) -> Action:
    if live is None:
        return Action(ActionKind.WAIT, STOPPED)
    if observed.drain is None:
        return Action(ActionKind.DRAIN, f"the desired state is stopped, but driver pid {live.pid} is running")
    waited = now - observed.drain.since
    if waited > DRAIN_SLOW_AFTER:
        reason = f"driver pid {live.pid} was asked to drain {int(waited.total_seconds())} s ago and still runs"
        return _page_once("drain_slow", reason, observed.memory)
    return Action(ActionKind.WAIT, f"driver pid {live.pid} drains")


def _decide_owned(owner: DriverRef, observed: Observed, now: datetime) -> Action:
    known = observed.memory.driver
    if known is None or (known.pid, known.pid_started, known.epoch) != (owner.pid, owner.pid_started, owner.epoch):
        return Action(ActionKind.ADOPT, f"driver pid {owner.pid} holds the lease with epoch {owner.epoch}")
    if _is_no_run(observed):
        return Action(
            ActionKind.DRAIN, f"stream.mode is scheduled, but driver pid {owner.pid} is not a run of the schedule"
        )
    beat = observed.heartbeat
    last_sign = owner.since if beat is None or beat.epoch != owner.epoch else max(beat.at, owner.since)
    silence = now - last_sign
    if silence > HUNG_AFTER:
        reason = (
            f"driver pid {owner.pid} (epoch {owner.epoch}) lives but has said nothing for "
            f"{int(silence.total_seconds())} s; it is left alone: look at its log, and kill it if it hangs, "
            "then the agent starts it again"
        )
        return _page_once("hung", reason, observed.memory)
    since = observed.position_since
    if beat is not None and beat.lag and since is not None and now - max(since, owner.since) > STALLED_AFTER:
        reason = (
            f"driver pid {owner.pid} (epoch {owner.epoch}) beats, but no batch was committed for "
            f"{int((now - max(since, owner.since)).total_seconds())} s while {beat.lag} records wait; look at its log"
        )
        return _page_once("stalled", reason, observed.memory)
    if observed.drain is None and _may_hibernate(owner, observed, now):
        minutes = _minutes(now - max(since or now, owner.since))
        return Action(ActionKind.HIBERNATE, f"no record came for {minutes}, so the driver ends until one comes")
    return Action(ActionKind.WAIT, f"driver pid {owner.pid} runs with epoch {owner.epoch}")


def _is_no_run(observed: Observed) -> bool:
    """Say whether the driver of a stream by schedule was started before the stream was one, or by somebody else."""
    run = observed.memory.run
    is_run = observed.memory.plan is None or (run is not None and run.ended_at is None)
    return not is_run and observed.drain is None


def _may_hibernate(owner: DriverRef, observed: Observed, now: datetime) -> bool:
    """Say whether a driver that works as it should has had nothing to do for long enough: by its own word and by the log."""
    quiet, beat, since = observed.quiet, observed.heartbeat, observed.position_since
    if quiet is None or quiet.after is None or beat is None or since is None:
        return False
    is_at_rest = beat.epoch == owner.epoch and beat.state == "idle" and beat.lag == 0 and quiet.lag == 0
    return is_at_rest and now - max(since, owner.since) >= quiet.after


def _minutes(time: timedelta) -> str:
    return f"{int(time.total_seconds() // 60)} min"


def _decide_launched(launched: DriverRef, observed: Observed, now: datetime) -> Action:
    waited = now - launched.since
    if launched.epoch is None and waited > START_SLOW_AFTER:
        reason = (
            f"driver pid {launched.pid} lives but holds no lease after {int(waited.total_seconds())} s; "
            "look at its log, and kill it if it hangs"
        )
        return _page_once("start_slow", reason, observed.memory)
    return Action(ActionKind.WAIT, f"driver pid {launched.pid} lives and holds no lease: it starts or leaves")


def _decide_absent(desired: Intent, observed: Observed, now: datetime, policy: BackoffPolicy) -> Action:
    memory = observed.memory
    at_rest = _decide_held(observed) or _decide_asleep(desired, observed)
    if at_rest is not None:
        return at_rest
    was_set_back = memory.broken_at is not None and memory.broken_at > now  # the clock: later requests look older
    if memory.broken_at is not None and desired.asked_at <= memory.broken_at and not was_set_back:
        return Action(ActionKind.WAIT, f"not retried until a new start is requested: {memory.broken_because}")
    at_rest = _decide_by_schedule(desired, observed, now)
    if at_rest is not None:
        return at_rest
    if memory.broken_at is not None:
        return Action(ActionKind.START, f"asked again by {desired.by} after: {memory.broken_because}")
    if not observed.defined:
        return Action(ActionKind.STOP_AND_PAGE, "the project has no definition of this pipeline", page="undefined")
    if _start_may_be_under_way(memory, now):
        return Action(ActionKind.WAIT, "the agent ended while it started a driver; that driver may still come up")
    if memory.failures and REACTIONS[memory.failures[-1].failure].response is Response.RESTORE:
        return _decide_restore(memory)
    given_up = _decide_give_up(memory, now, policy)
    if given_up is not None:
        return given_up
    if lease_losses(memory.failures, policy) >= CONTENDED_AFTER and CONTENDED not in memory.paged:
        return _decide_contended(memory, policy)
    if full_disk_ends(memory.failures, policy) >= FULL_AFTER and FULL not in memory.paged:
        return _decide_full(memory, policy)
    allowed = _start_allowed_at(memory, policy, now)
    if allowed is not None and now < allowed:
        return Action(ActionKind.WAIT, f"backoff until {to_iso(allowed)} after {_last(memory)}")
    why = (
        "the desired state is running, but no driver is running"
        if memory.plan is None
        else "a run by schedule was asked for"
    )
    return Action(ActionKind.START, f"{why}{_after(memory)}")


def _decide_held(observed: Observed) -> Action | None:
    """Return that somebody else works on the stream; None: nobody does."""
    if observed.restoring is not None:
        return Action(
            ActionKind.WAIT, f"fall-back pid {observed.restoring} puts a proved savepoint in the checkpoint's place"
        )
    if observed.drain is not None and observed.drain.held:
        return Action(ActionKind.WAIT, "somebody holds the drain marker: an operation needs the stream at rest")
    return None


def _decide_asleep(desired: Intent, observed: Observed) -> Action | None:
    """Return what to do about a stream whose driver was ended because no record came; None: it is to run.

    What cannot be looked at wakes nobody: the stream could not read it either.
    """
    since, quiet = observed.memory.asleep_since, observed.quiet
    if since is None or not sleeps(desired, observed.memory):
        return None
    if quiet is not None and quiet.at > since:
        if quiet.after is None:
            return Action(ActionKind.START, "stream.hibernate was removed, so the driver runs all the time")
        if quiet.lag:
            return Action(ActionKind.START, f"{quiet.lag} records came since {to_iso(since)}")
    return Action(
        ActionKind.WAIT, f"{ASLEEP} since {to_iso(since)}: no record came; the log is looked at every half minute"
    )


def _decide_by_schedule(desired: Intent, observed: Observed, now: datetime) -> Action | None:
    """Return what to do about a stream by schedule that has no run to make now; None: a driver is to run."""
    plan, run = observed.memory.plan, observed.memory.run
    if plan is None:
        return None
    if is_open(desired, run):
        if observed.ahead is None:
            return None
        return Action(ActionKind.WAIT, f"{QUEUED}: {observed.ahead} comes first")
    missed = missed_since(plan, run, desired.updated_at, now)
    if missed is None:
        return Action(ActionKind.WAIT, describe(plan, run, now))
    reason = f"no run was asked for since one was due at {to_iso(missed)} ({plan.schedule}): its DAG is paused, or Airflow or cron is down"
    return _page_once(MISSED, reason, observed.memory)


def sleeps(desired: Intent | None, memory: Memory) -> bool:
    """Say whether a stream is to run and its driver was ended because no record came; who asks for a start later wakes it."""
    if desired is None or desired.desired != "running" or memory.asleep_since is None:
        return False
    return desired.updated_at <= memory.asleep_since


def _decide_restore(memory: Memory) -> Action:
    newest, before = memory.failures[-1], memory.fall_back
    damaged = f"{_last(memory)}: {newest.message}"
    if before is None:
        return Action(ActionKind.RESTORE, damaged)
    if before.outcome == RESTORED and memory.position != before.position:  # another damage, after good batches
        return Action(ActionKind.RESTORE, damaged)
    if before.outcome in (DIED, "") and before.attempt < FALL_BACKS:
        return Action(ActionKind.RESTORE, f"fall-back pid {before.pid} died before its end; it is resumed; {damaged}")
    why = {
        RESTORED: f"the checkpoint that the fall-back put there is damaged again before its first batch: {newest.message}",
        REFUSED: f"the live checkpoint is damaged ({newest.message}) and the fall-back was refused: {before.message}",
    }.get(before.outcome, f"the live checkpoint is damaged and {before.attempt} fall-backs died: {before.message}")
    return Action(ActionKind.STOP_AND_PAGE, why, page=newest.failure)


def _decide_give_up(memory: Memory, now: datetime, policy: BackoffPolicy) -> Action | None:
    if not memory.failures:
        return None
    newest = memory.failures[-1]
    if REACTIONS[newest.failure].response is Response.STOP:
        detail = f": {newest.message}" if newest.message else ""
        reason = f"{_last(memory)}: {REACTIONS[newest.failure].because}{detail}"
        return Action(ActionKind.STOP_AND_PAGE, reason, page=newest.failure)
    if breaks_circuit(memory.failures, now, policy) is not None:
        reason = (
            f"{_last(memory)}, again and again without a new batch: {REACTIONS[newest.failure].because}; "
            f"last message: {newest.message}"
        )
        return Action(ActionKind.STOP_AND_PAGE, reason, page=newest.failure)
    return None


def _decide_contended(memory: Memory, policy: BackoffPolicy) -> Action:
    """Page once while it lasts; the starts continue with the backoff, because the other one may end at any moment."""
    reason = (
        f"{lease_losses(memory.failures, policy)} drivers of this host lost the lease within "
        f"{int(policy.window.total_seconds() // 60)} min, the last one because: {memory.failures[-1].message}; if another agent runs "
        f"this pipeline too, stop it on one of the hosts; until then this one stands by and tries again every "
        f"{int(policy.cap.total_seconds())} s at most"
    )
    return Action(ActionKind.PAGE, reason, page=CONTENDED)


def _decide_full(memory: Memory, policy: BackoffPolicy) -> Action:
    """Page once while it lasts; the starts continue with the backoff, for space is all that is missing."""
    newest = memory.failures[-1]
    reason = (
        f"{_last(memory)}, {full_disk_ends(memory.failures, policy)} times in a row without a new batch: "
        f"{REACTIONS[newest.failure].because}; it is tried again every {int(policy.cap.total_seconds())} s at most, and continues "
        f"by itself once there is room; last message: {newest.message}"
    )
    return Action(ActionKind.PAGE, reason, page=FULL)


def _start_may_be_under_way(memory: Memory, now: datetime) -> bool:
    intended = memory.intended
    if intended is None or intended.kind != ActionKind.START or intended.done:
        return False
    return timedelta(0) <= now - intended.at < UNRECORDED_START


def _start_allowed_at(memory: Memory, policy: BackoffPolicy, now: datetime) -> datetime | None:
    """Return when the next start is allowed. An instant after `now` was noted before the clock was set back."""
    instants: list[datetime] = []
    attempt = next_attempt(memory.failures, policy)
    if attempt is not None and memory.failures[-1].at <= now:
        instants.append(attempt)
    if memory.last_start_at is not None and memory.last_start_at <= now:
        instants.append(memory.last_start_at + BETWEEN_STARTS)
    return max(instants, default=None)


def _page_once(key: str, reason: str, memory: Memory) -> Action:
    if key in memory.paged:
        return Action(ActionKind.WAIT, reason, lasts=key)
    return Action(ActionKind.PAGE, reason, page=key)


def _last(memory: Memory) -> str:
    if not memory.failures:
        return "the last start"
    newest = memory.failures[-1]
    epoch = "before it had a lease" if newest.epoch is None else f"with epoch {newest.epoch}"
    return f"the driver ended ({newest.failure}) {epoch}"


def _after(memory: Memory) -> str:
    return f"; {_last(memory)}" if memory.failures else ""
