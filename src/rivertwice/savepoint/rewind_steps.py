"""The steps of a rewind that touch the stream and the tables (3 to 8); see `rewind` for the protocol."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import LostRaceError, ServiceError
from rivertwice.instants import utc_now
from rivertwice.processes import is_alive, start_detached
from rivertwice.savepoint import rewind_record as steps
from rivertwice.savepoint.catalogue import Savepoint, download
from rivertwice.savepoint.restore_steps import Progress, drain_stream, marker_of
from rivertwice.savepoint.rewind_compare import Comparison, compare_emitted, read_emitted
from rivertwice.savepoint.rewind_observe import read_definition
from rivertwice.savepoint.rewind_plan import behind_fork
from rivertwice.savepoint.rewind_record import Rewind, advance_rewind
from rivertwice.setup.java import java_env
from rivertwice.store.files import read_json, replace_json
from rivertwice.store.log_files import open_log
from rivertwice.stream.catch_up import Goal, covers, has_caught_up
from rivertwice.stream.lease import lease_owner, lock_file
from rivertwice.stream.seal import seal_timeline
from rivertwice.timeline.intent import read_exit, read_intent, write_intent
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import (
    Fork,
    create_timeline,
    fork_of,
    load_timeline,
    next_timeline_name,
    timeline_ledger,
)
from rivertwice.timeline.sequence import head, last_seq, move_head

DRIVER = (sys.executable, "-m", "rivertwice.stream.driver")
MOVE, MOVED, CATCH_UP = "move", "moved", "catch up"
_POLL_S = 0.1
_TOLD_S = 5.0


def go_on(
    settings: Settings,
    home: PipelineHome,
    savepoint: Savepoint,
    rewind: Rewind,
    progress: Progress,
    drain_seconds: float,
    *,
    stop_before_head: bool,
) -> Rewind:
    """Do the steps that are not done yet, from stopping the stream (3) to asking for it again (8)."""
    if rewind.step < steps.MOVED:
        rewind = _stop(home, rewind, drain_seconds, progress)  # step 3, again after every interruption
        with held_stream(home, rewind.id):
            if rewind.step < steps.COPIED:
                rewind = _copy(home, savepoint, rewind)
            if rewind.step < steps.CREATED:
                rewind = _create(home, rewind)
            rewind = _catch_up(settings, home, rewind, progress)
            if stop_before_head:
                return rewind
            rewind = _move(settings, home, rewind, progress)
    if rewind.step < steps.DONE:
        if rewind.was_running:  # step 8
            write_intent(home, "running", by=rewind.id, now=utc_now())
            progress("the stream is wanted again")
        rewind = advance_rewind(home, rewind, steps.DONE)
        shutil.rmtree(home.scratch / rewind.id, ignore_errors=True)
    return rewind


def _stop(home: PipelineHome, rewind: Rewind, seconds: float, progress: Progress) -> Rewind:  # step 3
    intent = read_intent(home)
    wanted = intent is not None and intent.desired == "running"
    if wanted and not rewind.was_running:  # somebody started the stream while the rewind stood
        rewind = advance_rewind(home, rewind, rewind.step, was_running=True)
    owner = lease_owner(home)
    if owner is not None and owner.timeline == rewind.child:
        progress(f"the driver that catches up (pid {owner.pid}) lives; it is resumed")
        if wanted:
            write_intent(home, "stopped", by=rewind.id, now=utc_now())
    else:
        drain_stream(home, rewind.id, wanted, seconds, progress)
    return advance_rewind(home, rewind, max(rewind.step, steps.DRAINED))


@contextmanager
def held_stream(home: PipelineHome, by: str) -> Iterator[None]:
    """Keep everybody from starting the stream while the block runs, but the operation's own driver."""
    replace_json(home.drain, marker_of(by))
    try:
        yield
    finally:
        marker = read_json(home.drain)
        if marker is not None and marker.get("by") == by:
            home.drain.unlink(missing_ok=True)


