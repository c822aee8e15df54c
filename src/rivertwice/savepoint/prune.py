"""Delete old savepoints: what is protected is computed first and subtracted.

A deletion goes in steps, each of which may be the last before a crash: mark (`deleting.json`), so that nobody chooses
it any more; look for leases and a pin once more; files; manifest; mark. A marked savepoint is finished by the next prune.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rivertwice.config import PipelineHome
from rivertwice.errors import RequestError
from rivertwice.instants import parse_iso, to_iso
from rivertwice.savepoint.catalogue import PROVED, Savepoint, list_savepoints, load_savepoint, savepoint_store
from rivertwice.savepoint.records import DELETING, MANIFEST, PIN, TAKING, encode_record, read_leases, read_record
from rivertwice.store.base import BlobStore

_log = logging.getLogger(__name__)
ABANDONED = timedelta(hours=1)  # a take copies for seconds; one that began so long ago died


@dataclass(frozen=True)
class PruneReport:
    """What a prune did.

    Attributes:
        protected: savepoint id to why it stays.
        deleted: ids that are gone, abandoned takes among them.
        kept: ids that were chosen, but leased or pinned meanwhile.
    """

    protected: dict[str, str]
    deleted: tuple[str, ...]
    kept: tuple[str, ...]


def select_protected(savepoints: Sequence[Savepoint], *, now: datetime) -> dict[str, str]:
    """Return the savepoints that must stay, each with the reason: newest proved, newest, pinned, leased."""
    newest_first = sorted(savepoints, key=lambda s: (s.manifest.created_at, s.id), reverse=True)
    protected: dict[str, str] = {}
    for savepoint in newest_first:
        running = sorted(lease.holder for lease in savepoint.leases if lease.expires_at > now)
        if running:
            protected[savepoint.id] = f"leased by {running[0]}"
        if savepoint.pinned:
            protected[savepoint.id] = "pinned"
    for savepoint in newest_first[:1]:
        protected[savepoint.id] = "newest"
    for savepoint in [s for s in newest_first if s.status == PROVED][:1]:
        protected[savepoint.id] = "newest proved"
    return protected


def select_prunable(savepoints: Sequence[Savepoint], protected: Collection[str], *, keep: int) -> list[Savepoint]:
    """Return what may go, oldest first: all but the protected and the `keep` newest.

    Raises:
        RequestError: `keep` is negative.
    """
    if keep < 0:
        message = f"{keep} savepoints cannot be kept; give 0 or more (protected ones stay anyway)"
        raise RequestError(message)
    oldest_first = sorted(savepoints, key=lambda s: (s.manifest.created_at, s.id))
    old = oldest_first[: max(0, len(oldest_first) - keep)]
    return [savepoint for savepoint in old if savepoint.id not in protected]


def prune_savepoints(home: PipelineHome, *, keep: int, now: datetime) -> PruneReport:
    """Delete all but the protected and the `keep` newest savepoints, and what died half-way before."""
    store = savepoint_store(home)
    savepoints = list_savepoints(home)
    protected = select_protected(savepoints, now=now)
    deleted, kept = [], []
    for savepoint in select_prunable(savepoints, protected, keep=keep):
        if delete_savepoint(store, savepoint.id, now=now):
            deleted.append(savepoint.id)
        else:
            kept.append(savepoint.id)
    deleted += _clear_unfinished(store, now=now)
    _log.info("pruned %s: %s deleted, %s protected", home.root.name, len(deleted), len(protected))
    return PruneReport(protected, tuple(deleted), tuple(kept))


def delete_savepoint(store: BlobStore, name: str, *, now: datetime) -> bool:
    """Delete one savepoint; return False, and leave it whole, if somebody has leased or pinned it meanwhile."""
    mark = f"{name}/{DELETING}"
    store.put_if_absent(mark, encode_record({"at": to_iso(now)}))
    leased = any(lease.expires_at > now for lease in read_leases(store, name))
    if leased or store.get(f"{name}/{PIN}") is not None:
        store.delete(mark)
        return False
    _finish(store, name)
    return True


def _finish(store: BlobStore, name: str) -> None:
    mark, manifest = f"{name}/{DELETING}", f"{name}/{MANIFEST}"
    for key in store.list(f"{name}/"):
        if key not in (mark, manifest):
            store.delete(key)
    store.delete(manifest)
    store.delete(mark)


def _clear_unfinished(store: BlobStore, *, now: datetime) -> list[str]:
    keys = store.list()
    cleared = []
    for name in sorted({key.partition("/")[0] for key in keys if "/" in key}):
        if f"{name}/{DELETING}" in keys:
            _finish(store, name)
            cleared.append(name)
        elif f"{name}/{MANIFEST}" not in keys and f"{name}/{TAKING}" in keys:
            record = read_record(store, f"{name}/{TAKING}")
            if record is not None and parse_iso(record["started_at"]) + ABANDONED < now:
                delete_savepoint(store, name, now=now)
                cleared.append(name)
    return cleared


def pin_savepoint(home: PipelineHome, savepoint_id: str, *, by: str, now: datetime) -> Savepoint:
    """Protect a savepoint from prune until it is unpinned; a second pin changes nothing."""
    savepoint = load_savepoint(home, savepoint_id)
    savepoint.store.put_if_absent(f"{savepoint.id}/{PIN}", encode_record({"by": by, "at": to_iso(now)}))
    return load_savepoint(home, savepoint_id)


def unpin_savepoint(home: PipelineHome, savepoint_id: str) -> Savepoint:
    """Take a savepoint's pin away; one without a pin stays as it is."""
    savepoint = load_savepoint(home, savepoint_id)
    savepoint.store.delete(f"{savepoint.id}/{PIN}")
    return load_savepoint(home, savepoint_id)
