"""Delete old savepoints: the protected ones are computed first and subtracted.

A deletion has steps, and a crash may come after any of them. Put the mark (`deleting.json`), so that the savepoint is not chosen
any more. Look for leases and a pin again. Mark the deletion as decided. Delete the files, the manifest, and the mark. A process
that leases a savepoint puts the lease first and looks for the mark after it, so one of the two always sees the other. The next
prune finishes a decided deletion. For one that was not decided it looks for leases again: a lease may have been put just before
the mark.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rivertwice.core import PipelineHome, Place, RequestError, SavepointError, is_remote, lock, parse_iso, to_iso
from rivertwice.savepoint.awaiting import protect_awaiting, select_awaiting
from rivertwice.savepoint.catalogue import (
    ProofState,
    Savepoint,
    list_savepoints,
    load_savepoint,
    savepoint_place,
    savepoint_store,
)
from rivertwice.savepoint.operations.record import OperationStep, read_operations
from rivertwice.savepoint.plan import is_on_path
from rivertwice.savepoint.records import (
    DELETING,
    MANIFEST,
    PIN,
    PROOF,
    TAKING,
    SavepointLease,
    decode_record,
    encode_record,
    read_leases,
)
from rivertwice.storage import BlobStore
from rivertwice.timeline import Segment, head_path

# What interrupted deletions and takes left in the store of savepoints, and what a prune does with each.

ABANDONED = timedelta(hours=1)  # a take copies for seconds; one that began longer ago has died
FINISH, DECIDE, LEAVE = "finish", "decide", "leave"
_UNKNOWN = {
    DELETING: "it is not known which of its files are deleted already",
    TAKING: "it is not known when its take began",
}


def find_unfinished(keys: Iterable[str]) -> dict[str, str]:
    """Return savepoint id to the mark of its interrupted deletion or take, from all keys of a store. Pure."""
    known = set(keys)
    unfinished = {}
    for name in sorted({key.partition("/")[0] for key in known if "/" in key}):
        if f"{name}/{DELETING}" in known:
            unfinished[name] = DELETING
        elif f"{name}/{TAKING}" in known and f"{name}/{MANIFEST}" not in known:
            unfinished[name] = TAKING
    return unfinished


def decide_unfinished(mark: str, record: Mapping[str, Any] | None, *, now: datetime) -> str:
    """Return what a prune does with an interrupted deletion or take. Pure.

    Args:
        mark: `deleting.json` or `taking.json`.
        record: the mark's values; None: it went meanwhile.

    Returns:
        FINISH: the deletion was decided; DECIDE: look for leases and a pin again, and delete it if there is none; LEAVE: a
        take may still be at work.

    Raises:
        ValueError: the record does not say when the take began.
    """
    if mark == DELETING:
        return FINISH if record is not None and record.get("decided") else DECIDE
    if record is None:
        return LEAVE
    try:
        return DECIDE if parse_iso(record["started_at"]) + ABANDONED < now else LEAVE
    except (KeyError, TypeError, ValueError, AttributeError, RequestError):
        message = f"has no instant started_at (it has {str(record.get('started_at'))[:40]!r}): it is damaged"
        raise ValueError(message) from None


def read_mark(store: BlobStore, name: str, mark: str) -> dict[str, Any] | None:
    """Return the values of a mark, or None if it went meanwhile.

    Raises:
        ValueError: it is damaged, or its format is unknown.
    """
    data = store.get(f"{name}/{mark}")
    return None if data is None else decode_record(data)


def _removal(address: str) -> str:
    """Return the command of a store's own client that deletes all below an address. Pure."""
    scheme, _, path = address.partition("://")
    if scheme in ("s3", "gs"):
        return f"{'aws s3 rm' if scheme == 's3' else 'gcloud storage rm'} --recursive {shlex.quote(address)}"
    bucket, _, key = path.partition("/")
    container, _, host = bucket.partition("@")
    account = f" --account-name {shlex.quote(host.partition('.')[0])}" if host else ""
    return f"az storage blob delete-batch --source {shlex.quote(container)} --pattern {shlex.quote(f'{key}*')}{account}"


