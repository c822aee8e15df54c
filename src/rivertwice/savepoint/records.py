"""Small JSON objects beside a manifest: proof, pin, leases, marks. All have format 1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rivertwice.core import RequestError, SavepointError, parse_iso, to_iso
from rivertwice.storage import BlobStore, encode_json

FORMAT = 1
MANIFEST = "manifest.json"
PROOF = "proof.json"
PIN = "pin.json"
TAKING = "taking.json"
DELETING = "deleting.json"
LEASES = "leases"
ATTEMPTS = "attempts"
CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class SavepointLease:
    """The savepoint is needed until `expires_at`; prune keeps it."""

    holder: str
    expires_at: datetime


def encode_record(values: Mapping[str, Any]) -> bytes:
    """Return a record's bytes: canonical JSON with its format."""
    return encode_json({"format": FORMAT, **values})


def read_record(store: BlobStore, key: str) -> dict[str, Any] | None:
    """Return a record, or None if there is none.

    Raises:
        SavepointError: it is damaged, or its format is unknown.
    """
    data = store.get(key)
    try:
        return None if data is None else decode_record(data)
    except ValueError as error:
        message = f"{key} {error}; use another savepoint"
        raise SavepointError(message) from error


def decode_record(data: bytes) -> dict[str, Any]:
    """Return a record's values from its bytes.

    Raises:
        ValueError: they are damaged, or of an unknown format; the message is what follows the record's name in a sentence.
    """
    try:
        values: dict[str, Any] = dict(json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        message = f"is not a JSON object ({error}): it is damaged"
        raise ValueError(message) from error
    found = values.pop("format", None)
    if found != FORMAT:
        message = f"has format {str(found)[:20]}, and this version reads {FORMAT}"
        raise ValueError(message)
    return values


def lease_savepoint(store: BlobStore, savepoint: str, holder: str, *, now: datetime, length: timedelta) -> None:
    """Keep prune away from a savepoint; the same holder may renew.

    Raises:
        SavepointError: the savepoint is being deleted.
    """
    key = f"{savepoint}/{LEASES}/{holder}.json"
    store.put(key, encode_record({"holder": holder, "expires_at": to_iso(now + length)}))
    if store.get(f"{savepoint}/{DELETING}") is not None:  # prune marks first and looks for leases after it
        store.delete(key)
        message = f"savepoint {savepoint} is being deleted by prune; use another one, see `rivertwice savepoint list`"
        raise SavepointError(message)


def release_savepoint(store: BlobStore, savepoint: str, holder: str) -> None:
    """End a lease."""
    store.delete(f"{savepoint}/{LEASES}/{holder}.json")


def read_leases(store: BlobStore, savepoint: str) -> list[SavepointLease]:
    """Return all leases on a savepoint, also those that have run out; one that cannot be read never runs out."""
    leases = (_read_lease(store, key) for key in store.list(f"{savepoint}/{LEASES}/"))
    return [lease for lease in leases if lease is not None]


def _read_lease(store: BlobStore, key: str) -> SavepointLease | None:
    try:
        record = read_record(store, key)
        return None if record is None else SavepointLease(str(record["holder"]), parse_iso(record["expires_at"]))
    except (SavepointError, RequestError, KeyError, ValueError, TypeError, AttributeError):
        return SavepointLease(f"unreadable {key.rpartition('/')[2]}", datetime.max.replace(tzinfo=UTC))
