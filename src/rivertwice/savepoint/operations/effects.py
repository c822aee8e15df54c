"""The effects of every operation: on records, the savepoint's lease, the stream, the head."""

from __future__ import annotations

import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from rivertwice.core import PipelineHome, Progress, Settings, report_nothing, utc_now
from rivertwice.savepoint.catalogue import Savepoint, load_savepoint, savepoint_store
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations import engine
from rivertwice.savepoint.operations.fork import (
    DRAIN_S,
    block_stream,
    drain_stream,
    end_catching_up,
    read_parent,
    release_stream,
)
from rivertwice.savepoint.operations.record import (
    Operation,
    Restore,
    forget_operation,
    only_operation,
    read_operations,
    write_operation,
)
from rivertwice.savepoint.operations.steps import OperationPlan, R, Step
from rivertwice.savepoint.records import lease_savepoint, release_savepoint
from rivertwice.savepoint.resting import resting_of
from rivertwice.savepoint.take import beginning_of
from rivertwice.storage import Table
from rivertwice.stream import is_sealed, lease_owner, seal_timeline, stream_app
from rivertwice.timeline import Intent, head, last_seq, move_head, write_intent

LEASE = timedelta(hours=6)
Result = TypeVar("Result")


@dataclass
class HomeOperationStore:
    """The parts of a pipeline's home that every operation touches."""

    settings: Settings
    home: PipelineHome
    progress: Progress = report_nothing
    drain_seconds: float = DRAIN_S

    @property
    def pipeline(self) -> str:
        """The pipeline's name."""
        return self.home.root.name

    def operations(self) -> Sequence[Operation]:
        """Return all operations of the pipeline, oldest first."""
        return read_operations(self.home)

    def write(self, record: Operation) -> None:
        """Write the whole record."""
        write_operation(self.home, record)

    def let_go(self, record: Operation) -> None:
        """Let others start the stream again."""
        release_stream(self.home, record.id)

    def release(self, record: Operation) -> None:
        """End the leases."""
        for name in record.held:
            release_savepoint(savepoint_store(self.home), name, record.id)

    def clear(self, record: Operation) -> None:
        """Delete the operation's scratch folder."""
        shutil.rmtree(self.home.scratch / record.id, ignore_errors=True)

    def end_own_driver(self, record: Operation) -> Generator[str | int]:
        """End a driver that catches up for the operation."""
        yield from ()
        end_catching_up(self.home, record.child, self.drain_seconds)

    def intent(self) -> Intent | None:
        """Return the desired state of the stream: running or stopped."""
        return Intent.load(self.home)

    def want(self, desired: str, by: str) -> None:
        """Record the desired state of the stream: running or stopped."""
        write_intent(self.home, desired, by=by, now=utc_now())
        self.progress("the desired state is running again" if desired == "running" else "the desired state is stopped")

    def head(self) -> str | None:
        """Return the timeline that serves."""
        return head(self.home)

    def is_sealed(self, timeline: str) -> bool:
        """Say whether a timeline takes no further batch."""
        return is_sealed(Table(self.home.tables.changelog).applied_version(stream_app(self.pipeline, timeline)))


