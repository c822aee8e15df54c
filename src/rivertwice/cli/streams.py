"""start, stop: the desired state of a stream."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli import options
from rivertwice.cli.asking import Consent, Preview, asks_first, changes_unasked
from rivertwice.cli.catch_up import (
    begin,
    begin_by_stream,
    describe,
    finish,
    is_loaded_by_stream,
    one_run,
    plain_load,
    show_load,
    tell_unfinished,
)
from rivertwice.cli.frame import Frame, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.core import Deadline, Measured, RequestError, ServiceError, Settings, iso_of_ms, to_plain

if TYPE_CHECKING:
    from rivertwice.definition import Definition
    from rivertwice.stream import LogEnds
    from rivertwice.timeline import Heartbeat

_SAY_EVERY_S = 5.0
STARTED, CAUGHT_UP = "started", "caught-up"
"""What `start` can wait for."""


@click.command(
    epilog=example("rivertwice start flight_delays --wait", "rivertwice start flight_delays --from-batch --dry-run")
)
@name_argument()
@click.option("--wait", is_flag=True, help="Wait until the stream has read the log as far as it is now.")
@click.option(
    "--until",
    type=click.Choice([STARTED, CAUGHT_UP]),
    help=f"Wait until its driver runs ({STARTED}), or as --wait does ({CAUGHT_UP}).",
)
@click.option("--timeout", type=click.IntRange(1), default=600, show_default=True, help="Seconds to wait.")
@click.option(
    "--accept-gap",
    metavar="ID",
    shell_complete=options.gaps,
    help="Continue after this gap (see `rivertwice admin retention`), for good.",
)
@click.option(
    "--once", is_flag=True, help="By schedule: one run to the log's end, unless the stream is stopped; waits. For cron."
)
@click.option(
    "--from-batch", is_flag=True, help="First start only: load closed windows by batch, stream the open ones."
)
@asks_first("with --accept-gap the head moves to a timeline that skips records")
@pass_frame
def start(
    frame: Frame,
    /,
    name: str,
    wait: bool,
    until: str | None,
    timeout: int,
    accept_gap: str | None,
    once: bool,
    from_batch: bool,
    consent: Consent,
) -> None:
    """Start the stream of NAME, and keep it running.

    The command records that it is to run; the agent starts it, now and after every crash. The very first start creates the first timeline. A stream that the agent stopped retrying is tried again. With --accept-gap
    it continues after records that Kafka deleted before they were read: on a new timeline, and recorded for ever.

    With --wait the command ends when the stream has caught up: it has read all that was in the log when you asked, and closed the windows
    that these records close, and readers see their rows. What you send afterwards is judged by their watermark. Exit 1 with the reason if the stream fails or
    the time is over; the stream itself continues to run. With --until started it ends when the driver runs, whatever is left to read.

    With --from-batch a long history is not streamed. The topic is archived, the stream begins where the oldest window
    that is still open begins, and backfills publish the windows before it, once the stream has closed them. It waits
    for that (--timeout is then the time without a new micro-batch); after an interruption the same command continues.
    Sessions, folds and several sources are loaded by the stream itself, in large batches (stream.load_batch), from the
    archive where Kafka has deleted the log's beginning.

    A stream by schedule (stream.mode: scheduled) makes a run now, and from then on whenever Airflow or cron asks for one; --wait ends with
    the run. With --once the command asks for a run, waits for it, and leaves a stream alone that somebody has stopped.
    """
    from rivertwice.core import utc_now
    from rivertwice.stream import refuse_start

    settings = frame.settings
    name = frame.known_pipeline(name)
    refuse_start(settings, name, from_batch=from_batch)  # a definition that is known not to run is refused here
    _refuse_together(accept_gap, from_batch=from_batch, dry_run=consent.dry_run)
    if consent.dry_run and accept_gap is None:
        show_load(frame, name)
        return
    frame.warn_of_copies(name)
    asked_at = utc_now()
    until = until or (CAUGHT_UP if wait or once else None)
    if once and _is_stopped(frame, name):
        frame.emit(
            {"pipeline": name, "skipped": True},
            f"{name} is stopped, so no run was made; `rivertwice start {name}` resumes its schedule",
        )
        return
    if accept_gap is not None and not consent.given(
        name, f"Let {name} continue after it, for good?", partial(_show_gap, frame, name, accept_gap)
    ):
        return
    if from_batch:
        report, text = load_and_start(frame, name, asked_at, timeout, until)
        frame.emit(report, text)
        return
    unfinished = tell_unfinished(frame, name)
    accepted: dict[str, Any] = {}
    if accept_gap is not None:
        from rivertwice.retention import accept_gap as go_past

        gap = go_past(settings, name, accept_gap, by="cli", now=asked_at)
        frame.progress(f"{accept_gap} is accepted: {name} continues after it on timeline {gap.timeline}")
        accepted = {"accepted": {"gap": gap.gap, "timeline": gap.timeline}}
    wanted = want_running(frame, name, asked_at, must_run=until is not None, run_now=until != CAUGHT_UP)
    seen = _wait_until(frame, name, asked_at, timeout, until)
    loading = {} if unfinished is None else {"first_load": unfinished}
    frame.emit(to_plain(wanted) | to_plain(seen or {}) | accepted | loading, _running_text(name, seen))


def load_and_start(
    frame: Frame, name: str, asked_at: datetime, timeout: int, until: str | None
) -> tuple[dict[str, Any], str]:
    """Load the past of a pipeline by batch, and let its stream begin after it; return the report, for programs and in words.

    What no backfill can load, the stream loads in large batches; that is recorded, and not waited for.
    """
    from rivertwice.backfill import hold_load

    if is_loaded_by_stream(frame, name):
        with hold_load(frame.settings.pipeline(name)):
            progress = begin_by_stream(frame, name, asked_at)
        loaded, said = to_plain(progress), progress.message
        wanted = want_running(frame, name, asked_at, must_run=until is not None)
    else:
        with one_run(frame, name) as spark:
            load = begin(frame, name, asked_at, spark)
            wanted = want_running(frame, name, asked_at, must_run=until is not None)
            check_driver = partial(_require_driver, frame, name, asked_at)
            published = [] if load is None else finish(frame, load, timeout, check_driver, spark)
        loaded = None if load is None else plain_load(load) | {"published": published}
        said = describe(load, published)
    seen = _wait_until(frame, name, asked_at, timeout, until)
    return to_plain(wanted) | to_plain(seen or {}) | {"load": loaded}, f"{said}; {_running_text(name, seen)}"


@dataclass(frozen=True)
class WantedStream:
    """The desired state that was recorded, and the pid of the agent that keeps it; None: no agent runs."""

    pipeline: str
    desired: str
    agent: int | None


@dataclass(frozen=True)
class Running:
    """A driver that runs, by its heartbeat."""

    pid: int
    epoch: int
    timeline: str
    state: str


@dataclass(frozen=True)
class CaughtUp(Running):
    """A driver that has caught up: what it has read meanwhile, and whether readers see it."""

    watermark: str | None
    read: int
    dead: int
    emitted: int
    batches: int
    served: bool

    def after(self, earlier: CaughtUp) -> CaughtUp:
        """Return the same with what was read in an earlier wait for the same stream."""
        names = ("read", "dead", "emitted", "batches")
        return replace(self, **{name: getattr(self, name) + getattr(earlier, name) for name in names})


def want_running(frame: Frame, name: str, asked_at: datetime, *, must_run: bool, run_now: bool = True) -> WantedStream:
    """Record that the desired state is running.

    Args:
        run_now: ask for a run of a stream by schedule, too; False: a wait asks for it.

    Raises:
        ServiceError: it must run, and no agent is running that would start it.
    """
    from rivertwice.agent import agent_status
    from rivertwice.timeline import write_intent

    settings = frame.settings
    intent = write_intent(settings.pipeline(name), "running", "cli", asked_at)
    if run_now:
        _ask_run(settings, name)
    agent = agent_status(settings)
    if agent is None:
        frame.progress("no agent is running to start it; run `rivertwice up`")
        if must_run:
            message = f"no agent is running in {settings.home}, so {name} would never start; run `rivertwice up`"
            raise ServiceError(message)
    return WantedStream(name, intent.desired, None if agent is None else agent.pid)


def _ask_run(settings: Settings, name: str) -> datetime | None:
    """Ask for a run, and return when that was; None: the stream runs all the time."""
    from rivertwice.core import utc_now
    from rivertwice.definition import load_draft
    from rivertwice.timeline import Intent

    if load_draft(settings.definition_folder(name)).stream.runs_at is None:
        return None
    asked_at = utc_now()
    Intent.ask_run(settings.pipeline(name), "cli", asked_at)
    return asked_at


def _is_stopped(frame: Frame, name: str) -> bool:
    """Say whether somebody stopped a stream by schedule.

    Raises:
        RequestError: it runs all the time.
    """
    from rivertwice.definition import load_draft
    from rivertwice.timeline import Intent

    if load_draft(frame.settings.definition_folder(name)).stream.runs_at is None:
        message = f"--once is for a stream by schedule, and {name} runs all the time; leave --once out, or write stream: {{mode: scheduled, schedule: none}}"
        raise RequestError(message)
    intent = Intent.load(frame.settings.pipeline(name))
    return intent is not None and intent.desired == "stopped"


def _wait_until(frame: Frame, name: str, asked_at: datetime, timeout: int, until: str | None) -> Running | None:
    """Wait for what `--until` says, and return the driver that is seen then; None: nothing was to be waited for."""
    from rivertwice.definition import load_definition

    if until == CAUGHT_UP:
        return wait_caught_up(frame, name, asked_at, timeout)
    if until is None:
        return None
    definition = load_definition(frame.settings.definition_folder(name))
    beat = _await_driver(frame, definition, asked_at, timeout)
    return Running(beat.pid, beat.epoch, beat.timeline, beat.state)


def wait_caught_up(frame: Frame, name: str, asked_at: datetime, timeout: int) -> CaughtUp:
    """Wait until the stream has read the log as far as it is now, and return what it has read meanwhile.

    Raises:
        ServiceError: the stream fails or is stopped, or the time is over.
    """
    from rivertwice.definition import load_definition
    from rivertwice.log import stable_ends
    from rivertwice.timeline import path_ledger

    settings = frame.settings
    home = settings.pipeline(name)
    definition = load_definition(settings.definition_folder(name))
    log_ends = {topic: stable_ends(settings, topic) for topic in definition.topics}
    known = {(row.timeline, row.batch) for row in path_ledger(home)}
    asked_at = _ask_run(settings, name) or asked_at
    beat = _await_driver(frame, definition, asked_at, timeout, log_ends)
    served = beat.batch is None or frame.await_served(name, (beat.timeline, beat.batch))
    rows = [row for row in path_ledger(home) if (row.timeline, row.batch) not in known]
    watermark = None if beat.watermark_ms is None else iso_of_ms(beat.watermark_ms)
    read, dead, emitted = (sum(getattr(row, count) for row in rows) for count in ("read", "bad", "emitted"))
    return CaughtUp(beat.pid, beat.epoch, beat.timeline, beat.state, watermark, read, dead, emitted, len(rows), served)


def _await_driver(
    frame: Frame, definition: Definition, asked_at: datetime, timeout: int, log_ends: LogEnds | None = None
) -> Heartbeat:
    """Return the heartbeat of the driver that has caught up with these ends; None: of the first that runs."""
    from rivertwice.agent import Wait, WaitState, decide_wait, last_failure, look
    from rivertwice.stream import lag_of

    settings, name = frame.settings, definition.name
    log = settings.pipeline(name).logs / "driver.log"
    ends = log_ends or {}
    done = "started" if log_ends is None else "caught up"
    wait = Wait({topic: {str(part): end for part, end in places.items()} for topic, places in ends.items()})
    left = total = lag_of({}, ends)
    said_at = time.monotonic()
    for _ in Deadline.after(timeout).polls(0.25):
        seen = look(settings, definition, wait, asked_at)
        wait = decide_wait(wait, seen)
        is_done = wait.covered is not None if log_ends is None else wait.state == WaitState.CAUGHT_UP
        if is_done and seen.beat is not None:
            return seen.beat
        if wait.state == WaitState.FAILED:
            message = f"{name} has not {done}: {wait.reason}; see {log}"
            raise ServiceError(message)
        if seen.beat is not None and seen.beat.epoch == seen.epoch and seen.beat.end_offsets:
            left = lag_of(seen.beat.end_offsets, ends)
        if 0 < left < total and time.monotonic() - said_at > _SAY_EVERY_S:
            said_at = time.monotonic()
            frame.progress(Measured(f"{name}: {left} records to read", "records", total - left, total))
    failure = last_failure(settings, name, asked_at)
    why = "" if failure is None else f"; its driver ended with {failure.failure}: {failure.message}"
    unread = "" if log_ends is None else f": {left} records of the log are not read yet"
    message = (
        f"{name} has not {done} after {timeout} s{unread}{why}; the same command waits on, and `rivertwice status` "
        f"and {log} show what the stream does"
    )
    raise ServiceError(message)


def _running_text(name: str, seen: Running | None) -> str:
    if seen is None:
        return f"{name}: starting"
    driver = f"driver pid {seen.pid}, epoch {seen.epoch}"
    if not isinstance(seen, CaughtUp):
        return f"{name} has started: {driver}, timeline {seen.timeline}"
    dead = f", {seen.dead} of them dead letters" if seen.dead else ""
    read = f"read {seen.read} records in {seen.batches} batches{dead}" if seen.batches else "nothing new to read"
    watermark = f"; watermark {seen.watermark}" if seen.watermark else ""
    return f"{name} has caught up: {read}, {seen.emitted} rows emitted{watermark}; {driver}"


def _show_gap(frame: Frame, name: str, gap_id: str) -> Preview:
    from rivertwice.log import Acceptance, Gap

    home = frame.settings.pipeline(name)
    gap = Gap.load(home, gap_id)
    text = (
        f"{gap.id}: {gap.describe()}; {name} would continue after them on a new timeline; {gap.lost} records are lost, and "
        "windows that they belong to are never called equal"
    )
    return Preview(gap.plain(Acceptance.load(home, gap_id)), text)


def _refuse_together(accept_gap: str | None, *, from_batch: bool, dry_run: bool) -> None:
    if dry_run and not from_batch and accept_gap is None:
        message = "--dry-run shows what --from-batch or --accept-gap would do; neither is given; add one, or leave --dry-run out"
        raise RequestError(message)
    if accept_gap is not None and from_batch:
        message = "--from-batch is for a first start, and --accept-gap for a stream that stopped; leave one of them out"
        raise RequestError(message)


def _require_driver(frame: Frame, name: str, asked_at: datetime) -> None:
    """Refuse to wait for a stream that nothing will start.

    Raises:
        ServiceError: no agent and no driver is running, or the agent has stopped retrying.
    """
    from rivertwice.agent import agent_status, load_memory
    from rivertwice.stream import lease_owner

    if agent_status(frame.settings) is None and lease_owner(frame.settings.pipeline(name)) is None:
        message = (
            f"no agent is running in {frame.settings.home}, and the windows to load are not closed; run "
            f"`rivertwice up`, then `rivertwice start {name} --from-batch` again: it continues"
        )
        raise ServiceError(message)
    memory = load_memory(frame.settings, name)
    if memory.broken_at is not None and memory.broken_at >= asked_at:
        raise ServiceError(_given_up(frame, name, memory.broken_because))


def _given_up(frame: Frame, name: str, why: str | None) -> str:
    log = frame.settings.pipeline(name).logs / "driver.log"
    return f"{name} did not start, and the agent has stopped retrying: {why}; see {log}"


@click.command(epilog=example("rivertwice stop flight_delays --wait"))
@name_argument()
@click.option("--wait", is_flag=True, help="Wait until the driver has drained and gone.")
@click.option("--timeout", type=click.IntRange(1), default=180, show_default=True, help="Seconds to wait.")
@changes_unasked("the stream stops", because="it drains, and `rivertwice start` continues it")
@pass_frame
def stop(frame: Frame, name: str, wait: bool, timeout: int) -> None:
    """Stop the stream of NAME after its running batch.

    The command records that it is to stop; the driver drains: it finishes the running batch.
    """
    from rivertwice.agent import agent_status
    from rivertwice.core import utc_now
    from rivertwice.stream import lease_owner
    from rivertwice.timeline import write_intent

    home = frame.settings.pipeline(frame.known_pipeline(name))
    write_intent(home, "stopped", "cli", utc_now())
    if agent_status(frame.settings) is None and (owner := lease_owner(home)) is not None:
        text = (
            f"no agent is running to drain driver pid {owner.pid} of {name}; run `rivertwice agent start`, "
            "which does it, or `rivertwice down`, which drains all"
        )
        if wait:
            raise ServiceError(text)
        frame.progress(text)
    deadline = Deadline.after(timeout)
    while wait and (owner := lease_owner(home)) is not None:
        if deadline.is_over():
            message = f"driver pid {owner.pid} of {name} still drains after {timeout} s; see `rivertwice agent status`"
            raise ServiceError(message)
        time.sleep(0.2)
    frame.emit({"pipeline": name, "desired": "stopped"}, f"{name}: {'stopped' if wait else 'stopping'}")
