"""Whether a run can build on a seal: it lies on the head's path, the definition judges as it did, and what is served fits. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rivertwice.reconcile.seals.model import Seal
from rivertwice.reconcile.seals.scope import Scope
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import Segment
from rivertwice.timeline.served_stamp import ServedStamp


class NotIncrementalError(Exception):
    """What changed since the seal cannot be judged apart from the rest; the message says why."""


def select_seal(seals: Sequence[Seal], path: Sequence[Segment]) -> Seal | None:
    """Return the newest seal on a path, None without one.

    Args:
        seals: oldest first.
        path: the head's; after a head move, the newest seal below the fork is on it.
    """
    on_path = [seal for seal in seals if any(part.contains(seal.timeline, seal.batch) for part in path)]
    return on_path[-1] if on_path else None


def require_sealed_batch(seal: Seal, tail: Sequence[LedgerRow]) -> None:
    """Check that the ledger of the path, from the seal's batch number on, begins with the seal's batch.

    Raises:
        NotIncrementalError: it does not.
    """
    if not tail or (tail[0].timeline, tail[0].batch) != (seal.timeline, seal.batch):
        message = f"the ledger has no row for the batch of the {seal.name}"
        raise NotIncrementalError(message)


def require_same_meaning(seal: Seal, meanings: Sequence[str]) -> None:
    """Check that one definition made all windows that are judged, and that it judges as it did at the seal.

    Args:
        seal: that the run builds on.
        meanings: `meaning_of` each definition of the batches that are read.

    Raises:
        NotIncrementalError: it is not so.
    """
    if len(meanings) > 1:
        message = "several definitions made the windows that are not settled"
        raise NotIncrementalError(message)
    if meanings[0] != seal.meaning:
        message = "the definition judges otherwise than at the seal"
        raise NotIncrementalError(message)


def require_no_loaded(load: FirstLoad | None, scope: Scope) -> None:
    """Check that no window that is judged was loaded by batch: the records of such a window are in no batch of the ledger.

    Args:
        load: the first load of the path, or None.
        scope: the windows that are judged.

    Raises:
        NotIncrementalError: a publication since the seal covers such a window.
    """
    if load is not None and any(low < load.before_ms and load.since_ms < high for low, high in scope.ranges):
        message = "a publication since the seal covers windows of the first load by batch, whose records the stream did not read"
        raise NotIncrementalError(message)


def require_stamp(seal: Seal, stamp: ServedStamp | None, rows: Sequence[LedgerRow], sequence: int) -> None:
    """Check that what is served can be judged by the seal, the batches and the sequence that were read.

    Args:
        seal: that the run builds on.
        stamp: of the served rows that are judged; None: there are none.
        rows: the batches that were read.
        sequence: the newest entry that was read, before the served rows.

    Raises:
        NotIncrementalError: the table came since, or shows a batch or an entry that was not read.
    """
    if (stamp is None) != (seal.served is None):
        message = "the served table came or went since the seal"
        raise NotIncrementalError(message)
    if stamp is None:
        return
    if (stamp.timeline, stamp.batch) not in {(row.timeline, row.batch) for row in rows}:
        message = "the served table shows a batch from before the windows that are not settled"
        raise NotIncrementalError(message)
    if stamp.sequence > sequence:
        message = f"the served table shows entry {stamp.sequence} of the sequence, which came while the run began"
        raise NotIncrementalError(message)
