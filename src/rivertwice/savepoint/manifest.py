"""The manifest describes a savepoint. It is written last; without it the savepoint does not exist.

Format 2 contains a digest of itself, because the hashes of the listed files do not detect a flipped bit in the manifest. Format 1
has no digest and will always be readable.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from rivertwice.core import RequestError, SavepointError, parse_iso, to_iso
from rivertwice.storage import encode_json, require_key

FORMAT = 2
READABLE = (1, FORMAT)
_ID = re.compile(r"^sp-[a-z0-9][a-z0-9_-]{0,63}-[0-9]{1,18}-[0-9a-f]{8}\Z")


@dataclass(frozen=True)
class FileEntry:
    """One file of the copied checkpoint."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """A copy of a checkpoint at a committed batch.

    Attributes:
        savepoint: `sp-<timeline>-<batch>-<8 hex>`.
        timeline, batch: the ledger row of the copy: the last batch that is both committed in the changelog and finished in
            the checkpoint.
        epoch: epoch of the driver that committed the batch.
        offsets: topic to partition to the first offset the next batch reads.
        offsets_text: `offsets/<batch>` of the checkpoint, verbatim.
        watermark_ms: the batch's watermark, by which rows of the next batch are late.
        bundle, fingerprint: the definition that wrote the state.
        pins: Spark settings that the checkpoint froze, from `offsets/<batch>`.
        files: path below `checkpoint/` to hash and size.
    """

    savepoint: str
    pipeline: str
    timeline: str
    batch: int
    epoch: int
    created_at: datetime
    reason: str
    offsets: Mapping[str, Mapping[str, int]]
    offsets_text: str
    watermark_ms: int
    cluster_id: str
    topic_ids: Mapping[str, str]
    bundle: str
    fingerprint: Mapping[str, str]
    pins: Mapping[str, Any]
    files: Mapping[str, FileEntry] = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of the copied checkpoint."""
        return sum(entry.size for entry in self.files.values())

    def to_bytes(self) -> bytes:
        """Return the manifest as canonical JSON with its digest."""
        values = {"format": FORMAT, **asdict(self), "created_at": to_iso(self.created_at)}
        return encode_json({**values, "digest": _digest(values)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read a manifest.

        Raises:
            SavepointError: it is damaged, or this version does not know its format.
        """
        try:
            values: dict[str, Any] = dict(json.loads(data))
        except (ValueError, TypeError) as error:
            message = f"a savepoint's manifest is not valid JSON ({error}): it is damaged; use another savepoint"
            raise SavepointError(message) from error
        stored_format = values.get("format")
        if stored_format not in READABLE:
            message = (
                f"a savepoint has format {stored_format!r}, this version reads 1 to {FORMAT}; use a newer rivertwice"
            )
            raise SavepointError(message)
        if stored_format != 1 and (written := values.pop("digest", None)) != (computed := _digest(values)):
            message = (
                f"a savepoint's manifest says {computed[:12]} of itself, and {str(written)[:12]} was written: it is damaged; "
                "use another savepoint"
            )
            raise SavepointError(message)
        del values["format"]
        try:
            files = {require_key(path): FileEntry(**entry) for path, entry in values.pop("files").items()}
            return cls(**{**values, "files": files, "created_at": parse_iso(values["created_at"])})
        except (KeyError, TypeError, ValueError, AttributeError, RequestError) as error:
            message = (
                f"a savepoint's manifest does not match format {stored_format} ({error}): it is damaged; use another"
            )
            raise SavepointError(message) from error


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(encode_json(values)).hexdigest()


def require_savepoint_id(value: str) -> str:
    """Return `value` if it is a savepoint's id.

    Raises:
        RequestError: it is not, so it could name something else.
    """
    if not _ID.match(value):
        message = f"{value[:80]!r} is not a valid savepoint id; ids look like sp-t1-120-0f3a9c2e, see `rivertwice savepoint list`"
        raise RequestError(message)
    return value


def frozen_pins(offsets_text: str) -> dict[str, str]:
    """Return the Spark settings that `offsets/N` carries and that override the session on a restart."""
    pins: dict[str, str] = json.loads(offsets_text.split("\n")[1]).get("conf", {})
    return pins


# What an operation may be based on where no savepoint exists. Used in the place of a savepoint's id; those begin with `sp-`.


class StateBase:
    """What a restored state is built on besides a savepoint."""

    BEGINNING = "beginning"
    """An empty state and every recorded batch of the path."""
    RESTING = "checkpoint"
    """The parent's own checkpoint at rest, until the savepoint of it is taken."""
