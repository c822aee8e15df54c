"""One pipeline's state as plain data: what `rivertwice status` and the page in Airflow show. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from rivertwice.agent.backoff import consecutive_failures, next_attempt
from rivertwice.agent.health import UNRESPONSIVE, StreamObservation, classify_health, observe_stream
from rivertwice.agent.launch import agent_status
from rivertwice.agent.memory import Memory
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.quality.table import failing_by_severity, standing
from rivertwice.retention.summary import last_retention
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.intent import Heartbeat
from rivertwice.timeline.lineage import path_of
from rivertwice.timeline.result_status import served_end
from rivertwice.timeline.sequence import Entry, read_sequence, select_head
from rivertwice.timeline.version_records import read_versions

if TYPE_CHECKING:
    from rivertwice.quality.table import QualityRun
    from rivertwice.savepoint.recovery import RecoveryView


def view_pipeline(settings: Settings, name: str, now: datetime) -> dict[str, Any]:
    """Return the desired and the observed state of a pipeline: its stream, and reconcile, quality, savepoint, recovery, retention, first load."""
    home = settings.pipeline(name)
    recovery = cache(lambda: _view_recovery(settings, name))
    return {
        **view_stream(settings, name, now),
        "reconcile": _try(lambda: _reconcile(home)),
        "quality": view_quality(settings, home),
        "savepoint": _try(lambda: _savepoint(recovery())),
        "recovery": _try(lambda: _recovery(recovery())),
        "retention": _try(lambda: last_retention(settings, name, now)),
        "first_load": view_first_load(home),
        "stream_load": view_stream_load(home),
    }


def view_quality(settings: Settings, home: PipelineHome) -> dict[str, Any] | None:
    """Return what the pipeline's own suite says of what is served; None if it has none.

    Returns:
        run, at, expectations (how many), failing (severity to number), found (each that fails: id, severity, state, message); or
        error and message, if the suite cannot be read.
    """
    return _try(lambda: _describe_quality(standing(settings, home)))  # type: ignore[no-any-return]


def _describe_quality(known: QualityRun | None) -> dict[str, Any] | None:
    if known is None:
        return None
    return {
        "run": known.run,
        "at": to_iso(known.created_at),
        "expectations": len(known.judgements),
        "failing": failing_by_severity(known),
        "found": [
            {"id": each.id, "severity": each.severity, "state": each.state, "message": each.describe()}
            for each in known.judgements
            if each.fails
        ],
    }


def view_stream(
    settings: Settings, name: str, now: datetime, observation: StreamObservation | None = None
) -> dict[str, Any]:
    """Return the desired and the observed state of a pipeline's stream; `observation` is what a caller has looked up already.

    Returns:
        desired, state, driver (pid, epoch) or None, timeline, batch, watermark, lag (with lag_at and lag_age_s: the log may
        have grown since, or be another), rows_per_s, arriving_per_s,
        catch_up_s (until the lag is gone; null: not known, or never at this pace), placed_until (event time up to which all
        partitions are read next; null: batches are not placed by event time), heartbeat_age_s, exit, failures,
        consecutive_failures, is_backing_off, next_attempt, agent_action, sequence, serves (false: another version of the
        pipeline does), served (timeline, batch, until, closed, is_current: up to where closed windows are in the table that readers
        see, and up to where they are closed; or error and message), unread (why the sequence or the ledger cannot be read). Unknown
        values are None; never guessed.
    """
    home = settings.pipeline(name)
    observation = observe_stream(settings, name, now) if observation is None else observation
    health = classify_health(observation, now)
    intent, owner, beat, ended = observation.intent, observation.owner, observation.heartbeat, observation.last_exit
    memory = observation.memory
    entries, unread = _entries_of(home)
    agent = agent_status(settings)
    timeline = select_head(entries)
    if beat is not None and timeline is not None and beat.timeline != timeline:
        # the head moved since: a restore, a rewind, an upgrade
        beat, unread = _beat_of_head(home, timeline, beat)
    is_own = beat is not None and owner is not None and beat.epoch == owner.epoch
    age_s = None if beat is None else (now - beat.at).total_seconds()
    speaks = is_own and observation.state != UNRESPONSIVE
    watermark = None if beat is None or beat.watermark_ms is None else to_iso(from_ms(beat.watermark_ms))
    return {
        "name": name,
        "defined": (settings.definition_folder(name) / "pipeline.yaml").is_file(),
        "desired": None if intent is None else intent.desired,
        "desired_by": None if intent is None else intent.by,
        "state": observation.state,
        "health": {"word": health.word, "message": health.message},
        "driver": None if owner is None else {"pid": owner.pid, "epoch": owner.epoch},
        "timeline": timeline,
        "batch": None if beat is None else beat.batch,
        "watermark": watermark,
        "lag": None if beat is None else beat.lag,
        "lag_at": None if beat is None or beat.lag is None else to_iso(beat.lag_at or beat.at),
        "lag_age_s": None
        if beat is None or beat.lag is None
        else round((now - (beat.lag_at or beat.at)).total_seconds(), 1),
        "rows_per_s": beat.rows_per_s if beat and speaks else None,
        "arriving_per_s": beat.arriving_per_s if beat and speaks else None,
        "catch_up_s": beat.catch_up_s if beat and speaks else None,
        "placed_until": to_iso(from_ms(beat.placed_until_ms))
        if beat and speaks and beat.placed_until_ms is not None
        else None,
        "heartbeat_age_s": None if age_s is None else round(age_s, 1),
        "exit": None
        if ended is None
        else {"epoch": ended.epoch, "class": ended.failure, "at": to_iso(ended.at), "message": ended.message},
        "failures": len(memory.failures),
        **_patience(owner is not None, memory, now),
        "given_up": observation.given_up or None,
        "agent_action": None if agent is None else agent.pipelines.get(name),
        "sequence": entries[-1].seq if entries else 0,
        "serves": home.serves,
        "served": _try(lambda: _served(home)),
        "unread": unread,
    }


def _served(home: PipelineHome) -> dict[str, Any]:
    end = served_end(home)
    return {
        "timeline": end.timeline,
        "batch": end.batch,
        "until": None if end.until is None else to_iso(end.until),
        "closed": None if end.closed is None else to_iso(end.closed),
        "is_current": end.is_current,
    }


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


def _patience(owned: bool, memory: Memory, now: datetime) -> dict[str, Any]:
    """Return how often the driver has failed in a row, and when the agent will try again."""
    attempt = None if owned or memory.broken_at is not None else next_attempt(memory.failures)
    return {
        "consecutive_failures": consecutive_failures(memory.failures),
        "is_backing_off": attempt is not None and attempt > now,
        "next_attempt": None if attempt is None or attempt <= now else to_iso(attempt),
    }


def _reconcile(home: PipelineHome) -> Any:
    from rivertwice.reconcile.results import newest_reconcile

    return newest_reconcile(home)


def view_versions(settings: Settings, name: str) -> Any:
    """Return where the versions of a pipeline stand; nothing for a version, or if there is only one. Reads what proves them."""
    return _try(lambda: _versions(settings, name)) if settings.pipeline(name).is_first_version else []


def _versions(settings: Settings, name: str) -> list[dict[str, Any]]:
    if not any(version.is_open for version in read_versions(settings.pipeline(name))):
        return []
    from rivertwice.versions import view as room  # reads reconciles and their proofs

    return [
        {
            "name": view.name,
            "serves": view.serves,
            "since": view.since,
            "proved_until": view.proved_until,
            "comparison": None if view.comparison is None else view.comparison.run,
            "accepted": None if view.accepted is None else view.accepted.plain(),
            "next": {"act": view.next.act, "text": view.next.text},
        }
        for view in room.view_versions(settings, name)
    ]


def _view_recovery(settings: Settings, name: str) -> RecoveryView:
    from rivertwice.savepoint.recovery import view_recovery

    return view_recovery(settings, name)


def _savepoint(view: RecoveryView) -> dict[str, Any] | None:
    from rivertwice.savepoint.catalogue import select_newest

    newest = select_newest(view.savepoints, proved=True)
    if newest is None:
        return None
    return {"id": newest.id, "timeline": newest.manifest.timeline, "batch": newest.manifest.batch}


def _recovery(view: RecoveryView) -> dict[str, Any] | None:
    """Return how long a fall-back would take now, and what waits for its proof; None before the first batch."""
    if view.estimate is None:
        return None
    return {
        "seconds": view.estimate.seconds,
        "batches": view.estimate.batches,
        "batch_s": view.estimate.batch_s,
        "measured": view.estimate.measured,
        "objective_s": None if view.objective is None else view.objective.total_seconds(),
        "over": view.is_over,
        "awaiting": [{"savepoint": each.savepoint, "origin": each.origin} for each in view.awaiting],
    }


def view_first_load(home: PipelineHome) -> dict[str, Any] | None:
    """Return a first load by batch that is not done; None if there is none. Never guessed."""
    from rivertwice.backfill.load_state import describe_unfinished, find_unfinished_load

    def view() -> dict[str, Any] | None:
        unfinished = find_unfinished_load(home)
        return None if unfinished is None else describe_unfinished(unfinished)

    viewed: dict[str, Any] | None = _try(view)
    return viewed


def view_stream_load(home: PipelineHome) -> dict[str, Any] | None:
    """Return how far a load by the stream in large batches is; None if there is none, or all is read. Never guessed."""
    from rivertwice.backfill.stream_unread import describe_unread, find_unread

    def view() -> dict[str, Any] | None:
        unread = find_unread(home)
        return None if unread is None else describe_unread(*unread)

    viewed: dict[str, Any] | None = _try(view)
    return viewed


def _try(ask: Callable[[], Any]) -> Any:
    """Return the value, or the reason why it cannot be read: one damaged part must not hide the rest."""
    try:
        return ask()
    except RivertwiceError as error:
        return {"error": error.reason, "message": str(error)}
