"""The write-ahead record of a rewind: what was decided stands on disk before it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rivertwice.config import PipelineHome
from rivertwice.errors import RequestError
from rivertwice.savepoint.operation import Operation, read_records, select_unfinished, write_record

FORMAT = 1
RECORDED, CHECKED, DRAINED, COPIED, CREATED, COMPARED, MOVED, DONE, ABANDONED = range(1, 10)
STEPS = {
    RECORDED: "recorded",
    CHECKED: "checked",
    DRAINED: "stream stopped",
    COPIED: "savepoint copied",
    CREATED: "timeline created",
    COMPARED: "caught up and compared",
    MOVED: "head moved",
    DONE: "done",
    ABANDONED: "given up",
}


@dataclass(frozen=True)
class Rewind:
    """A rewind under way, done or given up.

    Attributes:
        id: `rewind-<8 hex>`.
        parent, batch: the fork: the savepoint's own timeline and batch.
        head: the timeline that serves until the head moves.
        child: the timeline that is made.
        was_running: what was wanted of the stream, so that it can be wanted again.
        plan: what was planned: records, rows, windows.
        head_batch: the head's last batch that the child has caught up with, once it has.
        batches, records: what the child had committed and read when it had caught up.
        comparison: what came out, as `rewind_compare.Comparison`, once the child has caught up.
    """

    id: str
    savepoint: str
    parent: str
    batch: int
    head: str
    child: str
    was_running: bool
    started_at: datetime
    plan: Mapping[str, int]
    step: int = RECORDED
    head_batch: int | None = None
    batches: int = 0
    records: int = 0
    comparison: Mapping[str, Any] | None = None


def read_rewinds(home: PipelineHome) -> list[Rewind]:
    """Return all rewinds of a pipeline, oldest first."""
    return sorted(read_records(home, "rewind-*", Rewind, FORMAT, "started_at"), key=lambda one: one.started_at)


def write_rewind(home: PipelineHome, found: Rewind) -> Rewind:
    """Write a record, whole; return it."""
    write_record(home, found.id, found, FORMAT, "started_at")
    return found


def advance_rewind(home: PipelineHome, found: Rewind, step: int, **changes: Any) -> Rewind:
    """Record that a step is done."""
    return write_rewind(home, replace(found, step=step, **changes))


def select_unfinished_rewind(rewinds: Sequence[Rewind], savepoint: str | None) -> Rewind | None:
    """Return the rewind that must be resumed, or None to begin a new one. Pure.

    Raises:
        RequestError: a rewind to another savepoint was interrupted.
    """
    unfinished = [one for one in rewinds if one.step < DONE]
    if not unfinished:
        return None
    found = unfinished[-1]
    if savepoint is not None and found.savepoint != savepoint:
        message = (
            f"{found.id} to savepoint {found.savepoint} stands at '{STEPS[found.step]}'; two rewinds at once would leave nobody "
            "sure what the head is; finish it first: `rivertwice savepoint rewind NAME --confirm` without an id, or give it up "
            "with --abandon"
        )
        raise RequestError(message)
    return found


def require_no_rewind(rewinds: Sequence[Rewind]) -> None:
    """Refuse to begin a restore while a rewind is not finished. Pure.

    Raises:
        RequestError: one is not.
    """
    found = select_unfinished_rewind(rewinds, None)
    if found is not None:
        message = (
            f"{found.id} to savepoint {found.savepoint} stands at '{STEPS[found.step]}'; a restore would move the head under it; "
            "finish it (`rivertwice savepoint rewind NAME --confirm`) or give it up (`rivertwice savepoint rewind NAME --abandon`)"
        )
        raise RequestError(message)


def require_no_restore(operations: Sequence[Operation]) -> None:
    """Refuse to begin a rewind while a restore is not finished. Pure.

    Raises:
        RequestError: one is not.
    """
    found = select_unfinished(operations, None)
    if found is not None:
        message = (
            f"{found.id} of savepoint {found.savepoint} is not finished; a rewind would move the head under it; "
            "finish it (`rivertwice savepoint restore NAME`) or give it up (`rivertwice savepoint restore NAME --abandon`)"
        )
        raise RequestError(message)
