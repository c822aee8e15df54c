"""What interrupted deletions and takes left in the store of savepoints, and what a prune does with each."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from rivertwice.config import Place, is_s3
from rivertwice.errors import RequestError
from rivertwice.instants import parse_iso
from rivertwice.savepoint.records import DELETING, MANIFEST, TAKING, decode_record
from rivertwice.store.base import BlobStore

ABANDONED = timedelta(hours=1)  # a take copies for seconds; one that began so long ago has died
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
        now: the present instant.

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


def describe_damaged_mark(place: Place, name: str, mark: str, why: str) -> str:
    """Return the message about a mark that cannot be read. Pure.

    Args:
        place: folder or address of the pipeline's savepoints.
        name: the savepoint's id.
        mark: `deleting.json` or `taking.json`.
        why: what is wrong with the mark.
    """
    if is_s3(place):
        remove = f"aws s3 rm --recursive {shlex.quote(f'{place}/{name}/')}"
    else:
        remove = f"rm -r {shlex.quote(f'{place}/{name}')}"
    return (
        f"{name}/{mark} {why}, so {_UNKNOWN[mark]}; savepoint {name} was left as it is, and nothing is restored from it; the other "
        f"savepoints were pruned; delete what is left of it: `{remove}`"
    )
