"""Whether a stream is in its desired state: one observation and one judgement, for `status`, Airflow's triggers and the page.

The judgement is pure: its input is values and `now`, its result a word and a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rivertwice.agent.by_schedule import describe, is_open, missed_since, next_due, overdue_since
from rivertwice.agent.decide import HUNG_AFTER, sleeps
from rivertwice.agent.memory import Memory, load_memory
from rivertwice.core import Settings, is_alive, parse_iso, to_iso, to_plain
from rivertwice.storage import read_json
from rivertwice.stream import Owner, lease_owner
from rivertwice.timeline import Exit, Heartbeat, Intent


class Condition:
    """What is wrong with the processes of a pipeline."""

    OK = "ok"
    AGENT = "agent_dead"
    DRIVER = "driver_down"
    GIVEN_UP = "given_up"
    UNRESPONSIVE = "unresponsive"
    HIBERNATING = "hibernating"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    MISSED = "run_missed"


AGENT_SILENT = timedelta(seconds=30)
SPEAKS_WITHIN = timedelta(seconds=10)
"""A driver beats every second; one that is silent for longer is shown as unresponsive. The agent pages after `HUNG_AFTER`."""


@dataclass(frozen=True)
class StreamObservation:
    """What the home contains now.

    Attributes:
        owner: the live process that holds the lease, or None.
        state: starting, running, idle, draining, unresponsive, restoring, hibernating, scheduled (at rest between two runs), queued
            (a run waits for its turn), given_up, or down.
        given_up: why the agent starts no driver any more, if so.
    """

    intent: Intent | None
    agent_at: datetime | None
    owner: Owner | None
    heartbeat: Heartbeat | None
    last_exit: Exit | None
    state: str
    given_up: str | None = None
    memory: Memory = field(default_factory=Memory)

    def classify(self, now: datetime) -> Health:
        """Say whether the stream is in its desired state.

        A stream whose desired state is stopped is never a failure. Otherwise the agent's heartbeat must be at most 30 s old, and the
        driver must hold the lease and have a heartbeat of at most 120 s.
        """
        if self.intent is None or self.intent.desired != "running":
            return Health(Condition.OK, "stopped, as desired" if self.intent else "no start was requested")
        if self.given_up:
            return Health(
                Condition.GIVEN_UP,
                f"the agent has stopped retrying: {self.given_up}; correct the cause, then `rivertwice start`",
            )
        if self.agent_at is None or now - self.agent_at > AGENT_SILENT:
            last_word = "never" if self.agent_at is None else f"{(now - self.agent_at).total_seconds():.0f} s ago"
            driver = "the driver still runs" if self.owner is not None else "no driver runs"
            return Health(
                Condition.AGENT,
                f"the agent last spoke {last_word}; {driver}, but it would not be restarted: run `rivertwice agent start`",
            )
        beat = self.heartbeat
        if self.state == Condition.HIBERNATING:
            return Health(Condition.OK, "hibernates: no record came; the agent starts the driver when one does")
        if self.state == Condition.SCHEDULED:
            missed = self.missed_since(now)
            if missed is not None:
                return Health(Condition.MISSED, f"no run was asked for since one was due at {to_iso(missed)}")
            return Health(Condition.OK, self.schedule_text(now))
        if self.state == Condition.QUEUED:
            return Health(Condition.OK, "by schedule: a run was asked for and waits for its turn")
        if self.owner is None:
            return Health(
                Condition.DRIVER,
                f"the desired state is running, but no driver holds the lease{_ending(self.last_exit)}",
            )
        if beat is not None and now - beat.at > HUNG_AFTER:
            silent = (now - beat.at).total_seconds()
            return Health(
                Condition.DRIVER, f"driver pid {beat.pid} (epoch {beat.epoch}) lives but last spoke {silent:.0f} s ago"
            )
        return Health(
            Condition.OK, "running" if beat is None else f"epoch {beat.epoch}, batch {beat.batch}, {beat.state}"
        )

    def missed_since(self, now: datetime) -> datetime | None:
        """Return when a run by schedule was due that has not begun in time; None: none was missed."""
        plan = self.memory.plan
        if plan is None or self.intent is None or self.state != Condition.SCHEDULED:
            return None
        return missed_since(plan, self.memory.run, self.intent.updated_at, now)

    def overdue_since(self, now: datetime) -> datetime | None:
        """Return by when a run by schedule should have read to the log's end and has not; None: it has, or none is due."""
        plan = self.memory.plan
        if plan is None or self.intent is None or self.intent.desired != "running":
            return None
        return overdue_since(plan, self.memory.run, self.intent.updated_at, now)

    def next_run(self, now: datetime) -> datetime | None:
        """Return when the next run by schedule is due; None: the stream runs all the time, or no schedule says it."""
        return None if self.memory.plan is None else next_due(self.memory.plan, self.memory.run, now)

    def schedule_text(self, now: datetime) -> str:
        """Return when the next run by schedule is due and when the newest one was; empty: the stream runs all the time."""
        return "" if self.memory.plan is None else describe(self.memory.plan, self.memory.run, now)

    def describe(self) -> Mapping[str, Any]:
        """Return what the asset store keeps: plain values only."""
        beat, run = self.heartbeat, self.memory.run
        by_schedule = {} if self.memory.plan is None else {"schedule": self.memory.plan.schedule, "run": to_plain(run)}
        return by_schedule | {
            "desired": self.intent.desired if self.intent else None,
            "epoch": beat.epoch if beat else None,
            "pid": beat.pid if beat else None,
            "timeline": beat.timeline if beat else None,
            "batch": beat.batch if beat else None,
            "state": self.state,
            "watermark_ms": beat.watermark_ms if beat else None,
            "lag": beat.lag if beat else None,
        }


