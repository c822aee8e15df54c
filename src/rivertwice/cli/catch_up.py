"""backfill catch-up, and the first load of `start`: the oldest part of a log left to batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import Consent, Preview, asks_first
from rivertwice.cli.cases import DurationType
from rivertwice.cli.frame import DEFECT, Frame, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.core import Deadline, Measured, RequestError, ServiceError, iso_of_ms, to_plain

if TYPE_CHECKING:
    from datetime import datetime

    from rivertwice.backfill import LoadedPiece, LoadProgress, StreamLoadProgress
    from rivertwice.core import PipelineHome
    from rivertwice.definition import Bundle
    from rivertwice.engine import SparkOnDemand
    from rivertwice.retention import Backlog, HandOver
    from rivertwice.timeline import FirstLoad, StreamLoad


@click.command(
    "catch-up",
    epilog=example(
        "rivertwice backfill catch-up flight_delays",
        "rivertwice backfill catch-up flight_delays --by-batch",
        "rivertwice backfill catch-up flight_delays --by-batch --keep '2 hours' --yes",
    ),
)
@name_argument()
@click.option("--check", is_flag=True, help="Exit 3 if Kafka may delete records before the stream has read them.")
@click.option("--by-batch", is_flag=True, help="Leave the oldest part of what waits to batch; asks first.")
@click.option(
    "--keep", type=DurationType(), help="How much recent data the stream reads itself, for instance '2 hours'."
)
@click.option(
    "--timeout", type=click.IntRange(1), default=300, show_default=True, help="Seconds to wait for the stream to stop."
)
@asks_first("with --by-batch the head moves to a timeline that skips records")
@pass_frame
def catch_up(
    frame: Frame, name: str, check: bool, by_batch: bool, keep: timedelta | None, consent: Consent, timeout: int
) -> None:
    """Show what waits for a stream; leave the oldest to batch.

    It shows how many records wait for NAME, when it has caught up, and whether Kafka deletes some before.

    With --by-batch the stream continues with the newest records, and the others are left to batch: they are archived first,
    a reconcile names the windows that they belong to, and a backfill publishes these. No record is lost.
    """
    from rivertwice.core import utc_now
    from rivertwice.retention import plan_hand_over, view_backlog

    settings, now = frame.settings, utc_now()
    backlogs = view_backlog(settings, frame.known_pipeline(name), now)
    topics = {
        each.topic: {
            **to_plain(each),
            "records": each.records,
            "caught_up_s": None if (left := each.caught_up_s) is None or math.isinf(left) else round(left, 1),
            "is_outrun": each.is_outrun,
        }
        for each in backlogs
    }
    if not by_batch:
        frame.emit({"topics": topics}, lambda: "\n".join(backlog_text(name, each) for each in backlogs))
        if check and any(each.is_outrun for each in backlogs):
            raise SystemExit(DEFECT)
        return
    plan = plan_hand_over(settings, name, backlogs[0], keep)
    shown = Preview({"topics": topics, "plan": to_plain(plan)}, lambda: plan_text(name, backlogs[0], plan))
    if consent.given(name, f"Leave {plan.records} records of {name} to batch?", lambda: shown):
        _hand_over(frame, name, plan, now, timeout)


def _hand_over(frame: Frame, name: str, plan: HandOver, now: datetime, timeout: int) -> None:
    from rivertwice.retention import hand_over
    from rivertwice.timeline import Intent, write_intent

    home = frame.settings.pipeline(name)
    intent = Intent.load(home)
    was_wanted = intent is not None and intent.desired == "running"
    if was_wanted:
        write_intent(home, "stopped", "catch-up", now)
    try:
        _wait_stopped(frame, name, timeout)
        accepted = hand_over(frame.settings, name, plan, by="cli", now=now, progress=frame.progress)
    finally:
        if was_wanted:
            write_intent(home, "running", "catch-up", now)
    frame.emit(
        {"gap": accepted.gap, "timeline": accepted.timeline, "records": plan.records},
        f"{name} continues after {plan.records} records, on timeline {accepted.timeline}; next: `rivertwice savepoint take {name}`, and once the "
        f"stream has closed their windows `rivertwice reconcile {name}`, `rivertwice backfill run {name}`",
    )


def _wait_stopped(frame: Frame, name: str, timeout: int) -> None:
    from rivertwice.agent import agent_status
    from rivertwice.stream import lease_owner

    home = frame.settings.pipeline(name)
    owner = lease_owner(home)
    if owner is not None and agent_status(frame.settings) is None:
        message = f"driver pid {owner.pid} of {name} runs and no agent is running that would stop it; `rivertwice agent start`"
        raise ServiceError(message)
    for _ in Deadline.after(timeout).polls(0.2):
        if lease_owner(home) is None:
            return
    message = f"the driver of {name} still drains after {timeout} s; run it again, with a longer --timeout"
    raise ServiceError(message)


def backlog_text(name: str, backlog: Backlog) -> str:
    """Return what waits, for people. Pure."""
    if not backlog.records:
        return f"{backlog.topic}: nothing waits for {name}"
    span = ""
    if backlog.oldest_ms is not None and backlog.newest_ms is not None:
        span = f", stamped over {timedelta(seconds=(backlog.newest_ms - backlog.oldest_ms) // 1000)}"
    lines = [f"{backlog.topic}: {backlog.records} records wait for {name}{span}"]
    seconds = backlog.caught_up_s
    arriving = f"{backlog.arriving:.1f} a second arrive"
    if backlog.pace is None or seconds is None:
        lines.append(f"pace       not known before its next batches; {arriving}")
    elif math.isinf(seconds):
        lines.append(f"pace       {backlog.pace:.1f} records a second, {arriving}: it never catches up")
    else:
        lines.append(
            f"pace       {backlog.pace:.1f} records a second, {arriving}: caught up in {timedelta(seconds=round(seconds))}"
        )
    if backlog.left is None:
        lines.append("retention  Kafka deletes none of them by time")
    else:
        state = "records would be lost" if backlog.is_outrun else "after that"
        lines.append(
            f"retention  Kafka may delete the first of them in {timedelta(seconds=round(backlog.left.total_seconds()))}: {state}"
        )
    if backlog.is_outrun:
        lines.append(f"remedy     raise the topic's retention, or `rivertwice backfill catch-up {name} --by-batch`")
    return "\n".join(lines)


def plan_text(name: str, backlog: Backlog, plan: HandOver) -> str:
    """Return what a hand-over would do, for people. Pure."""
    parts = ", ".join(f"{partition}: [{start}, {end})" for partition, (start, end) in sorted(plan.ranges.items()))
    return "\n".join(
        [
            backlog_text(name, backlog),
            f"by batch   {plan.records} records, partition {parts}: archived, then skipped by the stream; nothing was done",
            f"by stream  {backlog.records - plan.records} records; the state stays as it is, on a new timeline",
            "after it   a reconcile names the windows of the skipped records, and a backfill publishes them; every later reconcile of this "
            "timeline judges everything",
            f"to do it: rivertwice backfill catch-up {name} --by-batch --yes",
        ]
    )


# What `rivertwice start NAME --from-batch` does: it loads the past by batch, and the stream begins where the open windows begin.


def show_load(frame: Frame, name: str) -> None:
    """Print what a first load of a pipeline would do; nothing is written."""
    from rivertwice.backfill import explain_load, look_at_log, require_first_start
    from rivertwice.engine import spark_on_demand

    bundle = _bundle(frame, name)
    if bundle.definition.load_obstacle is not None:
        _show_stream_load(frame, name, bundle)
        return
    load = require_first_start(frame.settings.pipeline(name))
    if load is not None:
        text = f"{load.id} of {name} is recorded: timeline {load.timeline}; run it without --dry-run to continue"
        frame.emit({"pipeline": name, "load": plain_load(load)}, text)
        return
    with spark_on_demand(frame.settings, f"rivertwice-load-{name}") as spark:
        plan = look_at_log(spark(), frame.settings, bundle)
    if isinstance(plan, str):
        frame.emit(
            {"pipeline": name, "plan": None, "reason": plan},
            f"nothing to load by batch: {plan}; {name} would be streamed whole",
        )
        return
    value = {
        "topic": plan.topic,
        "windows": plan.windows,
        "windows_from": iso_of_ms(plan.since_ms),
        "windows_before": iso_of_ms(plan.before_ms),
        "watermark": iso_of_ms(plan.closed_ms),
        "ranges": dict(sorted(plan.ranges.items())),
        "records": plan.records,
        "accepted": plan.accepted,
        "rejected": plan.rejected,
        "streamed": plan.streamed,
    }
    frame.emit({"pipeline": name, "plan": value}, lambda: explain_load(name, plan))


def is_loaded_by_stream(frame: Frame, name: str) -> bool:
    """Say whether the stream itself loads a pipeline's past, because no backfill can; or was asked to."""
    from rivertwice.timeline import StreamLoad

    recorded = StreamLoad.load(frame.settings.pipeline(name)) is not None
    return recorded or _bundle(frame, name).definition.load_obstacle is not None


