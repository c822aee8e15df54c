"""Abandon: the interrupted operation (restore, upgrade, rewind) is undone as far as it came; what is served stays served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from rivertwice.acts.act import Act, Plan, Request, World
from rivertwice.acts.forms import NOT_IN_FORMS
from rivertwice.core import RequestError
from rivertwice.savepoint import Operation, OperationStep, read_operations


@dataclass(frozen=True)
class AbandonOutcome:
    """What came of an abandoned operation.

    Attributes:
        abandoned: true.
        savepoint: that it was built on; this and what follows is None if it had been abandoned before.
        stopped_after: the last step that was done.
        head: the timeline that serves, as before the operation.
        left: files that are left; none of them is served.
        running: whether the stream is to run again.
    """

    operation: str
    abandoned: bool = True
    savepoint: str | None = None
    stopped_after: str | None = None
    head: str | None = None
    left: tuple[str, ...] = ()
    running: bool | None = None


class AbandonRequest(Request):
    """A request to abandon the interrupted operation."""

    noun: Literal["restore", "upgrade", "rewind"] | None = Field(
        None, description="Only an operation of this kind.", json_schema_extra={NOT_IN_FORMS: True}
    )


def _plan(world: World, request: AbandonRequest) -> Plan:
    from rivertwice.savepoint import find_abandonable, plan_of

    found = _interrupted(world, request)
    if found.step == OperationStep.ABANDONED:
        raise _nothing(request.pipeline)
    found = find_abandonable(world.settings, request.pipeline, plan_of(found))
    stopped = plan_of(found).name_of(found.step)
    rows = [("operation", found.id), ("interrupted after", stopped), ("served", "as now")]
    return Plan({"operation": found.id, "savepoint": found.savepoint, "stopped_after": stopped}, rows)


def _apply(world: World, request: AbandonRequest) -> AbandonOutcome:
    from rivertwice.savepoint import abandon_operation, plan_of

    found = _interrupted(world, request)
    if found.step == OperationStep.ABANDONED:
        return AbandonOutcome(found.id)
    report = abandon_operation(world.settings, request.pipeline, plan_of(found), progress=world.progress)
    return AbandonOutcome(**vars(report))


def _interrupted(world: World, request: AbandonRequest) -> Operation:
    """Return the interrupted operation; the newest one if that is abandoned already, and no kind is asked for.

    Raises:
        RequestError: there is none.
    """
    from rivertwice.savepoint import RESTORE, REWIND, UPGRADE, find_abandonable

    pipeline = request.pipeline
    if request.noun is not None:
        plan: Any = next(each for each in (RESTORE, REWIND, UPGRADE) if each.noun == request.noun)
        return find_abandonable(world.settings, pipeline, plan)
    operations = read_operations(world.settings.pipeline(pipeline))
    unfinished = [operation for operation in operations if operation.step < OperationStep.DONE]
    if unfinished:
        return unfinished[-1]
    if operations and operations[-1].step == OperationStep.ABANDONED:
        return operations[-1]
    raise _nothing(pipeline)


def _nothing(pipeline: str) -> RequestError:
    return RequestError(f"no operation of {pipeline} was interrupted, so there is nothing to abandon")


ABANDON = Act(
    "operation.abandon",
    "Abandon",
    "The interrupted operation is abandoned: the old head serves, and the stream runs again if it ran before.",
    AbandonRequest,
    _plan,
    _apply,
    wants_reason=True,
)
