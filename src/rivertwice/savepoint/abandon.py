"""Give an interrupted restore up: the parent goes on serving, and what was half made is named and serves nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rivertwice.config import PipelineHome
from rivertwice.errors import RequestError
from rivertwice.savepoint import operation as steps
from rivertwice.savepoint.beginning import BEGINNING
from rivertwice.savepoint.catalogue import savepoint_store
from rivertwice.savepoint.operation import Operation, advance, only_restore, read_operations
from rivertwice.savepoint.records import release_savepoint
from rivertwice.store import delta
from rivertwice.stream.seal import app_of, is_sealed
from rivertwice.timeline.intent import Intent, read_intent, write_intent
from rivertwice.timeline.sequence import head


@dataclass(frozen=True)
class AbandonReport:
    """What giving up came to.

    Attributes:
        stopped_after: the last step that was done.
        head: the timeline that serves, as before the restore.
        left: what stays behind; none of it serves anything.
        running: whether the stream is wanted running again.
    """

    operation: str
    savepoint: str
    stopped_after: str
    head: str
    left: tuple[str, ...]
    running: bool


def select_abandonable(
    operations: Sequence[Operation], head_now: str | None, is_parent_sealed: Callable[[str], bool] = lambda _: False
) -> Operation:
    """Return the interrupted restore that can be given up. Pure.

    Args:
        operations: all restores, oldest first.
        head_now: the head timeline.
        is_parent_sealed: says of a timeline whether it takes no further batch.

    Raises:
        RequestError: there is none, or its timeline serves already, or its parent is sealed: it can only be finished.
    """
    unfinished = [operation for operation in operations if operation.step < steps.DONE]
    if not unfinished:
        message = "no restore was interrupted, so there is nothing to give up; see `rivertwice savepoint list`"
        raise RequestError(message)
    found = unfinished[-1]
    if found.step >= steps.MOVED or head_now == found.child:
        message = (
            f"{found.id} of savepoint {found.savepoint} has moved the head to {found.child} already, which serves exactly what "
            f"{found.parent} served; it can only be finished: `rivertwice savepoint restore NAME` without an id"
        )
        raise RequestError(message)
    if is_parent_sealed(found.parent):
        message = (
            f"{found.id} of savepoint {found.savepoint} has sealed {found.parent}, which takes no further batch, and was about "
            f"to move the head to {found.child}; it can only be finished: `rivertwice savepoint restore NAME` without an id"
        )
        raise RequestError(message)
    return found


def is_intent_ours(operation: Operation, intent: Intent | None) -> bool:
    """Say whether the stream stands still because of this restore, so that it should run again. Pure."""
    stopped = intent is not None and intent.desired == "stopped" and intent.by == operation.id
    return operation.was_running and stopped


def abandon_restore(home: PipelineHome, *, now: datetime) -> AbandonReport:
    """Give the interrupted restore of a pipeline up.

    1. Mark it given up: no later restore goes on with it.
    2. Release the savepoint's lease and throw scratch away.
    3. Want the stream running again, if this restore stopped it and nobody asked for anything since.

    Killed after 1, what is left is a lease that runs out, scratch, and a stopped stream that `rivertwice start` starts.

    Raises:
        RequestError: none was interrupted, or it is too late.
        LostRaceError: a process restores at this moment.
    """
    with only_restore(home):
        return abandon_locked(home, now=now)


def abandon_locked(home: PipelineHome, *, now: datetime) -> AbandonReport:
    """Do what `abandon_restore` does, for a caller that holds the restore's lock."""
    head_now = head(home)
    found = select_abandonable(
        read_operations(home),
        head_now,
        lambda parent: is_sealed(delta.applied_version(home.tables.changelog, app_of(home.root.name, parent))),
    )
    stopped_after = steps.STEPS[found.step]
    advance(home, found, steps.ABANDONED)
    if found.savepoint != BEGINNING:
        release_savepoint(savepoint_store(home), found.savepoint, found.id)
    shutil.rmtree(home.scratch / found.id, ignore_errors=True)
    running = is_intent_ours(found, read_intent(home))
    if running:
        write_intent(home, "running", by=f"{found.id} (given up)", now=now)
    return AbandonReport(
        operation=found.id,
        savepoint=found.savepoint,
        stopped_after=stopped_after,
        head=str(head_now),
        left=_left(home, found),
        running=running,
    )


def _left(home: PipelineHome, operation: Operation) -> tuple[str, ...]:
    folder = home.timeline(operation.child)
    found = [f"operations/{operation.id}.json (its record)"]
    if (folder / "timeline.json").exists():
        found.append(f"timelines/{operation.child} (a recorded timeline that is not on the head's path)")
    elif folder.exists():
        found.append(f"timelines/{operation.child} (a checkpoint without a record; it may be deleted)")
    return tuple(found)