@dataclass
class OperationEffects(HomeOperationStore, ABC, Generic[R]):
    """The other effects of running an operation; a subclass adds its own.

    Attributes:
        keep_intent: do not change the stream's intent; for a caller that knows that no driver runs.
        unproved: accept a savepoint that is not proved.
        savepoint: the base of the operation, once it is leased.
    """

    keep_intent: bool = False
    unproved: bool = False
    savepoint: Savepoint = field(init=False)

    @property
    @abstractmethod
    def effects(self) -> Mapping[int, Callable[[R], R]]:
        """A step's number to the method that does it."""

    @abstractmethod
    def begin(self, savepoint: str | None) -> R:
        """Decide what is to be done, and refuse what cannot be done."""

    @abstractmethod
    def again(self, record: R) -> Generator[str | int, None, R]:
        """Take over the batches that the serving timeline has committed since."""

    @abstractmethod
    def last_batch(self, record: R) -> int:
        """Return the last committed batch of the timeline that serves until the head moves."""

    @abstractmethod
    def reason(self, record: R) -> str:
        """Return the reason why the head moves, for the sequence."""

    @abstractmethod
    def accept(self, interrupted: R) -> None:
        """Refuse to resume an interrupted operation, if another one is asked for."""

    def forget(self, record: R) -> None:
        """Remove the record of an operation that was refused before it touched anything."""
        forget_operation(self.home, record)

    def lease(self, record: R) -> Generator[str | int]:
        """Load the savepoint, and lease all that the operation needs against prune."""
        self.savepoint = load(self.home, record)
        for name in record.held:
            lease_savepoint(self.savepoint.store, name, record.id, now=utc_now(), length=LEASE)
        yield from ()

    def do(self, step: Step, record: R) -> Generator[str | int, None, R]:
        """Do a step."""
        yield from ()  # a kill anywhere inside is a kill before the record of the step
        return self.effects[step.number](record)

    def is_wanted(self) -> bool:
        """Say whether the desired state is running, so that the stream must be stopped now and started again at the end."""
        intent = self.intent()
        return not self.keep_intent and intent is not None and intent.desired == "running"

    def stop(self, record: R) -> R:
        """Stop the stream; a driver that works for the operation itself keeps running."""
        wanted = self.is_wanted()
        if wanted and not record.was_running:  # the stream was started since the interruption
            record = replace(record, was_running=True)
            self.write(record)
        owner = lease_owner(self.home)
        if owner is not None and owner.timeline == record.child:
            self.progress(f"the driver that catches up (pid {owner.pid}) lives; it is resumed")
            if wanted:
                self.want("stopped", record.id)
        else:
            drain_stream(self.home, record.id, wanted, self.drain_seconds, self.progress)
        return record

    @contextmanager
    def new_checkpoint(self, record: R) -> Iterator[Path]:
        """Give a folder for the child's checkpoint; at the end of the block the checkpoint exists whole, or not at all."""
        target = self.home.checkpoint(record.child)
        shutil.rmtree(target, ignore_errors=True)  # left by an attempt that was killed, or forked earlier
        work = (
            self.home.scratch / record.id / secrets.token_hex(4)
        )  # a killed attempt's JVM may still write into its own
        yield work
        target.parent.mkdir(parents=True, exist_ok=True)
        work.rename(target)

    def hold(self, record: R) -> None:
        """Let only the operation's own driver start."""
        block_stream(self.home, record.id)

    def last_seq(self) -> int:
        """Return the number of the sequence's newest entry."""
        return last_seq(self.home)

    def seal(self, timeline: str) -> None:
        """Let a timeline take no further batch."""
        seal_timeline(self.home, self.pipeline, timeline)

    def move_head(self, record: R, expected_seq: int) -> None:
        """Let the child serve, if no entry was appended to the sequence since."""
        move_head(self.home, record.child, reason=self.reason(record), expected_seq=expected_seq, now=utc_now())
        self.progress(f"the head moved from {record.serving} to {record.child}")


@dataclass(frozen=True)
class AbandonReport:
    """The result of abandoning an operation.

    Attributes:
        head: the timeline that serves, as before the operation.
        left: files that are left; none of them is served.
        running: whether the desired state is running again.
    """

    operation: str
    savepoint: str
    stopped_after: str
    head: str
    left: tuple[str, ...]
    running: bool


def finish(steps: Generator[Any, None, Result]) -> Result:
    """Run the engine to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def load(home: PipelineHome, record: Operation) -> Savepoint:
    """Return the base of an operation: the savepoint, the beginning, or the checkpoint at rest.

    Raises:
        SavepointError: it was deleted, or is damaged; or nothing is committed yet.
    """
    if record.savepoint == StateBase.BEGINNING:
        return beginning_of(home, record.parent if isinstance(record, Restore) else record.head)
    if isinstance(record, Restore) and record.savepoint == StateBase.RESTING:
        return resting_of(home, record.parent, read_parent(home, record.parent).last())
    return load_savepoint(home, record.savepoint)


def find_abandonable(settings: Settings, pipeline: str, plan: OperationPlan[Any]) -> Operation:
    """Return the interrupted operation that can be abandoned; read only.

    Raises:
        RequestError: no operation was interrupted, or it is too late.
    """
    ground = HomeOperationStore(settings, settings.pipeline(pipeline), report_nothing, DRAIN_S)
    found: Operation = engine.select_abandonable(ground.operations(), plan, ground.head(), ground)
    return found


def abandon_operation(
    settings: Settings,
    pipeline: str,
    plan: OperationPlan[Any],
    *,
    progress: Progress = report_nothing,
    drain_seconds: float = DRAIN_S,
) -> AbandonReport:
    """Abandon an interrupted operation: the old head keeps serving, and its stream can continue from its own checkpoint.

    The desired state is running again if the operation stopped it and its intent was not changed since.

    Raises:
        RequestError: no operation was interrupted, or it is too late.
        LostRaceError: a process works on an operation at this moment.
        ServiceError: the driver that catches up does not end.
    """
    home = settings.pipeline(pipeline)
    with only_operation(home):
        done = finish(engine.abandon(plan, HomeOperationStore(settings, home, progress, drain_seconds)))
    record = done.record
    return AbandonReport(
        operation=record.id,
        savepoint=record.savepoint,
        stopped_after=done.stopped_after,
        head=done.head,
        left=_left(home, record),
        running=done.running,
    )


def _left(home: PipelineHome, record: Operation) -> tuple[str, ...]:
    folder = home.timeline(record.child)
    left = [f"operations/{record.id}.json (its record)"]
    if (folder / "timeline.json").exists():
        left.append(f"timelines/{record.child} (a recorded timeline off the head's path: none of its batches counts)")
    elif folder.exists():
        left.append(f"timelines/{record.child} (a checkpoint without a record; it may be deleted)")
    return tuple(left)
