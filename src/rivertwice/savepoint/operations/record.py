"""The write-ahead records of operations: each decision is on disk before it is carried out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from rivertwice.core import LostRaceError, PipelineHome, RequestError, Started, lock_or_refuse, parse_iso, to_iso
from rivertwice.savepoint.manifest import StateBase
from rivertwice.storage import read_json, replace_json

FORMAT = 1


class OperationStep:
    """The steps of an operation, by the number that is stored."""

    RECORDED = 1
    CHECKED = 2
    DRAINED = 3
    FORKED = 4
    REPLAYED = 5
    CREATED = 6
    """Steps of a restore."""
    COPIED = 4
    BRANCHED = 5
    COMPARED = 6
    """Steps of a rewind."""
    MOVED = 7
    DONE = 8
    ABANDONED = 9


Found = TypeVar("Found")
R = TypeVar("R", bound="Restore | Rewind")


@dataclass(frozen=True)
class Restore:
    """A restore that is running, done or abandoned; an upgrade and a fall-back are restores, too.

    Attributes:
        id: `restore-<8 hex>`.
        savepoint: a savepoint's id, or `beginning`, or `checkpoint` until a planned one has taken its savepoint.
        parent, child: the head timeline it began with, and the one it makes.
        was_running: whether the desired state was running before, so that it can be again.
        step: number of the last step that is done.
        forked_at: the parent's last committed batch, once known.
        bundle: for an upgrade, the definition that the child runs; None: the parent's.
        rewritten_by: the erasure that rewrote the archive, so that all records are read from it; None: Kafka's count, too.
        planned: it was asked for without replay: its savepoint is taken of the parent's own checkpoint at rest.
        origin: for a planned one, the proved savepoint from which that one is proved afterwards, and to which people can go back.
        partitions: for an upgrade, the number of state partitions that the child gets; None: the parent's.
    """

    id: str
    savepoint: str
    parent: str
    child: str
    was_running: bool
    started_at: datetime
    step: int = OperationStep.RECORDED
    forked_at: int | None = None
    replayed: int = 0
    bundle: str | None = None
    rewritten_by: str | None = None
    planned: bool = False
    origin: str | None = None
    partitions: int | None = None

    @property
    def held(self) -> tuple[str, ...]:
        """Ids of the savepoints that it needs until it is done."""
        names = (self.savepoint, self.origin)
        return tuple(
            name for name in names if name is not None and name not in (StateBase.BEGINNING, StateBase.RESTING)
        )

    def is_based_on(self, savepoint: str) -> bool:
        """Say whether asking for this base again means this operation."""
        return savepoint == self.savepoint or (self.planned and savepoint == StateBase.RESTING)

    @property
    def serving(self) -> str:
        """The timeline that serves until the head moves."""
        return self.parent

    @property
    def reached(self) -> int | None:
        """The last batch of the serving timeline that the child takes over, once known."""
        return self.forked_at


@dataclass(frozen=True)
class Rewind:
    """A rewind that is running, done or abandoned.

    Attributes:
        id: `rewind-<8 hex>`.
        parent, batch: the fork: the savepoint's own timeline and batch.
        head: the timeline that serves until the head moves.
        was_running: whether the desired state was running before, so that it can be again.
        plan: the planned numbers: records, rows, windows.
        step: number of the last step that is done.
        head_batch: the head's last batch that the child has caught up with, once it has.
        batches, records: how many the child had committed and read when it had caught up.
        comparison: the result as `rewind_compare.Comparison`, once the child has caught up.
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
    step: int = OperationStep.RECORDED
    head_batch: int | None = None
    batches: int = 0
    records: int = 0
    comparison: Mapping[str, Any] | None = None

    @property
    def held(self) -> tuple[str, ...]:
        """Ids of the savepoints that it needs until it is done."""
        return () if self.savepoint == StateBase.BEGINNING else (self.savepoint,)

    def is_based_on(self, savepoint: str) -> bool:
        """Say whether asking for this base again means this operation."""
        return savepoint == self.savepoint

    @property
    def serving(self) -> str:
        """The timeline that serves until the head moves."""
        return self.head

    @property
    def reached(self) -> int | None:
        """The last batch of the serving timeline that the child has caught up with, once known."""
        return self.head_batch