@dataclass(frozen=True)
class Health:
    """A word and a sentence; `ok` also when the stream is stopped as desired."""

    word: str
    message: str


def observe_stream(settings: Settings, name: str, now: datetime) -> StreamObservation:
    """Return what the home contains about one pipeline's stream."""
    home = settings.pipeline(name)
    agent = read_json(settings.home / "agent" / "heartbeat.json")
    intent, owner, beat = Intent.load(home), lease_owner(home), Heartbeat.load(home)
    memory = load_memory(settings, name)
    broken = memory.broken_at is not None and (intent is None or intent.asked_at <= memory.broken_at)
    return StreamObservation(
        intent=intent,
        agent_at=parse_iso(agent["at"]) if agent else None,
        owner=owner,
        heartbeat=beat,
        last_exit=Exit.load(home),
        state=find_state(owner, beat, memory, now, given_up=broken, asleep=sleeps(intent, memory), intent=intent),
        given_up=memory.broken_because if broken else None,
        memory=memory,
    )


def find_state(
    owner: Owner | None,
    beat: Heartbeat | None,
    memory: Memory,
    now: datetime,
    *,
    given_up: bool,
    asleep: bool,
    intent: Intent | None = None,
) -> str:
    """Return the state of a stream, as every surface shows it.

    Args:
        asleep: its driver was ended because no record came.
        intent: of a stream by schedule, which rests between its runs.
    """
    if owner is not None:
        if beat is None or beat.epoch != owner.epoch:
            return "starting"
        return Condition.UNRESPONSIVE if now - beat.at > SPEAKS_WITHIN else beat.state
    if given_up:
        return Condition.GIVEN_UP
    restore = memory.fall_back
    if restore is not None and not restore.outcome and is_alive(restore.pid, restore.pid_started):
        return "restoring"
    known = memory.driver
    if known is not None and is_alive(known.pid, known.pid_started):
        return "starting"
    if memory.plan is not None and intent is not None and intent.desired == "running":
        if not is_open(intent, memory.run):
            return Condition.SCHEDULED
        if not memory.failures:
            return Condition.QUEUED
    return Condition.HIBERNATING if asleep else "down"


def choose_grace(failures: int, grace: float, epoch: float) -> float:
    """Return how long a fault may last before it fails the epoch.

    It doubles with each epoch that failed before, up to the epoch's own length, so that a lasting fault raises an
    alert less and less often instead of one every minute.
    """
    return min(grace * 2.0 ** min(failures, 16), epoch)


def _ending(last: Exit | None) -> str:
    return (
        ""
        if last is None
        else f"; the last one to say why (epoch {last.epoch}) ended as {last.failure}: {last.message}"
    )