def begin_by_stream(frame: Frame, name: str, now: datetime) -> StreamLoadProgress:
    """Record a load by the stream, or say how far a recorded one is."""
    from rivertwice.backfill import begin_stream_load, explain_stream_load, plan_stream_load
    from rivertwice.timeline import StreamLoad

    home = frame.settings.pipeline(name)
    load = StreamLoad.load(home)
    if load is None:
        bundle = _bundle(frame, name)
        plan = plan_stream_load(frame.settings, bundle.definition)
        load = begin_stream_load(frame.settings, bundle, plan, by="cli", now=now)
        frame.progress(explain_stream_load(name, plan))
    return _progress(home, load)


def _progress(home: PipelineHome, load: StreamLoad) -> StreamLoadProgress:
    from rivertwice.backfill import StreamLoadProgress, find_unread

    unread = find_unread(home)
    if unread is None:
        return StreamLoadProgress(load.id, load.records, 0, f"{load.id}: all is read")
    return StreamLoadProgress.of(*unread)


def _show_stream_load(frame: Frame, name: str, bundle: Bundle) -> None:
    from rivertwice.backfill import explain_stream_load, plan_stream_load, require_never_started
    from rivertwice.log import name_parts
    from rivertwice.timeline import StreamLoad

    home = frame.settings.pipeline(name)
    load = StreamLoad.load(home)
    if load is not None:
        progress = _progress(home, load)
        frame.emit({"pipeline": name, "load": progress}, progress.message)
        return
    require_never_started(home)
    plan = plan_stream_load(frame.settings, bundle.definition)
    archived, nowhere = (
        {named: parts[part] for part, named in name_parts(parts).items()} for parts in (plan.archived, plan.nowhere)
    )
    value = {"records": plan.records, "batch": plan.batch, "why": plan.why, "archived": archived, "nowhere": nowhere}
    frame.emit({"pipeline": name, "plan": value}, lambda: explain_stream_load(name, plan))


