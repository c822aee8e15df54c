"""One pipeline's state as values: what `rivertwice status` and the page in Airflow show, and what is measured. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from rivertwice.agent.backoff import consecutive_failures, next_attempt
from rivertwice.agent.health import Condition, Health, StreamObservation, observe_stream
from rivertwice.agent.launch import agent_status
from rivertwice.core import PipelineHome, RivertwiceError, Settings, from_ms, to_iso
from rivertwice.quality import failing_by_severity, standing
from rivertwice.retention import RetentionBrief
from rivertwice.timeline import (
    Acceptance,
    Entry,
    Heartbeat,
    ServedEnd,
    newest_batch,
    path_of,
    read_sequence,
    read_versions,
    select_head,
    served_end,
)

if TYPE_CHECKING:
    from rivertwice.backfill import LoadProgress, StreamLoadProgress
    from rivertwice.savepoint import RecoveryView
    from rivertwice.versions import Step

T = TypeVar("T")
LAG_FRESH_S = 20.0
"""A driver asks the log for its end every five seconds; an older lag was true once, and is shown with its age."""


@dataclass(frozen=True)
class Unreadable:
    """Why a part cannot be read: a word, and the message. One damaged part must not hide the rest."""

    error: str
    message: str


@dataclass(frozen=True)
class DriverView:
    """The process that holds the lease."""

    pid: int
    epoch: int


@dataclass(frozen=True)
class ExitView:
    """How the last driver ended: its epoch, the class of its failure, when, and what it said."""

    epoch: int
    class_: str
    at: datetime
    message: str


@dataclass(frozen=True)
class ScheduleView:
    """When a stream runs by schedule.

    Attributes:
        schedule: cron in UTC, a duration, or `none`: runs are asked for.
        begun_at, ended_at: the newest run; ended_at: None: it has not read to the log's end.
        overdue_since: by when the log should have been read to its end and was not; None: it was.
    """

    schedule: str
    next_at: datetime | None
    begun_at: datetime | None
    ended_at: datetime | None
    overdue_since: datetime | None

    @classmethod
    def of(cls, observation: StreamObservation, now: datetime) -> ScheduleView | None:
        """Return the view; None: the stream runs all the time."""
        plan, run = observation.memory.plan, observation.memory.run
        if plan is None:
            return None
        return cls(
            schedule=plan.schedule,
            next_at=observation.next_run(now),
            begun_at=None if run is None else run.begun_at,
            ended_at=None if run is None else run.ended_at,
            overdue_since=observation.overdue_since(now),
        )


@dataclass(frozen=True)
class StreamView:
    """The desired and the observed state of a pipeline's stream. What is not known is None; nothing is guessed.

    Attributes:
        timeline: the head; batch, watermark: the last batch of it, and up to where event time is closed.
        lag: records that wait, as of `lag_at`, `lag_age_s` ago: the log may have grown since, or be another.
        catch_up_s: until the lag is gone; None: not known, or never at this pace.
        placed_until: event time up to which all partitions are read next; None: batches are not placed by event time.
        sequence: number of its newest entry.
        serves: false: another version of the pipeline does.
        served: up to where closed windows are in the table that readers see, and up to where they are closed.
        by_schedule: None: the stream runs all the time.
        unread: why the sequence or the ledger cannot be read.
    """

    name: str
    defined: bool
    desired: str | None
    desired_by: str | None
    state: str
    health: Health
    driver: DriverView | None
    timeline: str | None
    batch: int | None
    watermark: datetime | None
    lag: int | None
    lag_at: datetime | None
    lag_age_s: float | None
    rows_per_s: float | None
    arriving_per_s: float | None
    catch_up_s: float | None
    placed_until: datetime | None
    heartbeat_age_s: float | None
    exit: ExitView | None
    failures: int
    consecutive_failures: int
    is_backing_off: bool
    next_attempt: datetime | None
    given_up: str | None
    agent_action: Any
    sequence: int
    serves: bool
    served: ServedEnd | Unreadable
    unread: str | None
    by_schedule: ScheduleView | None

    @property
    def is_lag_fresh(self) -> bool:
        """Whether the lag is kept up to date."""
        return self.driver is not None and self.lag_age_s is not None and self.lag_age_s <= LAG_FRESH_S

    @property
    def lag_text(self) -> str | None:
        """The lag: with its age if it is not up to date, `not known` if it was never measured, None before a driver."""
        if self.lag is None or self.lag_age_s is None:
            return None if self.heartbeat_age_s is None else "not known"
        return str(self.lag) if self.is_lag_fresh else f"{self.lag}, {_ago(self.lag_age_s)} ago"

    @property
    def stale_lag_text(self) -> str | None:
        """Why the lag is not known now, and what measures it; None if it is known, or nothing ever ran."""
        if self.heartbeat_age_s is None or (self.is_lag_fresh and self.state != Condition.UNRESPONSIVE):
            return None
        if self.state in (Condition.HIBERNATING, Condition.SCHEDULED, Condition.QUEUED):
            return None  # nothing waited when it went to rest, and the agent looks at the log
        who = "no driver is running" if self.driver is None else "the driver gets no answer from Kafka"
        if self.state == Condition.UNRESPONSIVE and self.driver is not None:
            who = f"the driver (pid {self.driver.pid}) lives but has said nothing for {_ago(self.heartbeat_age_s)}: look at its log"
        known = "not measured since the last driver or the last head move"
        if self.lag_at is not None and self.lag_age_s is not None:
            known = f"{self.lag} is what waited at {to_iso(self.lag_at)}, {_ago(self.lag_age_s)} ago"
        return f"the lag is not known now, because {who}; {known}; `rivertwice agent metrics {self.name}` asks Kafka"


@dataclass(frozen=True)
class FailingExpectation:
    """An expectation of a suite that fails."""

    id: str
    severity: str
    state: str
    message: str


@dataclass(frozen=True)
class QualityView:
    """What a pipeline's own suite says of what is served.

    Attributes:
        expectations: how many there are. failing: severity to number. found: each that fails.
    """

    run: str
    at: datetime
    expectations: int
    failing: Mapping[str, int]
    found: tuple[FailingExpectation, ...]


@dataclass(frozen=True)
class SavepointPlace:
    """A savepoint, and the batch that it is of."""

    id: str
    timeline: str
    batch: int


@dataclass(frozen=True)
class AwaitedProof:
    """A savepoint from which the head began that is not proved yet; origin: the way back until it is."""

    savepoint: str
    origin: str | None


@dataclass(frozen=True)
class FallBackView:
    """How long a fall-back would take now, and what waits for its proof.

    Attributes:
        batches: that would be replayed; batch_s: seconds for one; measured: whether a proof has measured them.
        objective_s: what was promised; over: whether it takes longer.
    """

    seconds: float
    batches: int
    batch_s: float
    measured: bool
    objective_s: float | None
    over: bool
    awaiting: tuple[AwaitedProof, ...]


@dataclass(frozen=True)
class PipelineView(StreamView):
    """The desired and the observed state of a pipeline: its stream, and its newest reconcile, savepoint and so on.

    Attributes:
        versions: where they stand; empty if there is only one, or nobody asked.
    """

    reconcile: Mapping[str, Any] | Unreadable | None
    quality: QualityView | Unreadable | None
    savepoint: SavepointPlace | Unreadable | None
    recovery: FallBackView | Unreadable | None
    retention: RetentionBrief | Unreadable | None
    first_load: LoadProgress | Unreadable | None
    stream_load: StreamLoadProgress | Unreadable | None
    versions: tuple[VersionBrief, ...] | Unreadable = ()


@dataclass(frozen=True)
class VersionBrief:
    """Where one version of a pipeline stands; comparison: the run of its newest one."""

    name: str
    serves: bool
    since: str | None
    proved_until: str | None
    comparison: str | None
    accepted: Acceptance | None
    next: Step


def view_pipeline(settings: Settings, name: str, now: datetime, *, versions: bool = False) -> PipelineView:
    """Return the desired and the observed state of a pipeline; if asked for, with its versions, and so with what proves them."""
    home = settings.pipeline(name)
    recovery = cache(lambda: _view_recovery(settings, name))
    return PipelineView(
        **vars(view_stream(settings, name, now)),
        reconcile=readable(lambda: _reconcile(home)),
        quality=view_quality(settings, home),
        savepoint=readable(lambda: _savepoint(recovery())),
        recovery=readable(lambda: _recovery(recovery())),
        retention=readable(lambda: RetentionBrief.read(settings, name, now)),
        first_load=view_first_load(home),
        stream_load=view_stream_load(home),
        versions=readable(lambda: _versions(settings, name)) if versions and home.is_first_version else (),
    )


def view_quality(settings: Settings, home: PipelineHome) -> QualityView | Unreadable | None:
    """Return what the pipeline's own suite says of what is served; None if it has none."""

    def view() -> QualityView | None:
        known = standing(settings, home)
        if known is None:
            return None
        failing = [each for each in known.judgements if each.fails]
        found = tuple(FailingExpectation(each.id, each.severity, each.state, each.describe()) for each in failing)
        return QualityView(known.run, known.created_at, len(known.judgements), failing_by_severity(known), found)

    return readable(view)


