"""Rewind: go back to a savepoint's own batch, and let the stream compute what followed again. An explicit act.

`show_rewind` says what would change and changes nothing. A confirmed rewind goes in steps; each is recorded when it is
done and can be repeated; killed anywhere and run again, the result is the same kind of path: the old one up to the
fork, then the new timeline's own batches, which are its own (other boundaries drop other late rows).

1. Record the operation: savepoint, fork (T, M), head, the child's name, whether the stream was wanted, what was planned.
2. Refuse: not proved, another definition, another topic, a damaged file, tables that have lost rows of either path, records
   that Kafka no longer has.
3. Want the stream stopped, and wait until its driver has gone. It stands until 8: a pipeline has one driver.
4. Copy the savepoint's checkpoint into the child's folder; it is there whole or not at all.
5. Create the child's record: parent (T, M), first batch M + 1.
6. Catch up: a driver runs the child's timeline until it has read what the head has and its watermark is as high. The head
   serves all the while. Then compare, row by row, what both paths emitted behind the fork. Here `stop_before_head` ends.
7. Seal the head's timeline; if it went on since 6, catch up again. Move the head. Only now does the child count.
8. Want the stream running again, if it was.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import RequestError
from rivertwice.instants import utc_now
from rivertwice.savepoint import rewind_record as steps
from rivertwice.savepoint.catalogue import (
    PROVED,
    Savepoint,
    load_savepoint,
    savepoint_store,
    verify_files,
)
from rivertwice.savepoint.choose import newest_proved
from rivertwice.savepoint.operation import only_restore, read_operations
from rivertwice.savepoint.prove import print_nothing
from rivertwice.savepoint.records import lease_savepoint, release_savepoint
from rivertwice.savepoint.restore import DRAIN_S, LEASE
from rivertwice.savepoint.restore_steps import Progress
from rivertwice.savepoint.rewind_observe import observe_rewind
from rivertwice.savepoint.rewind_plan import RewindPlan, find_refusals, plan_rewind
from rivertwice.savepoint.rewind_record import Rewind, advance_rewind, read_rewinds, select_unfinished_rewind
from rivertwice.savepoint.rewind_steps import as_numbers, end_catching_up, go_on
from rivertwice.store import delta
from rivertwice.stream.seal import app_of, is_sealed
from rivertwice.timeline.intent import read_intent, write_intent
from rivertwice.timeline.lineage import next_timeline_name, path_of
from rivertwice.timeline.sequence import head


@dataclass(frozen=True)
class RewindReport:
    """What a rewind did so far.

    Attributes:
        timeline: the new one; forked_at: `T@M`, where it left.
        head: what serves now: the new timeline, or the old one if it was stopped before the head.
        moved: whether the head has moved.
        planned: the numbers that were shown: batches, records, rows, windows, dead.
        batches, records: what the new timeline had committed and read when it had caught up.
        compared_at: the old head's last batch that both have come to.
        comparison: rows by what became of them, with examples.
        resumed: whether an interrupted rewind was resumed.
        running: whether the stream is wanted again.
    """

    operation: str
    savepoint: str
    timeline: str
    forked_at: str
    head: str
    moved: bool
    planned: Mapping[str, int]
    batches: int
    records: int
    compared_at: int | None
    comparison: Mapping[str, Any]
    resumed: bool
    running: bool


@dataclass(frozen=True)
class GivenUp:
    """What giving a rewind up came to: what serves, what stays behind and serves nothing, whether the stream is wanted."""

    operation: str
    savepoint: str
    stopped_after: str
    head: str
    left: tuple[str, ...]
    running: bool


def show_rewind(
    settings: Settings, pipeline: str, savepoint_id: str | None = None, *, unproved: bool = False
) -> RewindPlan:
    """Return what a rewind would change; nothing is done.

    Raises:
        SavepointError: there is no such savepoint, or none is proved.
        RequestError: the pipeline never ran, or a rewind to another savepoint is not finished.
    """
    home = settings.pipeline(pipeline)
    found = select_unfinished_rewind(read_rewinds(home), savepoint_id)
    savepoint = choose_savepoint(home, found.savepoint if found is not None else savepoint_id)
    world = observe_rewind(settings, home, savepoint.manifest, _require_head(home))
    return plan_rewind(savepoint.manifest, world, proved=savepoint.status == PROVED, unproved=unproved)


def choose_savepoint(home: PipelineHome, savepoint_id: str | None) -> Savepoint:
    """Return the named savepoint, or the newest proved one of the head's path.

    Raises:
        SavepointError: there is none.
    """
    if savepoint_id is not None:
        return load_savepoint(home, savepoint_id)
    return newest_proved(home, path_of(home, _require_head(home)), " to go back to")


def rewind_stream(
    settings: Settings,
    pipeline: str,
    savepoint_id: str | None = None,
    *,
    unproved: bool = False,
    stop_before_head: bool = False,
    progress: Progress = print_nothing,
    drain_seconds: float = DRAIN_S,
) -> RewindReport:
    """Rewind, or go on with the rewind that was interrupted or stopped before the head.

    Args:
        settings: where things lie.
        pipeline: the pipeline's name.
        savepoint_id: which savepoint; None goes on with an unfinished rewind, or takes the newest proved one.
        unproved: accept a savepoint that is not proved.
        stop_before_head: leave the new timeline caught up and compared; what serves goes on serving, the stream stands.
        progress: told of every step.
        drain_seconds: how long to wait for a running driver.

    Raises:
        SavepointError: not proved, missing or damaged, or the ledger contradicts it.
        FingerprintError: the definition is another one now.
        LogGapError: Kafka no longer has the records to read again, or the topic is another.
        RequestError: a restore, or a rewind to another savepoint, is not finished; or there is nothing to go back from.
        ServiceError: the driver did not stop, or the one that catches up failed.
        LostRaceError: the head moved meanwhile, or another process restores or rewinds.
    """
    home = settings.pipeline(pipeline)
    with only_restore(home):
        steps.require_no_restore(read_operations(home))
        found = select_unfinished_rewind(read_rewinds(home), savepoint_id)
        rewind = found or _begin(settings, home, savepoint_id, unproved=unproved)
        try:
            savepoint = load_savepoint(home, rewind.savepoint)
            lease_savepoint(savepoint.store, savepoint.id, rewind.id, now=utc_now(), length=LEASE)
            if rewind.step < steps.CHECKED:  # step 2, the part that reads every byte
                verify_files(savepoint)
                rewind = advance_rewind(home, rewind, steps.CHECKED)
        except Exception:
            if rewind.step < steps.DRAINED:  # nothing was touched: a refusal leaves nothing behind
                (home.operations / f"{rewind.id}.json").unlink(missing_ok=True)
                release_savepoint(savepoint_store(home), rewind.savepoint, rewind.id)
            raise
        progress(f"{rewind.id}: back to {savepoint.id}, on timeline {rewind.child}")
        rewind = go_on(settings, home, savepoint, rewind, progress, drain_seconds, stop_before_head=stop_before_head)
        if rewind.step >= steps.DONE:
            release_savepoint(savepoint.store, savepoint.id, rewind.id)
        return _report(rewind, resumed=found is not None)


def _begin(settings: Settings, home: PipelineHome, savepoint_id: str | None, *, unproved: bool) -> Rewind:  # 1 and 2
    head_now = _require_head(home)
    savepoint = choose_savepoint(home, savepoint_id)
    proved = savepoint.status == PROVED
    world = observe_rewind(settings, home, savepoint.manifest, head_now)
    refusals = find_refusals(savepoint.manifest, world, proved=proved or unproved)
    if refusals:
        raise refusals[0]
    plan = plan_rewind(savepoint.manifest, world, proved=proved, unproved=unproved)
    intent = read_intent(home)
    return steps.write_rewind(
        home,
        Rewind(
            id=f"rewind-{secrets.token_hex(4)}",
            savepoint=savepoint.id,
            parent=savepoint.manifest.timeline,
            batch=savepoint.manifest.batch,
            head=head_now,
            child=next_timeline_name(home),
            was_running=intent is not None and intent.desired == "running",
            started_at=utc_now(),
            plan=as_numbers(plan),
        ),
    )


def _report(rewind: Rewind, *, resumed: bool) -> RewindReport:
    moved = rewind.step >= steps.MOVED
    return RewindReport(
        operation=rewind.id,
        savepoint=rewind.savepoint,
        timeline=rewind.child,
        forked_at=f"{rewind.parent}@{rewind.batch}",
        head=rewind.child if moved else rewind.head,
        moved=moved,
        planned=rewind.plan,
        batches=rewind.batches,
        records=rewind.records,
        compared_at=rewind.head_batch,
        comparison=rewind.comparison or {},
        resumed=resumed,
        running=moved and rewind.was_running,
    )


def select_given_up(rewinds: Sequence[Rewind], head_now: str | None, *, is_head_sealed: bool) -> Rewind:
    """Return the rewind that can be given up. Pure.

    Args:
        rewinds: all, oldest first.
        head_now: the head timeline.
        is_head_sealed: whether it takes no further batch.

    Raises:
        RequestError: there is none, or its timeline serves already, or the head is sealed: it can only be finished.
    """
    found = select_unfinished_rewind(rewinds, None)
    if found is None:
        message = "no rewind is unfinished, so there is nothing to give up; see `rivertwice savepoint list`"
        raise RequestError(message)
    if found.step >= steps.MOVED or head_now == found.child or is_head_sealed:
        message = (
            f"{found.id} to savepoint {found.savepoint} has sealed {found.head} and moved the head to {found.child}, or was about "
            "to; it can only be finished: `rivertwice savepoint rewind NAME --confirm` without an id"
        )
        raise RequestError(message)
    return found


def abandon_rewind(home: PipelineHome, *, now: datetime, seconds: float = DRAIN_S) -> GivenUp:
    """Give an unfinished rewind up: what serves goes on serving, and its stream can go on from its own checkpoint.

    1. End the driver that catches up, if one lives. 2. Mark the rewind given up: nothing goes on with it. 3. Release the
    savepoint, throw scratch away. 4. Want the stream running again, if the rewind stopped it and nobody asked for
    anything since. The new timeline stays as it is, off the head's path, and counts for nothing.

    Raises:
        RequestError: none is unfinished, or it is too late.
        LostRaceError: a process restores or rewinds at this moment.
        ServiceError: the driver that catches up does not end.
    """
    with only_restore(home):
        head_now = head(home)
        applied = delta.applied_version(home.tables.changelog, app_of(home.root.name, str(head_now)))
        found = select_given_up(read_rewinds(home), head_now, is_head_sealed=is_sealed(applied))
        end_catching_up(home, found.child, seconds)
        advance_rewind(home, found, steps.ABANDONED)
        release_savepoint(savepoint_store(home), found.savepoint, found.id)
        shutil.rmtree(home.scratch / found.id, ignore_errors=True)
        intent = read_intent(home)
        ours = intent is not None and (intent.desired, intent.by) == ("stopped", found.id)
        running = found.was_running and ours
        if running:
            write_intent(home, "running", by=f"{found.id} (given up)", now=now)
        return GivenUp(
            operation=found.id,
            savepoint=found.savepoint,
            stopped_after=steps.STEPS[found.step],
            head=str(head_now),
            left=_left(home, found),
            running=running,
        )


def _left(home: PipelineHome, rewind: Rewind) -> tuple[str, ...]:
    left = [f"operations/{rewind.id}.json (its record)"]
    if home.timeline(rewind.child).exists():
        left.append(f"timelines/{rewind.child} (off the head's path: none of its batches counts)")
    return tuple(left)


def _require_head(home: PipelineHome) -> str:
    found = head(home)
    if found is None:
        message = f"{home.root.name} has no head timeline: it never ran, so there is nothing to go back from"
        raise RequestError(message)
    return found