def describe_damaged_mark(place: Place, name: str, mark: str, why: str) -> str:
    """Return the message about a mark that cannot be read. Pure.

    Args:
        place: folder or address of the pipeline's savepoints.
        mark: `deleting.json` or `taking.json`.
    """
    left = f"{place}/{name}"
    remove = _removal(f"{left}/") if is_remote(place) else f"rm -r {shlex.quote(left)}"
    return (
        f"{name}/{mark} {why}, so {_UNKNOWN[mark]}; savepoint {name} was left as it is, and nothing is restored from it; the other "
        f"savepoints were pruned; delete what is left of it: `{remove}`"
    )


_log = logging.getLogger(__name__)
KEPT = 12
"""Number of newest savepoints that a prune keeps by default: three hours of the quarter-hourly rotation."""
NEWEST_PROVED = "newest proved"
OFF_PATH = "newest proved, off the head's path"


@dataclass(frozen=True)
class PruneReport:
    """What a prune did.

    Attributes:
        protected: savepoint id to the reason why it stays.
        deleted: ids that were deleted, including abandoned takes.
        kept: ids that were chosen, but leased or pinned meanwhile.
        damaged: id to the message about its mark (`deleting.json`, `taking.json`) that cannot be read; it was left as it is.
    """

    protected: dict[str, str]
    deleted: tuple[str, ...]
    kept: tuple[str, ...]
    damaged: dict[str, str]


