"""The triggers that watch a stream for one epoch, or until a run has ended. They observe; they never own, start or end a driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from rivertwice.agent import Condition
from rivertwice.core import ServiceError, Settings, parse_iso, to_plain, utc_now
from rivertwice.tasks import AgentClient, Watched

EPOCH_ENDED = "epoch"
FAR_POLL_S = 5.0
"""Time between two looks at a stream whose agent is asked over HTTP: each is a request, for each pipeline."""


@dataclass(frozen=True)
class WatchEvent:
    """What ended an epoch: the word for it, what a person reads, and what was last seen of the stream."""

    status: str
    message: str
    seen: Mapping[str, object]


class Watch:
    """Follows one pipeline's health through an epoch. Pure: it is passed each observation, and its time."""

    def __init__(self, ends_at: datetime, grace: float) -> None:
        self._ends_at = ends_at
        self._grace = grace
        self._fault: tuple[str, datetime] | None = None

    def judge(self, watched: Watched, now: datetime) -> WatchEvent | None:
        """Return the event that ends the epoch, or None to continue.

        A fault must last for the whole grace: a driver that the agent brings back in time is not a failure.
        """
        if watched.word == Condition.OK:
            self._fault = None
        elif self._fault is None:
            self._fault = (watched.word, now)
        if self._fault is not None and (now - self._fault[1]).total_seconds() >= self._grace:
            message = f"{watched.message} (for {self._grace:.0f} s)"
            return WatchEvent(watched.word, message, watched.seen)
        if now >= self._ends_at:
            return WatchEvent(EPOCH_ENDED, watched.message, watched.seen)
        return None


AGENT_PATIENCE_S = 120.0
"""How long the agent may be silent while a run is waited for: it may be restarted."""
RAN = "ran"


class RunWatch:
    """Follows one run of a stream by schedule. Pure: it is passed each observation, and its time."""

    def __init__(self, asked_at: datetime) -> None:
        self._asked_at = asked_at
        self._silent_since: datetime | None = None

    def judge(self, watched: Watched, now: datetime) -> WatchEvent | None:
        """Return the event that ends the wait, or None to continue.

        A run that is interrupted is no failure: the agent makes it again until it gives the stream up.
        """
        run = watched.seen.get("run")
        if run is not None and run["ended_at"] is not None and parse_iso(run["begun_at"]) >= self._asked_at:
            return WatchEvent(RAN, f"read to the log's end by {run['ended_at']}", watched.seen)
        if watched.word == Condition.GIVEN_UP:
            return WatchEvent(watched.word, watched.message, watched.seen)
        if watched.seen.get("desired", "running") != "running":
            return WatchEvent(Condition.OK, "somebody stopped the stream meanwhile", watched.seen)
        if watched.word != Condition.AGENT:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        elif (now - self._silent_since).total_seconds() >= AGENT_PATIENCE_S:
            return WatchEvent(watched.word, watched.message, watched.seen)
        return None


def look_at(pipeline: str, agent: AgentClient | None, now: datetime) -> Watched:
    """Return how a stream is, from the home of this host or from its agent."""
    if agent is None:
        return Watched.of(Settings.from_env(), pipeline, now)
    try:
        return agent.watch(pipeline)
    except ServiceError as error:
        return Watched(Condition.AGENT, str(error), {})


class RunTrigger(BaseTrigger):
    """Waits until a run of a stream by schedule that was asked for has ended. It observes: the agent owns the driver.

    Args:
        asked_at: when it was asked for, ISO 8601.
        poll: seconds between two looks.
    """

    def __init__(self, pipeline: str, asked_at: str, poll: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.asked_at = asked_at
        self.poll = poll

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that make this trigger again."""
        arguments = {"pipeline": self.pipeline, "asked_at": self.asked_at, "poll": self.poll}
        return "rivertwice.airflow.triggers.RunTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look every `poll` seconds; yield one event."""
        watch, agent = RunWatch(parse_iso(self.asked_at)), AgentClient.from_env()
        while True:
            watched = await asyncio.to_thread(look_at, self.pipeline, agent, utc_now())
            event = watch.judge(watched, utc_now())
            if event is not None:
                yield TriggerEvent(to_plain(event))  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poll if agent is None else max(self.poll, FAR_POLL_S))


class EpochTrigger(BaseTrigger):
    """Watches one pipeline until the epoch ends or a fault has lasted too long.

    Its arguments are all its state, so another triggerer continues where a killed one stopped. `on_kill` stays empty: marking
    the task failed must not touch the stream. Stop a stream with `rivertwice stop`.

    Args:
        ends_at: end of the epoch, ISO 8601.
        grace: seconds a fault may last.
        poll: seconds between two looks.
        clock: only for tests.
    """

    def __init__(
        self,
        pipeline: str,
        ends_at: str,
        grace: float,
        poll: float,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.ends_at = ends_at
        self.grace = grace
        self.poll = poll
        self._clock = clock

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that make this trigger again."""
        arguments = {"pipeline": self.pipeline, "ends_at": self.ends_at, "grace": self.grace, "poll": self.poll}
        return "rivertwice.airflow.triggers.EpochTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look every `poll` seconds; yield one event."""
        watch, agent = Watch(parse_iso(self.ends_at), self.grace), AgentClient.from_env()
        while True:
            watched = await asyncio.to_thread(look_at, self.pipeline, agent, self._clock())
            event = watch.judge(watched, self._clock())
            if event is not None:
                yield TriggerEvent(to_plain(event))  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poll if agent is None else max(self.poll, FAR_POLL_S))
