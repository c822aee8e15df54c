"""Upgrade: a stream continues with its changed definition, from the state that the old one left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from rivertwice.acts.act import Act, Plan, Request, Row, World
from rivertwice.acts.restore import OperationOutcome, describe_base
from rivertwice.acts.savepoint import ID_FIELD, SavepointId

_WAYS = {
    "same": "nothing that matters changed",
    "resume": "continues from the old definition's state",
    "refused": "cannot continue from the old definition's state",
}


@dataclass(frozen=True)
class UpgradeOutcome(OperationOutcome):
    """What came of an upgrade.

    Attributes:
        bundle: the definition that runs now.
        changed: components of the definition that changed.
    """

    bundle: str = ""
    changed: tuple[str, ...] = ()


class UpgradeRequest(Request):
    """A request to continue with the changed definition."""

    savepoint: SavepointId | None = Field(
        None,
        description="Build on this proved savepoint and replay what followed, instead of taking one now.",
        **ID_FIELD,
    )
    unproved: bool = Field(
        False, title="Accept an unproved one", description="Accept a savepoint that was taken and never proved."
    )


def _plan(world: World, request: UpgradeRequest) -> Plan:
    from rivertwice.savepoint import show_upgrade

    shown = show_upgrade(world.settings, request.pipeline, request.savepoint, unproved=request.unproved)
    refusals = () if shown.refusal is None else (shown.refusal,)
    rows, changes = _rows(shown), _changes(shown)
    return Plan(shown, rows, shown.steps, None, refusals, shown.resumes, changes=changes, text="\n".join(shown.diff))


def _apply(world: World, request: UpgradeRequest) -> UpgradeOutcome:
    from rivertwice.savepoint import upgrade_stream
    from rivertwice.timeline import head

    done = upgrade_stream(
        world.settings, request.pipeline, request.savepoint, unproved=request.unproved, progress=world.progress
    )
    now = head(world.settings.pipeline(request.pipeline))
    return UpgradeOutcome(**vars(done.restore), head=now, bundle=done.bundle, changed=tuple(done.changed))


def _rows(shown: Any) -> list[Row]:
    return [
        ("definition", f"bundle {shown.old_bundle[:12]} to {shown.new_bundle[:12]}: {_WAYS[shown.way]}"),
        ("state", _describe_state(shown)),
        ("new timeline", f"leaves {shown.timeline} after its last batch, now {shown.batch}"),
        ("built on", describe_base(shown.savepoint, shown.origin)),
        ("replayed and compared", f"{shown.replay} recorded batches"),
        (
            "served",
            f"as now, with its {shown.publications} publications; windows that close from then on are of the new definition",
        ),
    ]


def _describe_state(shown: Any) -> str:
    """Return what happens to the state's layout."""
    kept = f"; {shown.kept}" if shown.kept else ""
    if shown.partitions is None:
        return f"laid out as now{kept}"
    before, after = shown.partitions
    return f"rewritten from {before} to {after} partitions by Spark, equal otherwise{kept}"


def _changes(shown: Any) -> list[tuple[str, ...]]:
    """Return what changed of the definition: component, old, new, and what happens to the state."""
    from rivertwice.savepoint import describe_change

    return [
        (*describe_change(change), shown.obstacles.get(change.component, "carried over")) for change in shown.changes
    ]


UPGRADE = Act(
    "upgrade",
    "Upgrade",
    "The stream drains and continues with its changed definition on a new timeline. What is served stays as it is.",
    UpgradeRequest,
    _plan,
    _apply,
    needs_spark=True,
    confirm="the head moves to a new timeline with the changed definition",
    dag="",
)
