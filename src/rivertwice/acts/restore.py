"""Restore: the stream continues from a savepoint on a new timeline; what is served stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, model_validator

from rivertwice.acts.act import Act, Plan, Row, World
from rivertwice.acts.savepoint import BaseRequest
from rivertwice.savepoint import Restore, StateBase, find_repeated, read_restores


@dataclass(frozen=True)
class OperationOutcome:
    """What came of a restore.

    Attributes:
        savepoint: that it began at; `beginning` or `checkpoint`: none that was there before.
        timeline: the new head.
        forked_at: last batch of the parent that counts.
        replayed: recorded batches that were replayed with equal results.
        resumed: whether it was interrupted before; None: it was done by an earlier try of the same request.
        running: whether the stream is to run; None likewise.
        head: the timeline that serves now.
    """

    operation: str
    savepoint: str
    timeline: str
    parent: str
    forked_at: int | None
    replayed: int
    resumed: bool | None = None
    running: bool | None = None
    head: str | None = None


class RestoreRequest(BaseRequest):
    """A request to continue from a savepoint."""

    from_beginning: bool = Field(
        False,
        title="From the beginning",
        description="Use no savepoint: make the state again from all recorded batches, each compared.",
    )
    planned: bool = Field(
        False,
        title="Planned",
        description="Take the savepoint now, of the drained stream: nothing is replayed, and the agent proves it afterwards.",
    )

    @model_validator(mode="after")
    def _planned_alone(self) -> Self:
        if self.planned and (self.savepoint is not None or self.from_beginning):
            other = self.savepoint or "from_beginning"
            message = f"planned takes a savepoint itself, but {other} is given too; leave one of them out"
            raise ValueError(message)
        return self

    @property
    def base(self) -> str | None:
        """What it is built on; None: the newest proved savepoint."""
        return StateBase.RESTING if self.planned else super().base


def _plan(world: World, request: RestoreRequest) -> Plan:
    from rivertwice.savepoint import show_restore

    shown = show_restore(world.settings, request.pipeline, request.base, unproved=request.unproved)
    refusals = () if shown.refusal is None else (shown.refusal,)
    return Plan(shown, _rows(shown), shown.steps, _damage(shown), refusals, shown.resumes)


def _apply(world: World, request: RestoreRequest) -> OperationOutcome:
    from rivertwice.savepoint import restore_savepoint
    from rivertwice.timeline import head

    home = world.settings.pipeline(request.pipeline)
    done = find_repeated(read_restores(home), Restore, world.asked_at, base=request.base, resumes=world.resumes)
    if done is None:
        report = restore_savepoint(
            world.settings, request.pipeline, request.base, unproved=request.unproved, progress=world.progress
        )
        return OperationOutcome(**vars(report), head=head(home))
    world.progress(f"{done.id} is done already: timeline {done.child}")
    return OperationOutcome(
        done.id, done.savepoint, done.child, done.parent, done.forked_at, done.replayed, head=head(home)
    )


def describe_base(savepoint: str | None, origin: str | None) -> str:
    """Return what an operation is built on; a planned one takes its savepoint itself."""
    if savepoint != StateBase.RESTING:
        return savepoint or "no proved savepoint"
    after = (
        "not proved afterwards: there is no proved savepoint" if origin is None else f"proved afterwards from {origin}"
    )
    return f"a savepoint of the drained checkpoint, {after}"


def _rows(shown: Any) -> list[Row]:
    source = {None: "", "kafka": ", from Kafka"}.get(shown.source, ", from the archive: Kafka lacks some")
    state = "proved" if shown.proved else "taken, not proved"
    planned = shown.savepoint == StateBase.RESTING
    return [
        ("savepoint", describe_base(shown.savepoint, shown.origin) if planned else f"{shown.savepoint} ({state})"),
        ("position", f"batch {shown.batch} of timeline {shown.timeline}"),
        ("new timeline", f"leaves {shown.parent} after its last batch, now {shown.forks_at}"),
        ("replayed and compared", f"{shown.replay} recorded batches{source}"),
        ("served", "as now"),
    ]


def _damage(shown: Any) -> str | None:
    if shown.damage is None:
        return None
    return (
        f"the checkpoint is damaged: {shown.damage}; {shown.origin or 'no proved savepoint'} would be replayed instead"
    )


RESTORE = Act(
    "savepoint.restore",
    "Restore",
    "The stream drains and continues from the savepoint on a new timeline. What is served stays as it is.",
    RestoreRequest,
    _plan,
    _apply,
    needs_spark=True,
    confirm="a restore moves the head to a new timeline",
)
