"""The decoded state of a checkpoint at a batch, as an order-independent digest.

The bytes of state files may differ between two equal states; the rows that Spark's state reader decodes may not. One value
can still differ in its bytes: the buffer of an aggregate that keeps a map (exact percentiles) is written in the map's own
order. Such a buffer is a list of length-prefixed entries, and is compared as a multiset of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivertwice.timeline.digest import canonical_value, digest_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    stores = spark.read.format("state-metadata").load(str(checkpoint)).select("operatorId", "stateStoreName")
    digests: dict[str, str] = {}
    rows = 0
    for operator, store in sorted({(row[0], row[1]) for row in stores.collect()}):
        reader = spark.read.format("statestore").option("batchId", batch).option("operatorId", operator)
        if store != "default":
            reader = reader.option("storeName", store)
        # Rows, not Arrow: the fields of a state value may share a name (two counts of one transform do).
        decoded = reader.load(str(checkpoint)).select("partition_id", "key", "value").collect()
        rows += len(decoded)
        digests[f"{operator}/{store}"] = digest_state(decoded)
    return StateDigest(batch, rows, digests)


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