Operation = Restore | Rewind


def read_operations(home: PipelineHome) -> list[Operation]:
    """Return all operations of a pipeline, oldest first."""
    return sorted([*read_restores(home), *read_rewinds(home)], key=lambda record: record.started_at)


def read_restores(home: PipelineHome) -> list[Restore]:
    """Return all restores of a pipeline, including upgrades and fall-backs, oldest first."""
    return sorted(_read(home, "restore-*", Restore, "started_at"), key=lambda record: record.started_at)


def read_rewinds(home: PipelineHome) -> list[Rewind]:
    """Return all rewinds of a pipeline, oldest first."""
    return sorted(_read(home, "rewind-*", Rewind, "started_at"), key=lambda record: record.started_at)


def write_operation(home: PipelineHome, operation: Operation) -> None:
    """Write the whole record."""
    _write(home, operation.id, operation, "started_at")


def forget_operation(home: PipelineHome, operation: Operation) -> None:
    """Remove the record of an operation that was refused before it touched anything."""
    (home.operations / f"{operation.id}.json").unlink(missing_ok=True)


@dataclass(frozen=True)
class FallBackReport:
    """The result of the agent's fall-back; `operations/fall-back.json`, replaced by the next one.

    Attributes:
        restored: whether a savepoint replaced the damaged checkpoint.
        message: one sentence for events and pages.
        savepoint, timeline, forked_at, replayed: those of the restore, if there was one.
        passed_over: savepoint id to the reason why it could not be used.
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
    """Record the result of the fall-back."""
    _write(home, "fall-back", report, "at")


def read_fall_back(home: PipelineHome) -> FallBackReport | None:
    """Return the result of the last fall-back, or None."""
    return next(iter(_read(home, "fall-back", FallBackReport, "at")), None)


@contextmanager
def only_operation(home: PipelineHome) -> Iterator[None]:
    """Let one process work on an operation at a time; the system frees the lock when it dies.

    Raises:
        LostRaceError: another process restores, upgrades, rewinds or repairs this pipeline.
    """

    def refuse(holder: str) -> LostRaceError:
        message = f"{holder} is restoring {home.root.name}; wait for it and look again"
        return LostRaceError(message)

    with lock_or_refuse(home.operations / "lock", refuse):
        yield


def _write(home: PipelineHome, name: str, record: Restore | Rewind | FallBackReport, instant: str) -> None:
    values = {"format": FORMAT, **asdict(record), instant: to_iso(getattr(record, instant))}
    replace_json(home.operations / f"{name}.json", values)


def _read(home: PipelineHome, pattern: str, made: type[Found], instant: str) -> list[Found]:
    """Return the records whose names match, in the order of the names; one of another format is left out."""
    records = []
    for path in sorted(home.operations.glob(f"{pattern}.json")):
        data = read_json(path)
        if data is not None and data.get("format") == FORMAT:
            values = {key: value for key, value in data.items() if key != "format"}
            records.append(made(**{**values, instant: parse_iso(values[instant])}))
    return records


# Whether an operation that is asked for was done already by the same request. Pure.
#
# A worker, or the job that it started, may be killed after an operation was done and before that is known. The request then comes again,
# and must not move the head a second time.


def find_repeated(
    operations: Sequence[Operation], kind: type[R], since: datetime, *, base: str | None, resumes: str | None
) -> R | None:
    """Return the operation that a request has done already; None: there is none, so it is begun or resumed.

    Args:
        operations: all of the pipeline, oldest first.
        since: when it was asked for.
        base: what it was asked to be based on; None: whatever is chosen.
        resumes: the interrupted operation when it was asked for; None: a new one was asked for.

    Raises:
        RequestError: it was abandoned since.
    """
    own = [
        operation
        for operation in operations
        if isinstance(operation, kind)
        and (
            operation.id == resumes
            if resumes is not None
            else operation.started_at >= since and (base is None or operation.is_based_on(base))
        )
    ]
    if not own:
        return None
    if own[-1].step == OperationStep.ABANDONED:
        message = f"{own[-1].id} was abandoned since it was asked for; ask for another one"
        raise RequestError(message)
    return own[-1] if own[-1].step == OperationStep.DONE else None
