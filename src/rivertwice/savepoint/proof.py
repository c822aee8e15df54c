"""The result of a proof, and its description."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from rivertwice.instants import to_iso, utc_now
from rivertwice.progress import Progress
from rivertwice.savepoint.catalogue import Savepoint
from rivertwice.savepoint.records import ATTEMPTS, PROOF, encode_record, read_record

if TYPE_CHECKING:
    from rivertwice.savepoint.replay import ReplayedBatch


@dataclass(frozen=True)
class Proof:
    """The result of a proof.

    Attributes:
        proved: whether it counts: some batches were replayed, or the log had no record after the savepoint.
        batches: how many recorded batches were replayed and agreed.
        last_batch: the batch at which the states were compared.
        state_rows: rows of decoded state, equal on both sides.
        source: where the records came from, `kafka` or `replay topic`.
        batch_s: median seconds to replay a batch, without the first, in which the query starts; None if fewer than two were replayed.
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
    batch_s: float | None = None


def measure_batch(replayed: Sequence[ReplayedBatch]) -> float | None:
    """Return the median seconds of replayed batches, without the first, in which the query starts."""
    return round(median(batch.seconds for batch in replayed[1:]), 4) if len(replayed) > 1 else None


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


def note_proof(savepoint: Savepoint, proof: Proof, progress: Progress) -> Proof:
    """Record a proof, or an attempt that gave no proof."""
    if proof.proved:
        savepoint.store.put_if_absent(f"{savepoint.id}/{PROOF}", encode_record(asdict(proof)))
    else:
        record_attempt(savepoint, asdict(proof))
    progress(proof.reason)
    return proof


def record_attempt(savepoint: Savepoint, values: dict[str, object]) -> None:
    """Record an attempt that gave no proof."""
    key = f"{savepoint.id}/{ATTEMPTS}/{secrets.token_hex(4)}.json"
    savepoint.store.put_if_absent(key, encode_record(values))


def last_attempt(savepoint: Savepoint) -> str | None:
    """Return the reason of the newest attempt that gave no proof; None if there was none."""
    records = [read_record(savepoint.store, key) for key in savepoint.store.list(f"{savepoint.id}/{ATTEMPTS}/")]
    known = [record for record in records if record is not None]
    newest = max(known, key=lambda record: str(record.get("made_at", "")), default=None)
    return None if newest is None else str(newest.get("reason", ""))