def view_stream(
    settings: Settings, name: str, now: datetime, observation: StreamObservation | None = None
) -> StreamView:
    """Return the desired and the observed state of a pipeline's stream; `observation` is what a caller has looked up already."""
    home = settings.pipeline(name)
    observation = observe_stream(settings, name, now) if observation is None else observation
    intent, owner, beat, ended = observation.intent, observation.owner, observation.heartbeat, observation.last_exit
    failures = observation.memory.failures
    entries, unread = _entries_of(home)
    agent = agent_status(settings)
    timeline = select_head(entries)
    if beat is not None and timeline is not None and beat.timeline != timeline:
        # the head moved since: a restore, a rewind, an upgrade
        beat, unread = _beat_of_head(home, timeline, beat)
    is_own = beat is not None and owner is not None and beat.epoch == owner.epoch
    speaking = beat if is_own and observation.state != Condition.UNRESPONSIVE else None
    lag_at = None if beat is None or beat.lag is None else beat.lag_at or beat.at
    is_waiting = owner is None and observation.memory.broken_at is None
    attempt = next_attempt(failures) if is_waiting else None
    attempt = None if attempt is None or attempt <= now else attempt
    return StreamView(
        name=name,
        defined=(settings.definition_folder(name) / "pipeline.yaml").is_file(),
        desired=None if intent is None else intent.desired,
        desired_by=None if intent is None else intent.by,
        state=observation.state,
        health=observation.classify(now),
        driver=None if owner is None else DriverView(owner.pid, owner.epoch),
        timeline=timeline,
        batch=None if beat is None else beat.batch,
        watermark=None if beat is None else _of_ms(beat.watermark_ms),
        lag=None if beat is None else beat.lag,
        lag_at=lag_at,
        lag_age_s=None if lag_at is None else _age_s(lag_at, now),
        rows_per_s=None if speaking is None else speaking.rows_per_s,
        arriving_per_s=None if speaking is None else speaking.arriving_per_s,
        catch_up_s=None if speaking is None else speaking.catch_up_s,
        placed_until=None if speaking is None else _of_ms(speaking.placed_until_ms),
        heartbeat_age_s=None if beat is None else _age_s(beat.at, now),
        exit=None if ended is None else ExitView(ended.epoch, ended.failure, ended.at, ended.message),
        failures=len(failures),
        consecutive_failures=consecutive_failures(failures),
        is_backing_off=attempt is not None,
        next_attempt=attempt,
        given_up=observation.given_up or None,
        agent_action=None if agent is None else agent.pipelines.get(name),
        sequence=entries[-1].seq if entries else 0,
        serves=home.serves,
        served=readable(lambda: served_end(home)),
        unread=unread,
        by_schedule=ScheduleView.of(observation, now),
    )


