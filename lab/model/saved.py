"""A savepoint in the model's store: its objects, and the view of it that the product's decisions take."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from rivertwice.savepoint.catalogue import Savepoint
from rivertwice.savepoint.manifest import Manifest
from rivertwice.savepoint.records import SavepointLease
from rivertwice.storage.blobs import BlobStore

if TYPE_CHECKING:
    from lab.model.durable import Checkpoint

_NO_STORE = cast("BlobStore", None)


@dataclass
class Saved:
    """The objects under one savepoint's name.

    Attributes:
        taking: when the copy began, while its mark is there.
        content: the copied checkpoint; None until its files are put.
        rotten: a bit of it flipped, as the hashes of the manifest would show.
        deleting: the mark of prune: empty, marked, or decided once nobody was found to hold it.
        using: holders whose lease is certain, and until when; for the invariants only.
    """

    name: str
    taking: datetime | None = None
    content: Checkpoint | None = None
    manifest: Manifest | None = None
    proof: dict[str, Any] | None = None
    pinned: bool = False
    leases: dict[str, datetime] = field(default_factory=dict)
    deleting: str = ""
    rotten: bool = False
    using: dict[str, datetime] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        """Whether it has a manifest and nobody deletes it."""
        return self.manifest is not None and not self.deleting

    def view(self) -> Savepoint:
        """Return it as the catalogue does."""
        assert self.manifest is not None
        leases = tuple(SavepointLease(holder, until) for holder, until in self.leases.items())
        return Savepoint(self.manifest, _NO_STORE, self.proof, self.pinned, leases)