def _copy(home: PipelineHome, savepoint: Savepoint, rewind: Rewind) -> Rewind:  # step 4
    target = home.checkpoint(rewind.child)
    shutil.rmtree(target, ignore_errors=True)  # of an attempt that was killed before it was recorded
    work = home.scratch / rewind.id / secrets.token_hex(4)
    download(savepoint, work)
    target.parent.mkdir(parents=True, exist_ok=True)
    work.rename(target)
    return advance_rewind(home, rewind, steps.COPIED)


def _create(home: PipelineHome, rewind: Rewind) -> Rewind:  # step 5
    fork = Fork(rewind.parent, rewind.batch)
    rows = timeline_ledger(home, rewind.parent)
    last = next(row for row in rows if row.batch == rewind.batch)
    create_timeline(home, fork_of(load_timeline(home, rewind.parent), last, rewind.child, utc_now()))
    if load_timeline(home, rewind.child).parent != fork:
        advance_rewind(home, rewind, steps.CHECKED, child=next_timeline_name(home))
        message = (
            f"somebody else made timeline {rewind.child} meanwhile; nothing served changed; run the rewind again, it takes "
            "another name"
        )
        raise LostRaceError(message)
    return advance_rewind(home, rewind, steps.CREATED)


def goal_of(home: PipelineHome, rewind: Rewind) -> tuple[Goal, LedgerRow]:
    """Return how far the child must come, and the head's last batch."""
    last = timeline_ledger(home, rewind.head)[-1]
    return Goal(rewind.child, rewind.id, last.end_offsets, last.batch_watermark_ms), last


def _catch_up(settings: Settings, home: PipelineHome, rewind: Rewind, progress: Progress) -> Rewind:  # step 6
    if head(home) == rewind.child:
        return rewind
    goal, last = goal_of(home, rewind)
    run_to_goal(settings, home, goal, lambda: timeline_ledger(home, rewind.child)[-1], progress)
    if rewind.step >= steps.COMPARED and rewind.head_batch == last.batch:
        return rewind
    gone, came = behind_fork(timeline_ledger(home, rewind.head), timeline_ledger(home, rewind.child))
    own = [row for row in came if row.timeline == rewind.child]
    return advance_rewind(
        home,
        rewind,
        steps.COMPARED,
        head_batch=last.batch,
        batches=len(own),
        records=sum(row.read for row in own),
        comparison=asdict(compare_paths(settings, home, gone, came)),
    )


def run_to_goal(
    settings: Settings, home: PipelineHome, goal: Goal, last: Callable[[], LedgerRow], progress: Progress
) -> None:
    """Run a driver on the goal's timeline until it has caught up and has gone; one that lives is resumed.

    Raises:
        ServiceError: it ended before the goal; the message says why, and its log where.
    """
    process: subprocess.Popen[bytes] | None = None
    told = 0.0
    while True:
        owner = lease_owner(home)
        running = process.poll() is None if process is not None else owner is not None
        if not running and owner is None:
            row = last()
            if has_caught_up(goal, row.end_offsets, row.batch_watermark_ms):
                return
            if process is not None:
                if process.returncode == 0 and covers(row.end_offsets, goal.offsets):
                    return  # every record is read; none is left that could raise the watermark
                raise ServiceError(_ended_early(home, goal, process.returncode))
            process = start_catching_up(settings, home, goal)
            progress(f"a driver (pid {process.pid}) catches up on timeline {goal.timeline}; its log is logs/rewind.log")
        if time.monotonic() - told > _TOLD_S:
            told = time.monotonic()
            replace_json(home.drain, marker_of(goal.by))  # the agent takes an old one for a driver that is stuck
            row = last()
            progress(f"timeline {goal.timeline} stands at batch {row.batch}; {left_to(goal, row)} records are left")
        time.sleep(_POLL_S)


def left_to(goal: Goal, row: LedgerRow) -> int:
    """Return how many records lie between a batch's end and the goal."""
    return sum(
        max(0, int(end) - int(row.end_offsets.get(topic, {}).get(partition, 0)))
        for topic, parts in goal.offsets.items()
        for partition, end in parts.items()
    )