@contextmanager
def one_run(frame: Frame, name: str) -> Iterator[SparkOnDemand]:
    """Give the session of Spark that all steps of one run of the command use, and keep another run of it away.

    Raises:
        LostRaceError: another process of this host loads the pipeline.
    """
    from rivertwice.backfill import hold_load
    from rivertwice.engine import spark_on_demand

    with hold_load(frame.settings.pipeline(name)), spark_on_demand(frame.settings, f"rivertwice-load-{name}") as spark:
        yield spark


def tell_unfinished(frame: Frame, name: str) -> LoadProgress | None:
    """Say that a first load of a pipeline is not done, to somebody who starts its stream; return it for programs, or None.

    Raises:
        RequestError: a process reads the log for a load; the stream would begin at the log's beginning, and the load fail.
    """
    from rivertwice.backfill import find_unfinished_load

    unfinished = find_unfinished_load(frame.settings.pipeline(name))
    if unfinished is None:
        return None
    if unfinished.load is not None:
        frame.progress(f"{unfinished.text}; until then the windows to load serve nothing")
    elif unfinished.process is None:
        frame.progress(f"{unfinished.text}, unless this start begins first: it streams the whole log")
    else:
        message = (
            f"{unfinished.text}; a start now would stream the whole log, and the load would be refused; the load "
            f"starts the stream itself; to stream the whole log, end it, then `rivertwice start {name}`"
        )
        raise RequestError(message)
    return unfinished.progress


