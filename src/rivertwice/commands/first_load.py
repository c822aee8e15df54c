"""What `rivertwice start NAME --from-batch` does: it loads the past by batch, and the stream begins where the open windows begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rivertwice.commands.frame import Frame
from rivertwice.errors import RequestError, ServiceError
from rivertwice.progress import Measured

if TYPE_CHECKING:
    from datetime import datetime

    from rivertwice.backfill.load_plan import LoadPlan
    from rivertwice.backfill.stream_load import StreamLoadPlan
    from rivertwice.log.addresses import Parts
    from rivertwice.pipeline.bundle import Bundle
    from rivertwice.pipeline.engine import SparkOnDemand
    from rivertwice.timeline.first_load import FirstLoad


def show_load(frame: Frame, name: str) -> None:
    """Print what a first load of a pipeline would do; nothing is written."""
    from rivertwice.backfill.load import look_at_log, require_first_start
    from rivertwice.backfill.load_plan import explain_load, find_load_obstacle
    from rivertwice.pipeline.engine import spark_on_demand

    bundle = _bundle(frame, name)
    if find_load_obstacle(bundle.definition) is not None:
        _show_stream_load(frame, name, bundle)
        return
    load = require_first_start(frame.settings.pipeline(name))
    if load is not None:
        text = f"{load.id} of {name} is recorded: timeline {load.timeline}; run it without --dry-run to continue"
        frame.emit({"pipeline": name, "load": _plain_load(load)}, text)
        return
    with spark_on_demand(frame.settings, f"rivertwice-load-{name}") as spark:
        plan = look_at_log(spark(), frame.settings, bundle)
    if isinstance(plan, str):
        frame.emit(
            {"pipeline": name, "plan": None, "reason": plan},
            f"nothing to load by batch: {plan}; {name} would be streamed whole",
        )
        return
    frame.emit({"pipeline": name, "plan": _plain_plan(plan)}, lambda: explain_load(name, plan))


def is_loaded_by_stream(frame: Frame, name: str) -> bool:
    """Say whether the stream itself loads a pipeline's past, because no backfill can; or was asked to."""
    from rivertwice.backfill.load_plan import find_load_obstacle
    from rivertwice.timeline.stream_load import read_stream_load

    recorded = read_stream_load(frame.settings.pipeline(name)) is not None
    return recorded or find_load_obstacle(_bundle(frame, name).definition) is not None


def begin_by_stream(frame: Frame, name: str, now: datetime) -> tuple[dict[str, Any], str]:
    """Record a load by the stream, or say how far a recorded one is; return it for programs, and in words."""
    from rivertwice.backfill.stream_load import begin_stream_load, explain_stream_load, plan_stream_load
    from rivertwice.backfill.stream_unread import describe_unread, find_unread
    from rivertwice.timeline.stream_load import read_stream_load

    home = frame.settings.pipeline(name)
    load = read_stream_load(home)
    if load is None:
        bundle = _bundle(frame, name)
        plan = plan_stream_load(frame.settings, bundle.definition)
        load = begin_stream_load(frame.settings, bundle, plan, by="cli", now=now)
        frame.progress(explain_stream_load(name, plan))
    unread = find_unread(home)
    if unread is None:
        return {"load": {"load": load.id, "records": load.records, "records_left": 0}}, f"{load.id}: all is read"
    described = describe_unread(*unread)
    return {"load": described}, str(described["message"])


def _show_stream_load(frame: Frame, name: str, bundle: Bundle) -> None:
    from rivertwice.backfill.stream_load import explain_stream_load, plan_stream_load, require_never_started
    from rivertwice.backfill.stream_unread import describe_unread, find_unread
    from rivertwice.timeline.stream_load import read_stream_load

    home = frame.settings.pipeline(name)
    load = read_stream_load(home)
    if load is not None:
        unread = find_unread(home)
        described = (
            {"load": load.id, "records_left": 0, "message": f"{load.id}: all is read"}
            if unread is None
            else describe_unread(*unread)
        )
        frame.emit({"pipeline": name, "load": described}, str(described["message"]))
        return
    require_never_started(home)
    plan = plan_stream_load(frame.settings, bundle.definition)
    frame.emit({"pipeline": name, "plan": plain_stream_plan(plan)}, lambda: explain_stream_load(name, plan))


def plain_stream_plan(plan: StreamLoadPlan) -> dict[str, Any]:
    """Return the plan of a load by the stream for programs."""
    from rivertwice.log.addresses import name_parts

    def plain(parts: Parts) -> dict[str, list[int]]:
        return {name: list(parts[part]) for part, name in name_parts(parts).items()}

    return {
        "records": plan.records,
        "batch": plan.batch,
        "why": plan.why,
        "archived": plain(plan.archived),
        "nowhere": plain(plan.nowhere),
    }


