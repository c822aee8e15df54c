"""Acts on savepoints that change nothing that is served: take, prove, pin, unpin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from rivertwice.acts.act import CARE, Act, ActName, Plan, Request, World, taken_if
from rivertwice.acts.forms import NOT_IN_FORMS
from rivertwice.core import utc_now
from rivertwice.savepoint import StateBase, require_savepoint_id

if TYPE_CHECKING:
    from rivertwice.savepoint import Proof


SavepointId = Annotated[str, taken_if(require_savepoint_id)]
ID_FIELD: dict[str, Any] = {
    "title": "Savepoint",
    "examples": ["sp-t1-120-0a1b2c3d"],
    "json_schema_extra": {"pattern": r"^sp-[a-z0-9][a-z0-9_-]{0,63}-[0-9]{1,18}-[0-9a-f]{8}$"},
}
"""What every form says of a field that takes a savepoint."""


@dataclass(frozen=True)
class SavepointState:
    """A savepoint's id, its status (taken, proved, failed), and whether it is pinned."""

    savepoint: str
    status: str
    pinned: bool


class SavepointRequest(Request):
    """A request about one savepoint."""

    savepoint: SavepointId = Field(description="Its id, as `rivertwice savepoint list` shows it.", **ID_FIELD)


class BaseRequest(Request):
    """A request that builds on a savepoint, on none, or on the newest proved one."""

    savepoint: SavepointId | None = Field(
        None,
        description="Its id; empty: the newest proved one of the head's path, or what was interrupted.",
        **ID_FIELD,
    )
    from_beginning: bool = Field(
        False, title="From the beginning", description="No savepoint: read again all that the stream ever read."
    )
    unproved: bool = Field(
        False, title="Accept an unproved one", description="Accept a savepoint that was taken and never proved."
    )

    @model_validator(mode="after")
    def _one_base(self) -> Self:
        if self.from_beginning and (self.savepoint is not None or self.unproved):
            message = "from_beginning takes no savepoint: leave out the id and unproved"
            raise ValueError(message)
        return self

    @property
    def base(self) -> str | None:
        """What it is built on; None: the newest proved savepoint."""
        return StateBase.BEGINNING if self.from_beginning else self.savepoint


class ProveRequest(SavepointRequest):
    """A request to prove one savepoint."""

    batches: int = Field(3, ge=1, description="Recorded batches to replay.", json_schema_extra={NOT_IN_FORMS: True})
    timeout: float = Field(
        60.0, ge=0, description="Seconds to wait for those batches.", json_schema_extra={NOT_IN_FORMS: True}
    )
    or_older: bool = Field(
        False,
        description="If nothing follows it yet that could prove it, prove the newest older one that is not proved.",
        json_schema_extra={NOT_IN_FORMS: True},
    )


class TakeRequest(Request):
    """A request to take a savepoint while the stream runs."""

    prove: bool = Field(
        True,
        title="Prove",
        description="Restore it into scratch and replay recorded batches: without this it is not proved.",
    )


def _plan_take(world: World, request: TakeRequest) -> Plan:
    from rivertwice.timeline import head

    rows = [("of timeline", head(world.settings.pipeline(request.pipeline)))]
    return Plan({"prove": request.prove}, rows)


def _take(world: World, request: TakeRequest) -> SavepointState | Proof:
    from rivertwice.savepoint import take_savepoint

    taken = take_savepoint(world.settings, request.pipeline, now=utc_now(), reason=request.reason or "manual")
    if not request.prove:
        return SavepointState(taken.id, taken.status, taken.pinned)
    return _prove(world, ProveRequest(pipeline=request.pipeline, savepoint=taken.id, reason=request.reason))


def _plan(world: World, request: SavepointRequest) -> Plan:
    from rivertwice.savepoint import load_savepoint

    item = load_savepoint(world.settings.pipeline(request.pipeline), request.savepoint)
    rows = [("savepoint", f"{item.id} ({item.status}{', pinned' if item.pinned else ''})")]
    return Plan(SavepointState(item.id, item.status, item.pinned), rows)


def _prove(world: World, request: ProveRequest) -> Proof:
    from rivertwice.savepoint import ProofBudget, prove_rotation, prove_savepoint

    budget = ProofBudget(batches=request.batches, wait_s=request.timeout)
    prove = prove_rotation if request.or_older else prove_savepoint
    done = prove(world.settings, request.pipeline, request.savepoint, budget=budget, progress=world.progress)
    proofs = done if isinstance(done, list) else [done]
    return next((proof for proof in proofs if proof.proved), proofs[0])


def _pin(world: World, request: SavepointRequest) -> SavepointState:
    from rivertwice.savepoint import pin_savepoint

    pinned = pin_savepoint(world.settings.pipeline(request.pipeline), request.savepoint, by=world.by, now=utc_now())
    return SavepointState(pinned.id, pinned.status, pinned.pinned)


def _unpin(world: World, request: SavepointRequest) -> SavepointState:
    from rivertwice.savepoint import unpin_savepoint

    left = unpin_savepoint(world.settings.pipeline(request.pipeline), request.savepoint)
    return SavepointState(left.id, left.status, left.pinned)


TAKE = Act(
    ActName.TAKE,
    "Take",
    "A savepoint is taken while the stream runs. To be proved it is restored aside, and recorded batches are replayed and compared.",
    TakeRequest,
    _plan_take,
    _take,
    needs_spark=True,
    dag=CARE,
    dry_run=False,
)
PROVE = Act(
    "savepoint.prove",
    "Prove",
    "The savepoint is restored aside, and recorded batches are replayed and compared. The stream runs on.",
    ProveRequest,
    _plan,
    _prove,
    needs_spark=True,
)
PIN = Act("savepoint.pin", "Pin", "No prune deletes the savepoint.", SavepointRequest, _plan, _pin)
UNPIN = Act("savepoint.unpin", "Unpin", "A prune may delete the savepoint.", SavepointRequest, _plan, _unpin)
