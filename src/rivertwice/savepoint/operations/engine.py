"""One engine for every operation: it records, runs, resumes, abandons and explains. Pure, except for the effects it is given.

An operation is an ordered tuple of steps. A step that is done is recorded. A step that is interrupted is done again, so it must
be repeatable. Every function here is a generator that yields the name of what has just become durable. The product runs it to
its end; the protocol model (`lab.model`) kills and pauses it at each yield.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol

from rivertwice.core import LostRaceError, RequestError
from rivertwice.savepoint.operations.record import Operation, OperationStep
from rivertwice.savepoint.operations.steps import OperationPlan, R, Step, plan_of
from rivertwice.timeline import Intent

LOOKED, SEALED, HEAD_MOVED = "head and last batch looked at", "old head sealed", "head moved"
WANTED = "stream started again"
MOVE, ALREADY, AGAIN = "move", "moved already", "do the steps before again"
SKIPPED, REPEATED, TO_DO = "done", "done, and done again", "to do"


class OperationStore(Protocol):
    """What every operation reads and changes outside itself, also one that is abandoned. Each effect is atomic or repeatable."""

    @property
    def pipeline(self) -> str:
        """The pipeline's name."""

    def operations(self) -> Sequence[Operation]:
        """Return all operations of the pipeline, oldest first."""

    def write(self, record: Operation) -> None:
        """Write the whole record."""

    def let_go(self, record: Operation) -> None:
        """Let others start the stream again."""

    def release(self, record: Operation) -> None:
        """End the lease."""

    def clear(self, record: Operation) -> None:
        """Delete the operation's scratch folder."""

    def end_own_driver(self, record: Operation) -> Generator[str | int]:
        """End a driver that works only for the operation."""

    def intent(self) -> Intent | None:
        """Return the desired state of the stream: running or stopped."""

    def want(self, desired: str, by: str) -> None:
        """Record the desired state of the stream: running or stopped."""

    def head(self) -> str | None:
        """Return the timeline that serves."""

    def is_sealed(self, timeline: str) -> bool:
        """Say whether a timeline takes no further batch."""


class Effects(OperationStore, Protocol[R]):
    """The other effects that running an operation needs."""

    def forget(self, record: R) -> None:
        """Remove the record of an operation that was refused before it touched anything."""

    def accept(self, interrupted: R) -> None:
        """Refuse to resume an interrupted operation, if another one is asked for."""

    def begin(self, savepoint: str | None) -> R:
        """Decide what is to be done, and refuse what cannot be done."""

    def lease(self, record: R) -> Generator[str | int]:
        """Load the savepoint and lease it against prune."""

    def do(self, step: Step, record: R) -> Generator[str | int, None, R]:
        """Do a step before the head moves; return the record with the step's result."""

    def again(self, record: R) -> Generator[str | int, None, R]:
        """Take over the batches that the serving timeline has committed since; return the record with the result."""

    def hold(self, record: R) -> None:
        """Let only the operation's own driver start."""

    def last_seq(self) -> int:
        """Return the number of the sequence's newest entry."""

    def last_batch(self, record: R) -> int:
        """Return the last committed batch of the timeline that serves until the head moves."""

    def seal(self, timeline: str) -> None:
        """Let a timeline take no further batch."""

    def move_head(self, record: R, expected_seq: int) -> None:
        """Let the child serve, if no entry was appended to the sequence since."""


@dataclass(frozen=True)
class OperationResult(Generic[R]):
    """How far an operation got: its record, and whether it was resumed."""

    record: R
    resumed: bool


@dataclass(frozen=True)
class AbandonResult(Generic[R]):
    """The result of abandoning: the record, the last step that was done, the head, whether the desired state is running again."""

    record: R
    stopped_after: str
    head: str
    running: bool


@dataclass(frozen=True)
class ShownStep:
    """A step as it is shown to people: what it does, and whether it is done, to do, or done again."""

    number: int
    does: str
    state: str


