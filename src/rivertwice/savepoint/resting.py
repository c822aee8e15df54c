"""A timeline's own checkpoint at rest as the base of a restore: nothing is to be replayed.

A planned restore or upgrade begins with it. Once the driver has drained, a savepoint of that very checkpoint is taken and takes its
place. Until then the base is only described, by the ledger row at which the checkpoint stands.
"""

from __future__ import annotations

from rivertwice.core import FingerprintError, PipelineHome, SavepointError
from rivertwice.savepoint.catalogue import Savepoint, savepoint_store
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.take import describe_row
from rivertwice.stream import partitions_of
from rivertwice.timeline import LedgerRow, Timeline


def resting_of(home: PipelineHome, parent: str, last: LedgerRow | None) -> Savepoint:
    """Return where a timeline's checkpoint stands, as a savepoint without files.

    Args:
        last: the last committed batch of its path; None if there is none.

    Raises:
        SavepointError: no batch is committed, so there is no state to continue from.
        FingerprintError: the checkpoint still has the state of another definition.
    """
    line = Timeline.load(home, parent)
    if last is None:
        raise SavepointError(describe_no_batch(line.pipeline))
    require_own_state(line, Timeline.load(home, last.timeline), last)
    return Savepoint(
        describe_row(home, last, savepoint=StateBase.RESTING, reason="the checkpoint at rest", files={}),
        savepoint_store(home),
    )


def describe_no_batch(pipeline: str) -> str:
    """Return that a stream has no state to continue from, and what begins it. Pure."""
    return (
        f"{pipeline} has committed no batch yet, so there is no state to continue from; "
        f"`rivertwice start {pipeline}` begins with the definition as it is now"
    )


def require_own_state(line: Timeline, of_last: Timeline, last: LedgerRow) -> None:
    """Check that a checkpoint's state was made by the definition of its timeline, and ends where the timeline continues. Pure.

    Args:
        line: the timeline whose checkpoint it is.
        of_last: the timeline that owns the last batch of its path.

    Raises:
        FingerprintError: the timeline was made by an upgrade and has no batch yet.
        SavepointError: the timeline was made by an accepted gap or by another number of partitions, and has no batch yet.
    """
    if line.fingerprint != of_last.fingerprint:
        message = (
            f"timeline {line.timeline} of {line.pipeline} was made by an upgrade and has no batch yet: its checkpoint still has the "
            f"state of the definition before; start the stream, and repeat this after its first batch"
        )
        raise FingerprintError(message)
    if last.timeline != line.timeline and line.shuffle_partitions not in (0, partitions_of(last.offsets_text)):
        message = (
            f"timeline {line.timeline} of {line.pipeline} has its state in {line.shuffle_partitions} partitions and has no batch yet: its "
            f"checkpoint is not what the ledger recorded for batch {last.batch}; start the stream, and repeat this after "
            "its first batch"
        )
        raise SavepointError(message)
    if last.timeline != line.timeline and last.end_offsets != line.genesis:
        message = (
            f"timeline {line.timeline} of {line.pipeline} was made by an accepted gap and has no batch yet: its checkpoint is not "
            f"what the ledger recorded for batch {last.batch}; start the stream, and repeat this after its first batch"
        )
        raise SavepointError(message)