@contextmanager
def one_run(frame: Frame, name: str) -> Iterator[SparkOnDemand]:
    """Give the session of Spark that all steps of one run of the command use, and keep another run of it away.

    Raises:
        LostRaceError: another process of this host loads the pipeline.
    """
    from rivertwice.backfill.load_state import hold_load
    from rivertwice.pipeline.engine import spark_on_demand

    with hold_load(frame.settings.pipeline(name)), spark_on_demand(frame.settings, f"rivertwice-load-{name}") as spark:
        yield spark


def tell_unfinished(frame: Frame, name: str) -> dict[str, Any] | None:
    """Say that a first load of a pipeline is not done, to somebody who starts its stream; return it for programs, or None.

    Raises:
        RequestError: a process reads the log for a load; the stream would begin at the log's beginning, and the load fail.
    """
    from rivertwice.backfill.load_state import describe_unfinished, find_unfinished_load

    unfinished = find_unfinished_load(frame.settings.pipeline(name))
    if unfinished is None:
        return None
    if unfinished.load is not None:
        frame.progress(f"{unfinished.text}; until then the windows to load serve nothing")
    elif unfinished.process is None:
        frame.progress(f"{unfinished.text}, unless this start begins first: it streams the whole log")
    else:
        message = (
            f"{unfinished.text}; a start now would stream the whole log, and the load would be refused; nothing was done; the load "
            f"starts the stream itself; to stream the whole log, end it, then `rivertwice start {name}`"
        )
        raise RequestError(message)
    return describe_unfinished(unfinished)


def begin(frame: Frame, name: str, now: datetime, spark: SparkOnDemand) -> FirstLoad | None:
    """Record the first load of a pipeline, or continue a recorded one; None if there is nothing to load by batch."""
    from rivertwice.backfill.load import begin_load, continue_load, require_first_start
    from rivertwice.backfill.load_plan import refuse_load

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
) -> list[dict[str, Any]]:
    """Wait until the stream has closed the windows of a load, and publish them; return the backfills of this run.

    Args:
        frame: of the command.
        load: that `begin` gave.
        timeout: seconds without a new micro-batch after which it no longer waits.
        check_driver: raises an error if no driver will ever run.
        spark: the session of the run.

    Raises:
        ServiceError: the stream does not go on.
    """
    from rivertwice.backfill.load import publish_load
    from rivertwice.backfill.load_state import has_closed, unloaded_windows

    settings = frame.settings
    home = settings.pipeline(load.pipeline)
    if not has_closed(home, load):
        if not settings.spark_is_local:
            spark.release()  # the stream that is waited for may need the executors
        _wait_closed(frame, load, timeout, check_driver)
    if not unloaded_windows(home, load):
        return []
    pieces = publish_load(settings, load, spark, frame.progress)
    return [{"backfill": piece.backfill, "windows": piece.windows, "sequence": piece.sequence} for piece in pieces]


def describe(load: FirstLoad | None, published: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Return a finished load for programs, and in words."""
    if load is None:
        return {"load": None}, "nothing to load by batch"
    windows = sum(piece["windows"] for piece in published)
    text = f"{load.id}: {windows} windows published" if published else f"{load.id}: all windows were published before"
    if load.rejected:
        reasons = ", ".join(f"{reason} {number}" for reason, number in load.rejected.items())
        text += f"; {sum(load.rejected.values())} records of the past are rejected, without a dead letter: {reasons}"
    return {"load": {**_plain_load(load), "published": published}}, text


def _wait_closed(frame: Frame, load: FirstLoad, timeout: int, check_driver: Callable[[], None]) -> None:
    from rivertwice.backfill.load_state import has_closed
    from rivertwice.instants import from_ms, to_iso
    from rivertwice.timeline.committed import newest_batch
    from rivertwice.timeline.lineage import head_path
    from rivertwice.waits import Deadline

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
    from rivertwice.pipeline.bundle import build_bundle

    return build_bundle(frame.settings.definition_folder(name))


def _plain_plan(plan: LoadPlan) -> dict[str, Any]:
    from rivertwice.instants import from_ms, to_iso

    return {
        "topic": plan.topic,
        "windows": plan.windows,
        "windows_from": to_iso(from_ms(plan.since_ms)),
        "windows_before": to_iso(from_ms(plan.before_ms)),
        "watermark": to_iso(from_ms(plan.closed_ms)),
        "ranges": {str(p): list(pair) for p, pair in sorted(plan.ranges.items())},
        "records": plan.records,
        "accepted": plan.accepted,
        "rejected": dict(plan.rejected),
        "streamed": plan.streamed,
    }


def _plain_load(load: FirstLoad) -> dict[str, Any]:
    from rivertwice.instants import from_ms, to_iso

    return {
        "id": load.id,
        "timeline": load.timeline,
        "topic": load.topic,
        "windows_from": to_iso(from_ms(load.since_ms)),
        "windows_before": to_iso(from_ms(load.before_ms)),
        "ranges": {str(p): list(pair) for p, pair in sorted(load.ranges.items())},
        "accepted": load.accepted,
        "rejected": dict(load.rejected),
    }