def run(
    plan: OperationPlan[R], effects: Effects[R], savepoint: str | None, *, stop_after: int | None = None
) -> Generator[str | int, None, OperationResult[R]]:
    """Run an operation, or resume the one that was interrupted.

    Args:
        savepoint: its base; None resumes an interrupted operation, or lets `begin` choose.
        stop_after: number of the step to stop after; None runs all steps.

    Raises:
        RequestError: another operation is not finished.
        RivertwiceError: a step was refused. If no step has touched anything yet, no trace is left.
    """
    interrupted = select_unfinished(effects.operations(), plan, savepoint, effects.pipeline)
    if interrupted is None:
        record = effects.begin(savepoint)
        effects.write(record)
        yield plan.name_of(OperationStep.RECORDED)
    else:
        effects.accept(interrupted)
        record = interrupted
    touching = False
    try:
        yield from effects.lease(record)
        for step in plan.steps:
            if not step.is_due(record.step):
                continue
            touching = touching or step.touches
            if step.at_rest:
                effects.hold(record)
            record = yield from _do(plan, effects, step, record)
            if step.number == stop_after:
                break
            if step.number == OperationStep.MOVED:
                effects.let_go(record)
    except Exception:
        if not touching and record.step < OperationStep.DRAINED:
            effects.forget(record)
            effects.release(record)
        effects.let_go(record)
        raise
    effects.let_go(record)
    if record.step >= OperationStep.DONE:
        effects.clear(record)
        effects.release(record)
    return OperationResult(record, interrupted is not None)


def _do(plan: OperationPlan[R], effects: Effects[R], step: Step, record: R) -> Generator[str | int, None, R]:
    if step.number == OperationStep.MOVED:
        done = yield from _move_head(effects, record)
    elif step.number == OperationStep.DONE:
        done = yield from _wake_stream(effects, record)
    else:
        done = yield from effects.do(step, record)
    done = replace(done, step=max(done.step, step.number))
    if done != record:
        effects.write(done)
        yield plan.name_of(done.step)
    return done


def abandon(plan: OperationPlan[R], ground: OperationStore) -> Generator[str | int, None, AbandonResult[R]]:
    """Abandon the interrupted operation: the old head keeps serving, and what was half made does not count.

    If this is killed after the mark, it leaves a lease that runs out, scratch, and a stopped stream; `rivertwice start` starts it.

    Raises:
        RequestError: no operation was interrupted, or it is too late.
    """
    head = ground.head()
    interrupted = select_abandonable(ground.operations(), plan, head, ground)
    yield from ground.end_own_driver(interrupted)
    abandoned = replace(interrupted, step=OperationStep.ABANDONED)
    ground.write(abandoned)
    yield plan.name_of(OperationStep.ABANDONED)
    ground.let_go(interrupted)
    ground.release(interrupted)
    ground.clear(interrupted)
    running = is_intent_ours(interrupted, ground.intent())
    if running:
        ground.want("running", f"{interrupted.id} (abandoned)")
    return AbandonResult(abandoned, plan_of(interrupted).name_of(interrupted.step), str(head), running)


def explain(plan: OperationPlan[R], interrupted: R | None) -> tuple[ShownStep, ...]:
    """Return the steps as they are shown; `interrupted` is the operation that would be resumed, if there is one. Pure."""
    recorded = OperationStep.RECORDED if interrupted is None else interrupted.step
    return tuple(
        ShownStep(
            step.number, step.does, TO_DO if recorded < step.number else REPEATED if step.is_due(recorded) else SKIPPED
        )
        for step in plan.steps
    )


def _move_head(effects: Effects[R], record: R) -> Generator[str | int, None, R]:
    """Seal the timeline that serves, and let the child serve. With this step the operation takes effect.

    Raises:
        LostRaceError: another timeline became the head meanwhile.
    """
    while True:
        newest_seq, last = effects.last_seq(), effects.last_batch(record)
        decision = decide_move(record, effects.head(), last)
        yield LOOKED
        if decision == MOVE:
            effects.seal(record.serving)
            yield SEALED
            decision = decide_move(record, effects.head(), effects.last_batch(record))
        if decision == MOVE:
            effects.move_head(record, newest_seq)
            yield HEAD_MOVED
        if decision != AGAIN:
            return record
        record = yield from effects.again(record)


