"""The steps of each operation, in order. Values only: `engine` runs them, the effects do the work.

A restore serves exactly what was served before: up to L, the parent's last batch, the path is the same. An upgrade is a restore
whose child runs another definition. A planned one of either takes its savepoint of the parent's own checkpoint at L, and no batch is
replayed. A rewind goes back to the savepoint's own batch and computes again what followed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rivertwice.savepoint.operations.record import Operation, OperationStep, Restore, Rewind

R = TypeVar("R", Restore, Rewind)


@dataclass(frozen=True)
class Step:
    """One step of an operation.

    Attributes:
        number: recorded once the step is done; stored since 0.1, so it never changes.
        name: what has happened once it is done.
        does: what it does, shown before the operation runs.
        again_until: it is done again after an interruption until this number is recorded; 0: once it is done, never again.
        touches: whether it touches the stream or the tables. A refusal before the first such step leaves no trace.
        at_rest: whether only the operation's own driver may start while it is done.
    """

    number: int
    name: str
    does: str
    again_until: int = 0
    touches: bool = True
    at_rest: bool = False

    def is_due(self, recorded: int) -> bool:
        """Say whether it must be done, given the recorded number."""
        return recorded < max(self.number, self.again_until)


@dataclass(frozen=True)
class OperationPlan(Generic[R]):
    """An operation as a value: its steps in order, and how people finish or abandon it.

    Attributes:
        noun: its name in messages.
        finish, abandon: commands; `{pipeline}` stands for the pipeline's name.
    """

    record: type[R]
    noun: str
    finish: str
    abandon: str
    steps: tuple[Step, ...]

    def name_of(self, number: int) -> str:
        """Return the name of a step: what has happened once it is done."""
        names = {
            OperationStep.RECORDED: "recorded",
            OperationStep.ABANDONED: "given up",
            **{step.number: step.name for step in self.steps},
        }
        return names[number]


RESTORE = OperationPlan(
    Restore,
    "restore",
    finish="rivertwice savepoint restore {pipeline}",
    abandon="rivertwice savepoint restore {pipeline} --abandon",
    steps=(
        Step(
            OperationStep.CHECKED,
            "checked",
            "refuse tables that lost rows, another definition, a damaged file, a savepoint off the head's path, a log that no longer reaches",
            again_until=OperationStep.CREATED,
            touches=False,
        ),
        Step(
            OperationStep.DRAINED,
            "parent drained",
            "want the stream stopped, and wait until its driver has gone",
            again_until=OperationStep.MOVED,
        ),
        Step(
            OperationStep.FORKED,
            "fork decided",
            "decide the fork: the parent's last batch in the changelog, whatever its checkpoint says",
            again_until=OperationStep.CREATED,
        ),
        Step(
            OperationStep.REPLAYED,
            "recorded batches replayed",
            "fetch the savepoint and replay the recorded batches up to the fork, each compared with the ledger",
            again_until=OperationStep.CREATED,
        ),
        Step(OperationStep.CREATED, "timeline created", "record the child: it leaves the parent after the fork"),
        Step(OperationStep.MOVED, "head moved", "seal the parent and move the head; nothing that is served changes"),
        Step(OperationStep.DONE, "done", "want the stream running again, if it was"),
    ),
)

UPGRADE = replace(
    RESTORE,
    noun="upgrade",
    steps=(
        replace(
            RESTORE.steps[0],
            does="refuse what a restore refuses, and a definition that cannot continue from the old one's state",
        ),
        *RESTORE.steps[1:4],
        replace(
            RESTORE.steps[4], does="record the child under the new definition: it leaves the parent after the fork"
        ),
        *RESTORE.steps[5:],
    ),
)

_TAKEN = replace(
    RESTORE.steps[2],
    name="savepoint taken",
    does="compare the parent's checkpoint with the ledger and take a savepoint of it at the parent's last batch, where the fork is; "
    "a damaged one: take the newest proved savepoint instead",
)
_FETCHED = replace(
    RESTORE.steps[3],
    name="savepoint restored",
    does="fetch that savepoint: nothing is replayed (from an older one: the recorded batches up to the fork, each compared)",
)


def _planned(plan: OperationPlan[Restore], noun: str) -> OperationPlan[Restore]:
    checked, drained, _, _, *others = plan.steps
    also = replace(checked, does=f"{checked.does}; read every byte of the newest proved savepoint")
    return replace(plan, noun=noun, steps=(also, drained, _TAKEN, _FETCHED, *others))


def _rewritten(plan: OperationPlan[Restore]) -> OperationPlan[Restore]:
    """Return the plan of an upgrade, which may change the number of state partitions."""
    *before, fetched, created, moved, done = plan.steps
    also = replace(
        fetched,
        does=f"{fetched.does}; if the number of state partitions changes, rewrite the state into the new number",
    )
    return replace(plan, steps=(*before, also, created, moved, done))


UPGRADE = _rewritten(UPGRADE)
PLANNED_RESTORE = _planned(RESTORE, "planned restore")
PLANNED_UPGRADE = _rewritten(_planned(UPGRADE, "planned upgrade"))

REWIND = OperationPlan(
    Rewind,
    "rewind",
    finish="rivertwice savepoint rewind {pipeline} --yes",
    abandon="rivertwice savepoint rewind {pipeline} --abandon",
    steps=(
        Step(
            OperationStep.CHECKED,
            "checked",
            "read every byte of the savepoint and compare it with the manifest",
            touches=False,
        ),
        Step(
            OperationStep.DRAINED,
            "stream stopped",
            "want the stream stopped, and wait until its driver has gone; it stays stopped until the head has moved",
            again_until=OperationStep.MOVED,
        ),
        Step(OperationStep.COPIED, "savepoint copied", "copy the savepoint into the child's folder", at_rest=True),
        Step(
            OperationStep.BRANCHED,
            "timeline created",
            "record the child: it leaves the savepoint's own batch",
            at_rest=True,
        ),
        Step(
            OperationStep.COMPARED,
            "caught up and compared",
            "run a driver on the child until it has read what the head has; compare every row both have emitted",
            again_until=OperationStep.MOVED,
            at_rest=True,
        ),
        Step(
            OperationStep.MOVED,
            "head moved",
            "seal the old head and move the head; only now does the child count",
            at_rest=True,
        ),
        Step(OperationStep.DONE, "done", "want the stream running again, if it was"),
    ),
)

PLANS: tuple[OperationPlan[Any], ...] = (RESTORE, PLANNED_RESTORE, REWIND)


def plan_of(record: Operation) -> OperationPlan[Any]:
    """Return the plan of a stored record; an upgrade's is a restore's."""
    if isinstance(record, Restore):
        return select_plan(planned=record.planned, upgrade=False)
    return REWIND


def select_plan(*, planned: bool, upgrade: bool) -> OperationPlan[Restore]:
    """Return the plan of a restore or an upgrade. All have the same numbers, so that what is stored is resumed by any of them."""
    if upgrade:
        return PLANNED_UPGRADE if planned else UPGRADE
    return PLANNED_RESTORE if planned else RESTORE
