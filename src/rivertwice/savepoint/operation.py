"""The write-ahead record of a restore: what was decided stands on disk before it is done."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from rivertwice.config import PipelineHome
from rivertwice.errors import LostRaceError, RequestError
from rivertwice.instants import parse_iso, to_iso
from rivertwice.store.files import read_json, replace_json

FORMAT = 1
RECORDED, CHECKED, DRAINED, FORKED, REPLAYED, CREATED, MOVED, DONE, ABANDONED = range(1, 10)
STEPS = {
    RECORDED: "recorded",
    CHECKED: "checked",
    DRAINED: "parent drained",
    FORKED: "fork decided",
    REPLAYED: "recorded batches replayed",
    CREATED: "timeline created",
    MOVED: "head moved",
    DONE: "done",
    ABANDONED: "given up",
}


@dataclass(frozen=True)
class Operation:
    """A restore under way, done or given up.

    Attributes:
        id: `restore-<8 hex>`.
        parent, child: the head timeline it began with, and the one it makes.
        was_running: what was wanted of the stream before it began, so that it can be wanted again.
        step: last step that is done.
        forked_at: the parent's last committed batch, once known.
        replayed: how many recorded batches were replayed.
    """

    id: str
    savepoint: str
    parent: str
    child: str
    was_running: bool
    started_at: datetime
    step: int = RECORDED
    forked_at: int | None = None
    replayed: int = 0


def read_operations(home: PipelineHome) -> list[Operation]:
    """Return all restores of a pipeline, oldest first."""
    found = [_decode(read_json(path)) for path in sorted(home.operations.glob("restore-*.json"))]
    return sorted((o for o in found if o is not None), key=lambda operation: operation.started_at)


def write_operation(home: PipelineHome, operation: Operation) -> Operation:
    """Write a record, whole; return it."""
    values = {"format": FORMAT, **asdict(operation), "started_at": to_iso(operation.started_at)}
    replace_json(home.operations / f"{operation.id}.json", values)
    return operation


def advance(home: PipelineHome, operation: Operation, step: int, **changes: Any) -> Operation:
    """Record that a step is done."""
    return write_operation(home, replace(operation, step=step, **changes))


def select_unfinished(operations: list[Operation], savepoint: str | None) -> Operation | None:
    """Return the restore that must be gone on with, or None to begin a new one.

    Raises:
        RequestError: a restore of another savepoint was interrupted; two half restores cannot be told apart later.
    """
    unfinished = [operation for operation in operations if operation.step < DONE]
    if not unfinished:
        return None
    found = unfinished[-1]
    if savepoint is not None and found.savepoint != savepoint:
        message = (
            f"{found.id} of savepoint {found.savepoint} was interrupted after '{STEPS[found.step]}', and two half restores "
            "could not be told apart; finish it first: `rivertwice savepoint restore NAME` without an id goes on with it, with "
            "--abandon it is given up"
        )
        raise RequestError(message)
    return found


@dataclass(frozen=True)
class FallBackReport:
    """What the agent's fall-back came to; `operations/fall-back.json`, replaced by the next one.

    Attributes:
        pid, pid_started: the process that did it.
        restored: whether a savepoint took the damaged checkpoint's place.
        message: one sentence for events and pages.
        savepoint, timeline, forked_at, replayed: of the restore, if there was one.
        passed_over: savepoint id to why it could not be used.
    """

    pid: int
    pid_started: float
    at: datetime
    restored: bool
    message: str
    seconds: float
    savepoint: str | None = None
    timeline: str | None = None
    forked_at: int | None = None
    replayed: int | None = None
    passed_over: Mapping[str, str] = field(default_factory=dict)


def write_fall_back(home: PipelineHome, report: FallBackReport) -> None:
    """Record what the fall-back came to."""
    values = {"format": FORMAT, **asdict(report), "at": to_iso(report.at)}
    replace_json(home.operations / "fall-back.json", values)


def read_fall_back(home: PipelineHome) -> FallBackReport | None:
    """Return what the last fall-back came to, or None."""
    data = read_json(home.operations / "fall-back.json")
    if data is None or data.get("format") != FORMAT:
        return None
    values = {key: value for key, value in data.items() if key != "format"}
    return FallBackReport(**{**values, "at": parse_iso(values["at"])})


@contextmanager
def only_restore(home: PipelineHome) -> Iterator[None]:
    """Let one process restore at a time; the system frees the lock when it dies.

    Raises:
        LostRaceError: another process restores this pipeline.
    """
    home.operations.mkdir(parents=True, exist_ok=True)
    with (home.operations / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"another process is restoring {home.root.name}; nothing was done; wait for it and look again"
            raise LostRaceError(message) from None
        yield


def _decode(data: Any) -> Operation | None:
    if data is None or data.get("format") != FORMAT:
        return None
    values = {key: value for key, value in data.items() if key != "format"}
    return Operation(**{**values, "started_at": parse_iso(values["started_at"])})
