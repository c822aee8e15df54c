"""A planned restore or upgrade: its base is a savepoint of the parent's own checkpoint at rest, so nothing is replayed.

The savepoint is not proved yet. So the newest proved one, the operation's origin, stays until the new one was proved from it
(`savepoint.prove_origin`), and prune spares both (`savepoint.prune`).
"""

from __future__ import annotations

from datetime import timedelta

from rivertwice.config import PipelineHome
from rivertwice.errors import SavepointError
from rivertwice.instants import utc_now
from rivertwice.pipeline.bundle import load_bundle_definition
from rivertwice.savepoint.catalogue import PROVED, Savepoint, list_savepoints, select_newest
from rivertwice.savepoint.operations.fork import ParentBatches, last_in_changelog, path_in_changelog
from rivertwice.savepoint.operations.record import Restore
from rivertwice.savepoint.plan import is_on_path
from rivertwice.savepoint.records import lease_savepoint
from rivertwice.savepoint.take import save_checkpoint
from rivertwice.stream.damage import find_unfit
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import load_timeline, path_of
from rivertwice.timeline.watermarks import WatermarkRule, rule_of


def choose_origin(home: PipelineHome, parent: str, *, unproved: bool) -> Savepoint | None:
    """Return the newest proved savepoint of a path from which the parent's state can be made again; None with `unproved` alone.

    Raises:
        SavepointError: there is none, and `unproved` is false.
    """
    fingerprint = load_timeline(home, parent).fingerprint
    path = path_in_changelog(path_of(home, parent), last_in_changelog(home, parent))
    usable = [
        savepoint
        for savepoint in list_savepoints(home)
        if is_on_path(savepoint.manifest, path) and savepoint.manifest.fingerprint == fingerprint
    ]
    origin = select_newest(usable, proved=True)
    if origin is None and not unproved:
        message = (
            f"{home.root.name} has no proved savepoint of timeline {parent}'s definition on the head's path, so there would be "
            f"nothing to go back to, and nothing to prove the new savepoint from; nothing was done; take and prove one first "
            f"(`rivertwice savepoint take {home.root.name}`, then `prove`), or say --unproved"
        )
        raise SavepointError(message)
    return origin


def find_unfit_checkpoint(home: PipelineHome, batches: ParentBatches) -> str | None:
    """Return why the parent's checkpoint at rest is not one to continue from, or None if it is whole."""

    def rule_of_row(row: LedgerRow) -> WatermarkRule:
        return rule_of(load_bundle_definition(home.bundles, row.bundle))

    return find_unfit(home, load_timeline(home, batches.parent), batches.of_run(), rule_of_row)


def take_at_rest(home: PipelineHome, restore: Restore, lease: timedelta) -> Savepoint:
    """Take a savepoint of the parent's checkpoint at rest; its lease is there before its manifest."""
    now = utc_now()
    return save_checkpoint(
        home,
        restore.parent,
        now=now,
        reason=f"before the new timeline {restore.child} ({restore.id})",
        hold=lambda store, name: lease_savepoint(store, name, restore.id, now=now, length=lease),
    )


def select_way_back(restore: Restore, savepoints: list[Savepoint], problem: str) -> Savepoint:
    """Return the proved savepoint that is replayed instead of a damaged checkpoint. Pure.

    Raises:
        SavepointError: the operation began without one.
    """
    origin = next((each for each in savepoints if each.id == restore.origin and each.status == PROVED), None)
    if origin is None:
        message = (
            f"the checkpoint of timeline {restore.parent} is damaged ({problem}), and {restore.id} has no proved savepoint to replay "
            "from; the stream is stopped and the head is what it was; give it up (--abandon), then see `rivertwice savepoint fall-back "
            "NAME --dry-run`"
        )
        raise SavepointError(message)
    return origin
