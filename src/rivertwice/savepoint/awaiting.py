"""Savepoints of planned restores and upgrades that are not proved yet, and what they are proved from. Pure.

Such a savepoint is what its timeline began from. Until it is proved, the proved savepoint before it, its origin, is the way back: prune
spares both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rivertwice.savepoint.catalogue import ProofState, Savepoint
from rivertwice.savepoint.operations.record import Operation, OperationStep, Restore
from rivertwice.savepoint.plan import is_on_path
from rivertwice.timeline import Segment


def select_awaiting(
    operations: Sequence[Operation], savepoints: Sequence[Savepoint], path: Sequence[Segment]
) -> list[Restore]:
    """Return the planned operations whose savepoint must still be proved: they are done, and their timeline counts.

    Args:
        operations: all of the pipeline, oldest first.
        path: the head's path.
    """
    unproved = {savepoint.id for savepoint in savepoints if savepoint.status != ProofState.PROVED}
    counting = {segment.timeline for segment in path}
    return [
        operation
        for operation in operations
        if isinstance(operation, Restore)
        and operation.planned
        and operation.step == OperationStep.DONE
        and operation.child in counting
        and operation.savepoint in unproved
    ]


def protect_awaiting(awaiting: Sequence[Restore]) -> Mapping[str, str]:
    """Return the savepoints that stay until a planned operation's savepoint is proved, each with the reason."""
    waiting = {
        restore.savepoint: f"waits for its proof: timeline {restore.child} began from it" for restore in awaiting
    }
    origins = {
        restore.origin: f"kept until {restore.savepoint} is proved"
        for restore in awaiting
        if restore.origin is not None
    }
    return {**origins, **waiting}


def select_origin(
    restore: Restore, savepoint: Savepoint, savepoints: Sequence[Savepoint], path: Sequence[Segment]
) -> Savepoint | None:
    """Return the proved savepoint from which a planned operation's savepoint is proved: its origin, else the newest that fits.

    Args:
        path: the path of the savepoint's own timeline.
    """
    fitting = [
        other
        for other in savepoints
        if other.status == ProofState.PROVED
        and other.id != savepoint.id
        and other.manifest.batch <= savepoint.manifest.batch
        and other.manifest.fingerprint == savepoint.manifest.fingerprint
        and is_on_path(other.manifest, path)
    ]
    own = [other for other in fitting if other.id == restore.origin]
    return max(own or fitting, key=lambda other: (other.manifest.batch, other.id), default=None)