def select_protected(
    savepoints: Sequence[Savepoint],
    *,
    now: datetime,
    needed: Mapping[str, str] | None = None,
    damaged: Collection[str] = (),
    path: Sequence[Segment] = (),
    awaiting: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the savepoints that must stay, each with the reason: newest proved, newest, pinned, leased, needed, awaiting a proof.

    After a rewind the newest proved one may lie on batches that no longer count. A restore needs one of the head's path, so the
    newest proved one of that path stays too, and older ones may be deleted because it exists.

    Args:
        needed: savepoint id to the interrupted restore that will continue with it.
        damaged: ids whose bytes differ from their manifest; such a savepoint cannot be the newest proved one.
        path: the head's path.
        awaiting: savepoint id to the reason why it stays until a planned operation's savepoint is proved.
    """
    newest_first = sorted(savepoints, key=lambda s: (s.manifest.created_at, s.id), reverse=True)
    existing = {savepoint.id for savepoint in savepoints}
    protected = {name: why for name, why in (awaiting or {}).items() if name in existing}
    protected |= select_held(newest_first, now=now, needed=needed)
    for savepoint in newest_first[:1]:
        protected[savepoint.id] = "newest"
    proved = [s for s in newest_first if s.status == ProofState.PROVED and s.id not in damaged]
    usable = [s for s in proved if is_on_path(s.manifest, path)] or proved
    for savepoint in proved[:1]:
        protected[savepoint.id] = OFF_PATH
    for savepoint in usable[:1]:
        protected[savepoint.id] = NEWEST_PROVED
    return protected


def select_held(
    savepoints: Sequence[Savepoint], *, now: datetime, needed: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the savepoints that are held, each with the reason: leased, pinned, needed."""
    held: dict[str, str] = {}
    for savepoint in savepoints:
        running = sorted(lease.holder for lease in savepoint.leases if lease.expires_at > now)
        if running:
            held[savepoint.id] = f"leased by {running[0]}"
        if savepoint.pinned:
            held[savepoint.id] = "pinned"
        if needed is not None and savepoint.id in needed:
            held[savepoint.id] = f"needed by {needed[savepoint.id]}"
    return held


def select_prunable(savepoints: Sequence[Savepoint], protected: Collection[str], *, keep: int) -> list[Savepoint]:
    """Return the savepoints that may be deleted, oldest first: all but the protected and the `keep` newest.

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
    """Delete all but the protected and the `keep` newest savepoints, and finish interrupted deletions and takes."""
    with _only_prune(home):
        return _prune(home, savepoint_store(home), keep=keep, now=now)


def protected_savepoints(
    home: PipelineHome, *, now: datetime, savepoints: Sequence[Savepoint] | None = None
) -> dict[str, str]:
    """Return savepoint id to the reason why a prune would keep it now, whatever is asked for.

    Args:
        savepoints: all that exist, for a caller that has listed them.
    """
    savepoints = list_savepoints(home) if savepoints is None else savepoints
    awaiting = _awaiting(home, savepoints)
    return select_protected(savepoints, now=now, needed=_needed(home), path=head_path(home), awaiting=awaiting)


def held_savepoints(home: PipelineHome, *, now: datetime) -> dict[str, str]:
    """Return savepoint id to the reason why it is held."""
    return select_held(list_savepoints(home), now=now, needed=_needed(home))


def remove_savepoints(
    home: PipelineHome, names: Collection[str], *, now: datetime, newest_too: bool = False
) -> list[str]:
    """Delete the named savepoints, in prune's steps; names of savepoints that do not exist are ignored.

    Args:
        newest_too: delete also one that is protected only because it is the newest; for a caller that needs none of them.

    Raises:
        SavepointError: one of them is protected; the message says why. It and the ones after it are not deleted.
    """
    with _only_prune(home):
        store = savepoint_store(home)
        removed = []
        for savepoint in [listed for listed in list_savepoints(home) if listed.id in names]:
            why = (held_savepoints if newest_too else protected_savepoints)(home, now=now).get(savepoint.id)
            proved = savepoint.status == ProofState.PROVED
            if why is not None or not delete_savepoint(
                store, savepoint.id, now=now, proved=proved, needed=_needed(home)
            ):
                message = f"savepoint {savepoint.id} is protected ({why or 'since a moment ago'}); it was not deleted"
                raise SavepointError(message)
            removed.append(savepoint.id)
        return removed


def _prune(home: PipelineHome, store: BlobStore, *, keep: int, now: datetime) -> PruneReport:
    savepoints = list_savepoints(home)
    protected, going = _decide_verified(home, savepoints, keep=keep, now=now)
    deleted, remaining = [], []
    for savepoint in going:
        needed = {**_awaiting(home, savepoints), **_needed(home)}
        if delete_savepoint(store, savepoint.id, now=now, proved=savepoint.status == ProofState.PROVED, needed=needed):
            deleted.append(savepoint.id)
        else:
            remaining.append(savepoint.id)
    cleared, damaged = _clear_unfinished(home, store, now=now)
    deleted += cleared
    _log.info("pruned %s: %s deleted, %s protected", home.root.name, len(deleted), len(protected))
    return PruneReport(protected, tuple(deleted), tuple(remaining), damaged)


def _decide_verified(
    home: PipelineHome, savepoints: Sequence[Savepoint], *, keep: int, now: datetime
) -> tuple[dict[str, str], list[Savepoint]]:
    """Return what stays and what goes; a proved one goes only after every byte of a newer proved one was verified."""
    needed = _needed(home)
    damaged: list[str] = []
    while True:
        awaiting = _awaiting(home, savepoints)
        protected = select_protected(
            savepoints, now=now, needed=needed, damaged=damaged, path=head_path(home), awaiting=awaiting
        )
        going = select_prunable(savepoints, protected, keep=keep)
        trusted = next((savepoint for savepoint in savepoints if protected.get(savepoint.id) == NEWEST_PROVED), None)
        if trusted is None or all(savepoint.status != ProofState.PROVED for savepoint in going):
            return protected, going
        try:
            trusted.verify_files()
        except SavepointError as error:
            _log.warning("%s", error)
            damaged.append(trusted.id)
        else:
            return protected, going


def find_holder(
    leases: Sequence[SavepointLease], *, pinned: bool, proved_since: bool, needed: bool, now: datetime
) -> str | None:
    """Return the reason why a savepoint that was chosen and marked must stay, or None.

    This is decided after the mark is put. A process that leases or pins looks for the mark after its own write, so no lease and
    no pin is missed.

    Args:
        proved_since: it was not proved when it was chosen, and is now: it may be the newest proved one.
        needed: an interrupted restore will continue with it.
    """
    running = sorted(lease.holder for lease in leases if lease.expires_at > now)
    if running:
        return f"leased by {running[0]}"
    if pinned:
        return "pinned"
    if needed:
        return "needed by a restore, a rewind or a proof"
    return "proved meanwhile" if proved_since else None


def delete_savepoint(
    store: BlobStore, name: str, *, now: datetime, proved: bool = False, needed: Collection[str] = ()
) -> bool:
    """Delete one savepoint; return False, and leave it whole, if it is needed meanwhile (`find_holder`).

    Args:
        proved: it was proved when it was chosen.
        needed: ids with which interrupted restores will continue.
    """
    mark = f"{name}/{DELETING}"
    store.put_if_absent(mark, encode_record({"at": to_iso(now), "decided": False}))
    holder = find_holder(
        read_leases(store, name),
        pinned=store.get(f"{name}/{PIN}") is not None,
        proved_since=not proved and store.get(f"{name}/{PROOF}") is not None,
        needed=name in needed,
        now=now,
    )
    if holder is not None:
        _log.info("savepoint %s stays: %s", name, holder)
        store.delete(mark)
        return False
    store.put(mark, encode_record({"at": to_iso(now), "decided": True}))
    _finish(store, name)
    return True


def _needed(home: PipelineHome) -> dict[str, str]:
    """Return savepoint id to the interrupted restore or rewind that will continue with it."""
    return {
        name: operation.id
        for operation in read_operations(home)
        if operation.step < OperationStep.DONE
        for name in operation.held
    }


def _awaiting(home: PipelineHome, savepoints: Sequence[Savepoint]) -> Mapping[str, str]:
    """Return savepoint id to the reason why it stays until a planned operation's savepoint is proved."""
    return protect_awaiting(select_awaiting(read_operations(home), savepoints, head_path(home)))


def _only_prune(home: PipelineHome) -> AbstractContextManager[None]:
    """Let one process prune at a time; a second one waits.

    Two at once are not safe: the one that sees a lease removes the mark on which the other depends.
    """
    return lock(home.operations / "prune.lock")


def _finish(store: BlobStore, name: str) -> None:
    mark, manifest = f"{name}/{DELETING}", f"{name}/{MANIFEST}"
    for key in store.list(f"{name}/"):
        if key not in (mark, manifest):
            store.delete(key)
    store.delete(manifest)
    store.delete(mark)


def _clear_unfinished(home: PipelineHome, store: BlobStore, *, now: datetime) -> tuple[list[str], dict[str, str]]:
    """Finish interrupted deletions and takes; return the ids that were deleted, and id to the message about a damaged mark."""
    cleared, damaged = [], {}
    for name, mark in find_unfinished(store.list()).items():
        try:
            decision = decide_unfinished(mark, read_mark(store, name, mark), now=now)
        except ValueError as error:  # one such mark must not keep the others from being cleared
            damaged[name] = describe_damaged_mark(savepoint_place(home), name, mark, str(error))
            continue
        if decision == FINISH:
            _finish(store, name)
            cleared.append(name)
        elif decision == DECIDE and delete_savepoint(store, name, now=now, needed=_needed(home)):
            cleared.append(name)
    return cleared, damaged


def pin_savepoint(home: PipelineHome, savepoint_id: str, *, by: str, now: datetime) -> Savepoint:
    """Protect a savepoint from prune until it is unpinned; a second pin changes nothing."""
    savepoint = load_savepoint(home, savepoint_id)
    savepoint.store.put_if_absent(f"{savepoint.id}/{PIN}", encode_record({"by": by, "at": to_iso(now)}))
    return load_savepoint(home, savepoint_id)


def unpin_savepoint(home: PipelineHome, savepoint_id: str) -> Savepoint:
    """Remove a savepoint's pin; one without a pin stays as it is."""
    savepoint = load_savepoint(home, savepoint_id)
    savepoint.store.delete(f"{savepoint.id}/{PIN}")
    return load_savepoint(home, savepoint_id)