def begin(frame: Frame, name: str, now: datetime, spark: SparkOnDemand) -> FirstLoad | None:
    """Record the first load of a pipeline, or continue a recorded one; None if there is nothing to load by batch."""
    from rivertwice.backfill import begin_load, continue_load, refuse_load, require_first_start

    home = frame.settings.pipeline(name)
    bundle = _bundle(frame, name)
    load = require_first_start(home)
    if load is not None:
        frame.progress(f"{load.id} of {name} is recorded: it is continued")
        continue_load(home, load, now)
        return load
    refuse_load(bundle.definition)
    begun = begin_load(frame.settings, bundle, spark, by="cli", now=now, progress=frame.progress)
    if isinstance(begun, str):
        frame.progress(f"nothing to load by batch: {begun}; {name} is streamed whole")
        return None
    kept = sum(end - start for start, end in begun.ranges.values())
    frame.progress(f"{begun.id}: timeline {begun.timeline} begins after {kept} records, which backfills read")
    return begun


def finish(
    frame: Frame, load: FirstLoad, timeout: int, check_driver: Callable[[], None], spark: SparkOnDemand
) -> list[LoadedPiece]:
    """Wait until the stream has closed the windows of a load, and publish them; return the backfills of this run.

    Args:
        load: that `begin` gave.
        timeout: seconds without a new micro-batch after which it no longer waits.
        check_driver: raises an error if no driver will ever run.

    Raises:
        ServiceError: the stream does not continue.
    """
    from rivertwice.backfill import has_closed, publish_load

    settings = frame.settings
    home = settings.pipeline(load.pipeline)
    if not has_closed(home, load):
        if not settings.spark_is_local:
            spark.release()  # the stream that is waited for may need the executors
        _wait_closed(frame, load, timeout, check_driver)
    return list(publish_load(settings, load, spark, frame.progress))


def describe(load: FirstLoad | None, published: Sequence[LoadedPiece]) -> str:
    """Return a finished load in words."""
    if load is None:
        return "nothing to load by batch"
    windows = sum(piece.windows for piece in published)
    text = f"{load.id}: {windows} windows published" if published else f"{load.id}: all windows were published before"
    if load.rejected:
        reasons = ", ".join(f"{reason} {number}" for reason, number in load.rejected.items())
        text += f"; {sum(load.rejected.values())} records of the past are rejected, without a dead letter: {reasons}"
    return text


def _wait_closed(frame: Frame, load: FirstLoad, timeout: int, check_driver: Callable[[], None]) -> None:
    from rivertwice.backfill import has_closed
    from rivertwice.core import Deadline, from_ms, to_iso
    from rivertwice.timeline import head_path, newest_batch

    home = frame.settings.pipeline(load.pipeline)
    seen: tuple[str, int] | None = None
    began: int | None = None
    while True:
        for _ in Deadline.after(timeout).polls(0.5):
            check_driver()
            path = head_path(home)
            last = newest_batch(home, path) if path else None
            if last is not None and has_closed(home, load):
                return
            if last is not None and (last.timeline, last.batch) != seen:
                seen = (last.timeline, last.batch)
                began = last.batch_watermark_ms if began is None else began
                line = (
                    f"the stream is at batch {last.batch}, watermark {to_iso(from_ms(last.batch_watermark_ms))}; the windows to load "
                    f"are closed at {to_iso(from_ms(load.closed_ms))}"
                )
                done, total = last.batch_watermark_ms - began, load.closed_ms - began
                frame.progress(Measured(line, f"close {load.id}", done, total) if total > 0 else line)
                break
        else:
            message = (
                f"the stream of {load.pipeline} committed no batch for {timeout} s, and has not closed the windows to load; see "
                f"`rivertwice agent status` and {home.logs / 'driver.log'}; `rivertwice start {load.pipeline} --from-batch` continues the load"
            )
            raise ServiceError(message)


def _bundle(frame: Frame, name: str) -> Bundle:
    from rivertwice.definition import build_bundle

    return build_bundle(frame.settings.definition_folder(name))


def plain_load(load: FirstLoad) -> dict[str, Any]:
    """Return a load for programs."""
    return {
        "id": load.id,
        "timeline": load.timeline,
        "topic": load.topic,
        "windows_from": iso_of_ms(load.since_ms),
        "windows_before": iso_of_ms(load.before_ms),
        "ranges": dict(sorted(load.ranges.items())),
        "accepted": load.accepted,
        "rejected": load.rejected,
    }