def start_catching_up(settings: Settings, home: PipelineHome, goal: Goal) -> subprocess.Popen[bytes]:
    """Start a driver on a timeline that is not the head, in a session of its own, so that it outlives this process."""
    command = [*DRIVER, "--pipeline", home.root.name, "--catch-up", goal.to_text()]
    with open_log(home.logs / "rewind.log") as log:
        env = {**os.environ, **java_env(settings), **settings.to_env()}
        return start_detached(command, env=env, cwd=settings.project, output=log)


def _ended_early(home: PipelineHome, goal: Goal, code: int | None) -> str:
    record = read_exit(home)
    why = "it left no record" if record is None else f"{record.failure}: {record.message[:1000]}"
    return (
        f"the driver that catches up on timeline {goal.timeline} ended with {code} before it was there ({why}); the head is "
        "what it was and serves; see logs/rewind.log, cure it and run the rewind again, or give it up with --abandon"
    )


def compare_paths(
    settings: Settings, home: PipelineHome, gone: Sequence[LedgerRow], came: Sequence[LedgerRow]
) -> Comparison:
    """Compare what the batches that go have emitted with what the batches that come have."""
    definition = read_definition(settings, home.root.name)
    return compare_emitted(read_emitted(home, gone, definition), read_emitted(home, came, definition), definition)


def decide_move(rewind: Rewind, head_now: str | None, last: int) -> str:
    """Return `move`, `moved` if the child is the head already, or `catch up` if the head went on since. Pure.

    Raises:
        LostRaceError: another timeline is the head.
    """
    if head_now == rewind.child:
        return MOVED
    if head_now != rewind.head:
        message = (
            f"{rewind.id} began when {rewind.head} was the head of its pipeline, now it is {head_now}; nothing was changed; give "
            "the rewind up (`rivertwice savepoint rewind NAME --abandon`) and look again"
        )
        raise LostRaceError(message)
    return MOVE if rewind.head_batch == last else CATCH_UP


def _move(settings: Settings, home: PipelineHome, rewind: Rewind, progress: Progress) -> Rewind:  # step 7
    while True:
        seen = last_seq(home)
        last = timeline_ledger(home, rewind.head)[-1]
        found = decide_move(rewind, head(home), last.batch)
        if found == MOVED:
            return advance_rewind(home, rewind, steps.MOVED)
        if found == MOVE:
            seal_timeline(home, last.pipeline, rewind.head)
            found = decide_move(rewind, head(home), timeline_ledger(home, rewind.head)[-1].batch)
        if found == MOVE:
            reason = f"rewind to {rewind.savepoint} ({rewind.id})"
            move_head(home, rewind.child, reason=reason, expected_seq=seen, now=utc_now())
            progress(f"the head moved from {rewind.head} to {rewind.child}")
        elif found == CATCH_UP:
            progress(f"{rewind.head} has committed batches since; {rewind.child} catches up with them")
            rewind = _catch_up(settings, home, rewind, progress)


def end_catching_up(home: PipelineHome, child: str, seconds: float) -> None:
    """End a driver that still catches up on `child`, at a batch boundary.

    Raises:
        ServiceError: it does not go in time.
    """
    owner = lease_owner(home)
    if owner is None or owner.timeline != child:
        return
    until = time.monotonic() + seconds
    if is_alive(owner.pid, owner.pid_started):  # else its number means another process here
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGTERM)
    while is_alive(owner.pid, owner.pid_started, lock=lock_file(home)):
        if time.monotonic() > until:
            message = (
                f"the driver that catches up on {child} (pid {owner.pid}) did not end within {seconds:.0f} s; nothing was changed; "
                "see logs/rewind.log, end it and run this again"
            )
            raise ServiceError(message)
        time.sleep(_POLL_S)


def as_numbers(plan: Any) -> dict[str, int]:
    """Return of a plan what is recorded, to be held against what then happens."""
    return {name: getattr(plan, name) for name in ("batches", "records", "rows", "windows", "dead")}
