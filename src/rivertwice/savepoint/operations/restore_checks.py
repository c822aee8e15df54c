"""The choice of the savepoint for a restore or an upgrade, and the checks that refuse it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from rivertwice.core import FingerprintError, PipelineHome, RequestError, SavepointError, Settings, utc_now
from rivertwice.definition import (
    Bundle,
    UpgradeDecision,
    UpgradeKind,
    Way,
    WayKind,
    decide_upgrade,
    load_bundle,
    load_bundle_definition,
)
from rivertwice.log import kafka
from rivertwice.savepoint.catalogue import ProofState, Savepoint, list_savepoints, load_savepoint, select_newest
from rivertwice.savepoint.manifest import Manifest, StateBase
from rivertwice.savepoint.operations.fork import ParentBatches, last_in_changelog, path_in_changelog, read_parent
from rivertwice.savepoint.operations.record import Restore
from rivertwice.savepoint.plan import (
    current_fingerprint,
    equivalent_bundles,
    is_on_path,
    require_fingerprint,
    require_on_path,
    require_one_definition,
    require_reach,
    require_recorded,
)
from rivertwice.savepoint.records import lease_savepoint
from rivertwice.savepoint.take import save_checkpoint
from rivertwice.stream import check_topics, find_unfit
from rivertwice.timeline import (
    LedgerRow,
    Segment,
    Timeline,
    WatermarkRule,
    check_committed,
    next_name,
    path_of,
    require_whole_logs,
    rule_of,
)


def newest_proved(
    home: PipelineHome, path: Sequence[Segment], wanted: str, fits: Callable[[Manifest], bool] = lambda _: True
) -> Savepoint:
    """Return the newest proved savepoint of a head's path that fits, or of all savepoints if there is no path yet.

    Args:
        wanted: the next words of the message if there is none.
        fits: whether a savepoint can be used; asked about the newest ones first.

    Raises:
        SavepointError: there is none.
    """
    usable = [savepoint for savepoint in list_savepoints(home) if not path or is_on_path(savepoint.manifest, path)]
    newest = select_newest(usable, proved=True)
    while newest is not None and not fits(newest.manifest):
        usable.remove(newest)
        newest = select_newest(usable, proved=True)
    if newest is None:
        message = (
            f"{home.root.name} has no proved savepoint on the head's path{wanted}; prove one (`rivertwice savepoint prove`), or "
            "name one and say --unproved"
        )
        raise SavepointError(message)
    return newest


def choose_savepoint(
    home: PipelineHome, savepoint_id: str | None, parent: str | None, *, unproved: bool = False
) -> Savepoint:
    """Return the named savepoint, or the newest proved one of a head's path.

    Raises:
        SavepointError: there is none, or the named one is not proved, and `unproved` is false.
    """
    if savepoint_id is not None:
        named = load_savepoint(home, savepoint_id)
        if not unproved:
            require_proved(named)
        return named
    path = [] if parent is None else path_in_changelog(path_of(home, parent), last_in_changelog(home, parent))
    return newest_proved(home, path, ", and a restore is not built on an unproved one by default")


def require_proved(savepoint: Savepoint) -> None:
    """Check that a savepoint is proved.

    Raises:
        SavepointError: it was only taken.
    """
    if savepoint.status != ProofState.PROVED:
        message = (
            f"savepoint {savepoint.id} was taken and never proved, so it is not known whether a stream can continue from it; "
            "nothing was done; prove it first (`rivertwice savepoint prove`), take the newest proved one (no id), or say "
            "--unproved"
        )
        raise SavepointError(message)


def require_way(
    decision: UpgradeDecision, pipeline: str, *, beside: str, partitions: int | None = None, note: str = ""
) -> None:
    """Check that a changed definition can continue from the old one's state.

    Args:
        beside: the name that a version of the changed definition would have.
        partitions: the number of state partitions, if it changes; None: it does not.
        note: what else changed and does not count, as a sentence for the message.

    Raises:
        FingerprintError: it cannot.
        RequestError: no part that matters to the results changed.
    """
    if decision.way == UpgradeKind.SAME and partitions is None:
        message = f"nothing in the definition of {pipeline} changed that matters to its results or its state: there is nothing to upgrade{note}"
        raise RequestError(message)
    if decision.way == UpgradeKind.REFUSED:
        obstacles = "; ".join(f"{name}: {why}" for name, why in decision.obstacles.items())
        message = (
            f"the new definition of {pipeline} cannot continue from the old one's state ({obstacles}); put the definition "
            f"back, or {_describe_beside(decision.beside, pipeline, beside)}"
        )
        raise FingerprintError(message)


def _describe_beside(way: Way, pipeline: str, version: str) -> str:
    """Return how a definition that cannot continue from the state comes to serve all the same, as the end of a sentence."""
    if way.kind == WayKind.NEVER:
        return f"start the new one under another name: {way.explain_never(pipeline)}"
    beside = (
        f"run the new one beside it, with its past computed from the log: `rivertwice upgrade {pipeline} --new-version`"
    )
    if way.kind != WayKind.ACCEPTED:
        return beside
    return f"{beside}; {way.explain_accepted(version)}"


def require_in_changelog(manifest: Manifest, newest: int | None) -> None:
    """Check that a savepoint's batch is not after the changelog's last batch. Pure.

    Raises:
        SavepointError: it is; its state contains records whose rows are lost.
    """
    last = -1 if newest is None else newest
    if manifest.batch > last:
        message = (
            f"savepoint {manifest.savepoint} is at batch {manifest.batch}, but the changelog of {manifest.pipeline} ends at batch "
            f"{last}: it lost the commits between, and a stream that continued from there would leave their rows out; nothing was "
            f"done; write them again (`rivertwice admin repair {manifest.pipeline}`), or use an older savepoint"
        )
        raise SavepointError(message)


def check_restore(
    settings: Settings, home: PipelineHome, manifest: Manifest, restore: Restore, *, remember: bool = True
) -> ParentBatches:
    """Refuse a restore that cannot be done; return the committed batches of the parent's path.

    Only the ledger rows from the savepoint's batch on are read whole.

    Args:
        manifest: the manifest of the savepoint, or of the beginning.
        remember: False stores nothing, for a request that only asks.

    Raises:
        TableDamageError: a table has lost committed rows.
        FingerprintError: the definition has changed, or cannot continue from this state.
        SavepointError: it is off the head's path, or the ledger contradicts it.
        LogGapError: the records after it are gone, or the topic was created again.
    """
    current = current_fingerprint(settings, manifest.pipeline)
    if restore.bundle is None:
        require_fingerprint(manifest, current)
    else:
        _check_upgrade(home, manifest, restore, load_bundle(home.bundles, restore.bundle), current)
    from_beginning = restore.savepoint == StateBase.BEGINNING
    if not from_beginning:
        require_on_path(manifest, path_of(home, restore.parent))
    require_whole_logs(home)
    batches = read_parent(home, restore.parent)
    check_committed(home, batches.committed, batches.every, remember=remember)
    topic_ids = {topic: kafka.topic_id(settings, topic) for topic in manifest.topic_ids}
    check_topics(manifest.topic_ids, topic_ids, manifest.pipeline)
    require_in_changelog(manifest, batches.newest)
    rows = batches.after(manifest.batch - 1)
    if from_beginning:
        require_one_definition(manifest, rows, equivalent_bundles(home, manifest, rows))
    else:
        require_recorded(manifest, rows)
    last = rows[-1]
    for topic in manifest.topic_ids:
        end = {partition: bounds[1] for partition, bounds in last.ranges(topic).items()}
        require_reach(end, kafka.begin_offsets(settings, topic), batch=last.batch, topic=topic)
    return batches


def _check_upgrade(
    home: PipelineHome, manifest: Manifest, restore: Restore, new: Bundle, current: Mapping[str, str]
) -> None:
    line = Timeline.load(home, restore.parent)
    require_fingerprint(manifest, line.fingerprint)
    if new.fingerprint.hashes() != current:
        message = (
            f"the definition of {manifest.pipeline} changed again since the upgrade to bundle {new.id[:12]} began; nothing more was "
            f"done; put that definition back, or give the upgrade up (`rivertwice upgrade {manifest.pipeline} --abandon`)"
        )
        raise FingerprintError(message)
    decision = decide_upgrade(load_bundle(home.bundles, line.bundle), new, line.fingerprint)
    require_way(decision, manifest.pipeline, beside=next_name(home), partitions=restore.partitions)


# A planned restore or upgrade: its base is a savepoint of the parent's own checkpoint at rest, and no batch is replayed.
#
# The savepoint is not proved yet. So the newest proved one, the operation's origin, stays until the new one was proved from it
# (`savepoint.prove_origin`), and prune spares both (`savepoint.prune`).


def choose_origin(home: PipelineHome, parent: str, *, unproved: bool) -> Savepoint | None:
    """Return the newest proved savepoint of a path from which the parent's state can be made again; None with `unproved` alone.

    Raises:
        SavepointError: there is none, and `unproved` is false.
    """
    fingerprint = Timeline.load(home, parent).fingerprint
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
            f"nothing to go back to, and nothing to prove the new savepoint from; take and prove one first "
            f"(`rivertwice savepoint take {home.root.name}`, then `prove`), or say --unproved"
        )
        raise SavepointError(message)
    return origin


def find_unfit_checkpoint(home: PipelineHome, batches: ParentBatches) -> str | None:
    """Return why the parent's checkpoint at rest is not one to continue from, or None if it is whole."""

    def rule_of_row(row: LedgerRow) -> WatermarkRule:
        return rule_of(load_bundle_definition(home.bundles, row.bundle))

    return find_unfit(home, Timeline.load(home, batches.parent), batches.of_run(), rule_of_row)


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
    origin = next((each for each in savepoints if each.id == restore.origin and each.status == ProofState.PROVED), None)
    if origin is None:
        message = (
            f"the checkpoint of timeline {restore.parent} is damaged ({problem}), and {restore.id} has no proved savepoint to replay "
            "from; the stream is stopped and the head is unchanged; abandon it (--abandon), then see `rivertwice savepoint fall-back "
            "NAME --dry-run`"
        )
        raise SavepointError(message)
    return origin