def _wake_stream(effects: Effects[R], record: R) -> Generator[str | int, None, R]:
    """Want the stream running again, if the operation stopped it and its intent was not changed since."""
    if is_intent_ours(record, effects.intent()):
        effects.want("running", record.id)
    yield WANTED
    return record


def select_unfinished(
    operations: Sequence[Operation], plan: OperationPlan[R], savepoint: str | None, pipeline: str
) -> R | None:
    """Return the operation that must be resumed, or None to begin a new one. Pure.

    Args:
        operations: all operations of the pipeline, oldest first.
        savepoint: its base; None accepts the base of the interrupted one.

    Raises:
        RequestError: an operation of another kind, or on another savepoint, was interrupted. Two unfinished ones could not be
            distinguished later.
    """
    unfinished = [operation for operation in operations if operation.step < OperationStep.DONE]
    if not unfinished:
        return None
    interrupted = unfinished[-1]
    if isinstance(interrupted, plan.record) and (savepoint is None or interrupted.is_based_on(savepoint)):
        return interrupted
    cut_off = plan_of(interrupted)
    message = (
        f"{interrupted.id} of savepoint {interrupted.savepoint} was interrupted at '{cut_off.name_of(interrupted.step)}'; "
        f"finish it (`{cut_off.finish.format(pipeline=pipeline)}`) or abandon it "
        f"(`{cut_off.abandon.format(pipeline=pipeline)}`)"
    )
    raise RequestError(message)


def select_abandonable(
    operations: Sequence[Operation], plan: OperationPlan[R], head: str | None, ground: OperationStore
) -> R:
    """Return the operation that was interrupted and can be abandoned.

    Raises:
        RequestError: there is none; or its child is the head already, or the old head is sealed. Then it can only be finished.
    """
    unfinished = [
        operation
        for operation in operations
        if operation.step < OperationStep.DONE and isinstance(operation, plan.record)
    ]
    if not unfinished:
        message = (
            f"no {plan.noun} of {ground.pipeline} was interrupted, so there is nothing to abandon; see "
            f"`rivertwice savepoint list {ground.pipeline}`"
        )
        raise RequestError(message)
    interrupted = unfinished[-1]
    moved = interrupted.step >= OperationStep.MOVED or head == interrupted.child
    if moved or (head == interrupted.serving and ground.is_sealed(interrupted.serving)):
        obstacle = (
            f"has moved the head to {interrupted.child} already"
            if moved
            else f"has sealed {interrupted.serving}, which takes no further batch, and was about to move the head to {interrupted.child}"
        )
        message = (
            f"{interrupted.id} of savepoint {interrupted.savepoint} {obstacle}; it can only be finished: "
            f"`{plan.finish.format(pipeline=ground.pipeline)}`"
        )
        raise RequestError(message)
    return interrupted


def is_intent_ours(record: Operation, intent: Intent | None) -> bool:
    """Say whether the stream is stopped because of this operation, so that it should run again. Pure."""
    return record.was_running and intent is not None and (intent.desired, intent.by) == ("stopped", record.id)


def decide_move(record: Operation, head: str | None, last: int) -> str:
    """Return what is to be done about the head. Pure.

    Args:
        last: last committed batch of the timeline that serves until the head moves.

    Returns:
        `MOVE`, `ALREADY` if the child is the head, or `AGAIN` if the serving timeline has batches that the child did not take over.

    Raises:
        LostRaceError: another timeline is the head.
    """
    if head == record.child:
        return ALREADY
    if head != record.serving:
        message = (
            f"{record.id} began when {record.serving} was the head, now {head} is: somebody moved it by hand; nothing served "
            "changed; give the operation up (--abandon) and look again"
        )
        raise LostRaceError(message)
    return MOVE if last == record.reached else AGAIN
