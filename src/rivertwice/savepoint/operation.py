"""The write-ahead record of a restore: what was decided stands on disk before it is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from rivertwice.config import PipelineHome
from rivertwice.errors import LostRaceError, RequestError
from rivertwice.instants import parse_iso, to_iso
from rivertwice.locks import lock_or_refuse
from rivertwice.processes import Started
from rivertwice.store.files import read_json, replace_json

FORMAT = 1
Record = TypeVar("Record")
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
        bundle: of an upgrade the definition that the child runs; None: the parent's.
        rewritten_by: the erasure that rewrote the archive, from which then everything is read; None: Kafka's records count, too.
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
    bundle: str | None = None
    rewritten_by: str | None = None


def read_operations(home: PipelineHome) -> list[Operation]:
    """Return all restores of a pipeline, oldest first."""
    return sorted(read_records(home, "restore-*", Operation, FORMAT, "started_at"), key=lambda one: one.started_at)


def write_operation(home: PipelineHome, operation: Operation) -> Operation:
    """Write a record, whole; return it."""
    write_record(home, operation.id, operation, FORMAT, "started_at")
    return operation


def advance(home: PipelineHome, operation: Operation, step: int, **changes: Any) -> Operation:
    """Record that a step is done."""
    return write_operation(home, replace(operation, step=step, **changes))


def select_unfinished(operations: Sequence[Operation], savepoint: str | None) -> Operation | None:
    """Return the restore that must be resumed, or None to begin a new one.

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
    pid_started: Started
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
    write_record(home, "fall-back", report, FORMAT, "at")


def read_fall_back(home: PipelineHome) -> FallBackReport | None:
    """Return what the last fall-back came to, or None."""
    return next(iter(read_records(home, "fall-back", FallBackReport, FORMAT, "at")), None)


@contextmanager
def only_restore(home: PipelineHome) -> Iterator[None]:
    """Let one process restore at a time; the system frees the lock when it dies.

    Raises:
        LostRaceError: another process restores this pipeline.
    """

    def refuse(holder: str) -> LostRaceError:
        message = f"{holder} is restoring {home.root.name}; nothing was done; wait for it and look again"
        return LostRaceError(message)

    with lock_or_refuse(home.operations / "lock", refuse):
        yield


def write_record(home: PipelineHome, name: str, record: Any, version: int, instant: str) -> None:
    """Write a record of an operation, whole; `instant` names its one field that is an instant."""
    values = {"format": version, **asdict(record), instant: to_iso(getattr(record, instant))}
    replace_json(home.operations / f"{name}.json", values)


def read_records(home: PipelineHome, pattern: str, made: type[Record], version: int, instant: str) -> list[Record]:
    """Return the records whose names match, in the names' order; one of another format is left out."""
    found = []
    for path in sorted(home.operations.glob(f"{pattern}.json")):
        data = read_json(path)
        if data is not None and data.get("format") == version:
            values = {key: value for key, value in data.items() if key != "format"}
            found.append(made(**{**values, instant: parse_iso(values[instant])}))
    return found
