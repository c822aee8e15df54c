"""The result of a proof: digests of state, what it took, and its description."""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from rivertwice.core import CheckpointError, Progress, ReplayMismatchError, to_iso, utc_now
from rivertwice.savepoint.catalogue import ProofState, Savepoint
from rivertwice.savepoint.records import ATTEMPTS, PROOF, encode_record, read_record
from rivertwice.savepoint.state_files import readable_state
from rivertwice.stream import classify_failure, condition_of
from rivertwice.timeline import canonical_value, digest_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        "although the log has more records; prove it again once the stream has run"
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


# The decoded state of a checkpoint at a batch, as an order-independent digest.
#
# The bytes of state files may differ between two equal states; the rows that Spark's state reader decodes may not. One value
# can still differ in its bytes: the buffer of an aggregate that keeps a map (exact percentiles) is written in the map's own
# order. Such a buffer is a list of length-prefixed entries, and is compared as a multiset of them.

_END = -1  # closes the buffer of an exact percentile


@dataclass(frozen=True)
class StateDigest:
    """The state of one checkpoint: stores in order, and the digest of each."""

    batch: int
    rows: int
    stores: Mapping[str, str]


def read_state(spark: SparkSession, checkpoint: Path, batch: int) -> StateDigest:
    """Decode the state that a checkpoint had after `batch`.

    Reading it also proves that Spark can load it: snapshot, changelogs and lineage all exist.
    """
    # The state reader asks a coordinator that only the query manager starts; a session that ran no query has none yet.
    _ = spark.streams
    digests: dict[str, str] = {}
    rows = 0
    with readable_state(spark, checkpoint) as place:
        stores = spark.read.format("state-metadata").load(str(place)).select("operatorId", "stateStoreName")
        for operator, store in sorted({(row[0], row[1]) for row in stores.collect()}):
            reader = spark.read.format("statestore").option("batchId", batch).option("operatorId", operator)
            if store != "default":
                reader = reader.option("storeName", store)
            # Rows, not Arrow: the fields of a state value may share a name (two counts of one transform do).
            decoded = reader.load(str(place)).select("partition_id", "key", "value").collect()
            rows += len(decoded)
            digests[f"{operator}/{store}"] = digest_state(decoded)
    return StateDigest(batch, rows, digests)


@contextmanager
def naming_damage(whose: str, remedy: str) -> Iterator[None]:
    """Say whose state does not load, and what to do, where Spark's own error inside the block says only that one does not.

    Args:
        whose: the savepoint or checkpoint whose state is loaded inside the block.

    Raises:
        ReplayMismatchError: Spark cannot load the state.
    """
    try:
        yield
    except (Py4JError, PySparkException) as error:
        if classify_failure(error) != CheckpointError.reason:
            raise
        first_line = condition_of(str(error)).strip().partition("\n")[0][:300]
        message = f"the state of {whose} does not load ({first_line}); {remedy}"
        raise ReplayMismatchError(message) from error


def copied_damage(savepoint: Savepoint) -> str:
    """Return what is to do if the state of a savepoint does not load although its files are what its manifest says."""
    name = savepoint.manifest.pipeline
    return (
        "its files are what its manifest says, so the checkpoint was damaged before they were copied; do not build on it. A running "
        f"stream soon writes its whole state again: take and prove another (`rivertwice savepoint take {name}`). If that does not load "
        f"either, stop the stream and put a proved savepoint in its place: `rivertwice savepoint fall-back {name} --yes`"
    )


def digest_state(rows: Sequence[Any]) -> str:
    """Return the digest of decoded state rows (partition, key, value); their order does not matter."""
    return digest_values([canonical_state(row)] for row in rows)


def canonical_state(value: Any) -> bytes:
    """Return bytes that are equal exactly for equal decoded values, nested ones and map buffers included."""
    if isinstance(value, Mapping):
        parts = [name.encode() + b"=" + canonical_state(inner) for name, inner in value.items()]
        return b"{" + b",".join(parts) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(canonical_state(inner) for inner in value) + b"]"
    if isinstance(value, bytes | bytearray):
        entries = buffer_entries(bytes(value))
        return canonical_value(bytes(value) if entries is None else b"".join(sorted(entries)))
    return canonical_value(value)


def buffer_entries(data: bytes) -> list[bytes] | None:
    """Return the entries of an exact percentile's buffer (length, bytes, ..., -1), or None for other bytes."""
    entries: list[bytes] = []
    place = 0
    while place + 4 <= len(data):
        (length,) = struct.unpack_from(">i", data, place)
        if length == _END:
            return entries if place + 4 == len(data) else None
        if length < 0 or place + 4 + length > len(data):
            return None
        entries.append(data[place : place + 4 + length])
        place += 4 + length
    return None


def describe_difference(ours: StateDigest, theirs: StateDigest) -> str | None:
    """Return how two states at one batch differ, or None if they are equal."""
    for store in sorted(ours.stores.keys() | theirs.stores.keys()):
        left, right = ours.stores.get(store, "absent"), theirs.stores.get(store, "absent")
        if left != right:
            return (
                f"state store {store} after batch {ours.batch} is {left} replayed and {right} in the running checkpoint"
            )
    return None


# What a proof may cost, and which savepoint should be tried again. Pure.


@dataclass(frozen=True)
class ProofBudget:
    """The bounds of one proof; a rotation has to end before the next one begins.

    Attributes:
        batches: recorded batches to replay, if the stream commits that number.
        wait_s: seconds to wait for them, in all.
        max_batches: more are not replayed, even where only a later state can be compared.
        max_bytes: size of the two copies that a proof holds in scratch.
        replay_s: seconds that the replay may take.
    """

    batches: int = 3
    wait_s: float = 60.0
    max_batches: int = 200
    max_bytes: int = 16 << 30
    replay_s: float = 900.0


def decide_over_bytes(size: int, budget: ProofBudget) -> str | None:
    """Return why a savepoint of this size is not proved within the budget, or None."""
    if 2 * size <= budget.max_bytes:
        return None
    return (
        f"not proved: two copies of its {size} bytes are more than the budget of {budget.max_bytes}; prove it with a larger "
        "one, on a host with the space"
    )


def decide_over_batches(first: int, last: int, budget: ProofBudget) -> str | None:
    """Return why a replay of the batches after `first` up to `last` is not begun within the budget, or None."""
    allowed = max(budget.batches, budget.max_batches)
    if last - first <= allowed:
        return None
    return (
        f"not proved: only the state after batch {last} can still be compared, {last - first} batches on, and the budget is "
        f"{allowed}; the next rotation proves a newer one"
    )


def describe_out_of_time(done: int, wanted: int, budget: ProofBudget) -> str:
    """Return in one sentence that a replay ran out of time."""
    return (
        f"not proved: {done} of {wanted} recorded batches replayed equal within {budget.replay_s:.0f} s, the budget, and the rest "
        "was left; the next rotation tries again"
    )


def select_retry(savepoints: Sequence[Savepoint], tried: Collection[str]) -> Savepoint | None:
    """Return the savepoint to prove if a newer one could not be proved: the newest unproved one since the newest proved one.

    A stream that commits rarely has no batch after a savepoint just taken. By the next rotation it has one.
    """
    newest_first = sorted(savepoints, key=lambda s: (s.manifest.created_at, s.id), reverse=True)
    for savepoint in newest_first:
        if savepoint.status == ProofState.PROVED:
            return None
        if savepoint.id not in tried:
            return savepoint
    return None
