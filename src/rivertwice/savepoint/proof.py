"""The result of a proof, and its description."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rivertwice.instants import to_iso, utc_now
from rivertwice.savepoint.catalogue import Savepoint


@dataclass(frozen=True)
class Proof:
    """The result of a proof.

    Attributes:
        proved: whether it counts: some batches were replayed, or the log had no record after the savepoint.
        batches: how many recorded batches were replayed and agreed.
        last_batch: the batch at which the states were compared.
        state_rows: rows of decoded state, equal on both sides.
        source: where the records came from, `kafka` or `replay topic`.
    """

    savepoint: str
    proved: bool
    batches: int
    last_batch: int
    state_rows: int
    state: dict[str, str]
    source: str
    seconds: float
    replay_seconds: float
    reason: str
    made_at: str


def describe_proof(batches: int, last: int, state_rows: int, *, exhausted: bool) -> str:
    """Return in one sentence the result of a proof, and whether it counts."""
    if batches:
        return f"proved: {batches} recorded batches replayed equal, and the state after batch {last} ({state_rows} rows) is equal"
    if exhausted:
        return f"proved: nothing follows batch {last} in the log, and its state ({state_rows} rows) loads and is equal"
    return (
        f"not proved: the state after batch {last} ({state_rows} rows) loads and is equal, but no batch followed in time, "
        "although the log goes on; prove it again once the stream has run"
    )


def unproved(savepoint: Savepoint, reason: str, began: float) -> Proof:
    """Return the record of a proof that does not count; it began at `began` of the monotonic clock."""
    return Proof(
        savepoint=savepoint.id,
        proved=False,
        batches=0,
        last_batch=savepoint.manifest.batch,
        state_rows=0,
        state={},
        source="",
        seconds=round(time.monotonic() - began, 3),
        replay_seconds=0.0,
        reason=reason,
        made_at=to_iso(utc_now()),
    )