def _age_s(at: datetime, now: datetime) -> float:
    return round((now - at).total_seconds(), 1)


def _of_ms(epoch_ms: int | None) -> datetime | None:
    return None if epoch_ms is None else from_ms(epoch_ms)


def _ago(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _entries_of(home: PipelineHome) -> tuple[list[Entry], str | None]:
    """Return the sequence, and why it cannot be read: then nothing is known of it, and all else is shown."""
    try:
        return read_sequence(home), None
    except RivertwiceError as error:
        return [], str(error)


def _beat_of_head(home: PipelineHome, timeline: str, beat: Heartbeat) -> tuple[Heartbeat, str | None]:
    """Return a heartbeat of another timeline with the head's own position, and why that cannot be read.

    The lag after that position is not known yet.
    """
    last, unread = None, None
    try:
        last = newest_batch(home, path_of(home, timeline))
    except RivertwiceError as error:
        unread = str(error)
    own = Heartbeat(
        epoch=beat.epoch,
        pid=beat.pid,
        timeline=timeline,
        state=beat.state,
        at=beat.at,
        batch=None if last is None else last.batch,
        watermark_ms=None if last is None else last.batch_watermark_ms,
    )
    return own, unread


def _reconcile(home: PipelineHome) -> Mapping[str, Any] | None:
    from rivertwice.reconcile import newest_reconcile

    return newest_reconcile(home)


def _versions(settings: Settings, name: str) -> tuple[VersionBrief, ...]:
    if not any(version.is_open for version in read_versions(settings.pipeline(name))):
        return ()
    from rivertwice.versions import view_versions

    return tuple(
        VersionBrief(
            view.name,
            view.serves,
            view.since,
            view.proved_until,
            None if view.comparison is None else view.comparison.run,
            view.accepted,
            view.next,
        )
        for view in view_versions(settings, name)
    )


def _view_recovery(settings: Settings, name: str) -> RecoveryView:
    from rivertwice.savepoint import view_recovery

    return view_recovery(settings, name)


def _savepoint(view: RecoveryView) -> SavepointPlace | None:
    from rivertwice.savepoint import select_newest

    newest = select_newest(view.savepoints, proved=True)
    return None if newest is None else SavepointPlace(newest.id, newest.manifest.timeline, newest.manifest.batch)


def _recovery(view: RecoveryView) -> FallBackView | None:
    """Return how long a fall-back would take now, and what waits for its proof; None before the first batch."""
    if view.estimate is None:
        return None
    return FallBackView(
        view.estimate.seconds,
        view.estimate.batches,
        view.estimate.batch_s,
        view.estimate.measured,
        None if view.objective is None else view.objective.total_seconds(),
        view.is_over,
        tuple(AwaitedProof(each.savepoint, each.origin) for each in view.awaiting),
    )


def view_first_load(home: PipelineHome) -> LoadProgress | Unreadable | None:
    """Return a first load by batch that is not done; None if there is none. Never guessed."""
    from rivertwice.backfill import find_unfinished_load

    def view() -> LoadProgress | None:
        unfinished = find_unfinished_load(home)
        return None if unfinished is None else unfinished.progress

    return readable(view)


def view_stream_load(home: PipelineHome) -> StreamLoadProgress | Unreadable | None:
    """Return how far a load by the stream in large batches is; None if there is none, or all is read. Never guessed."""
    from rivertwice.backfill import StreamLoadProgress, find_unread

    def view() -> StreamLoadProgress | None:
        unread = find_unread(home)
        return None if unread is None else StreamLoadProgress.of(*unread)

    return readable(view)


def readable(ask: Callable[[], T]) -> T | Unreadable:
    """Return the value, or the reason why it cannot be read."""
    try:
        return ask()
    except RivertwiceError as error:
        return Unreadable(error.reason, str(error))
