"""Restore a savepoint, or the very beginning, into a new timeline that serves exactly what the old one served.

Each step is recorded when it is done, and can be repeated; killed anywhere and run again, the result is the same.

1. Record the operation: savepoint, parent, the child's name, whether the stream was wanted.
2. Refuse: tables that do not hold what the ledger counted, another definition (of an upgrade: one that cannot go on from this state), a damaged file, a savepoint off the head's path, a log that no longer reaches.
3. Want the stream stopped, and wait until its driver has gone.
4. Decide the fork: L, the parent's last batch in the changelog, whatever its checkpoint and the ledger's table say.
5. Fetch the savepoint (of the beginning: nothing) and replay the recorded batches up to L, each compared with the ledger; then rename the
   checkpoint into the child's folder, so that it is there whole or not at all.
6. Create the child's record: parent (T, L), first batch L + 1.
7. Move the head. Only now does the child count, and nothing served changes: up to L the path is the same.
8. Want the stream running again, if it was.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import FingerprintError, RequestError, SavepointError
from rivertwice.instants import utc_now
from rivertwice.log import kafka
from rivertwice.pipeline.bundle import Bundle, load_bundle
from rivertwice.pipeline.upgrade import REFUSED, SAME, Decision, decide_upgrade
from rivertwice.savepoint import operation as steps
from rivertwice.savepoint.beginning import BEGINNING, beginning_of
from rivertwice.savepoint.bundles import current_fingerprint, equivalent_bundles
from rivertwice.savepoint.catalogue import (
    PROVED,
    Savepoint,
    load_savepoint,
    savepoint_store,
    verify_files,
)
from rivertwice.savepoint.choose import newest_proved
from rivertwice.savepoint.manifest import Manifest
from rivertwice.savepoint.operation import Operation, advance
from rivertwice.savepoint.plan import (
    require_fingerprint,
    require_on_path,
    require_one_definition,
    require_reach,
    require_recorded,
)
from rivertwice.savepoint.prove import print_nothing
from rivertwice.savepoint.records import lease_savepoint, release_savepoint
from rivertwice.savepoint.restore_steps import Progress, go_on, last_in_changelog, path_in_changelog, rows_of
from rivertwice.savepoint.rewind_record import read_rewinds, require_no_rewind
from rivertwice.stream.begin import check_topics
from rivertwice.timeline.intact import check_rows, require_whole_logs
from rivertwice.timeline.intent import read_intent
from rivertwice.timeline.ledger import LedgerRow, read_ledger
from rivertwice.timeline.lineage import load_timeline, next_timeline_name, path_of
from rivertwice.timeline.sequence import head

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASE = timedelta(hours=6)
DRAIN_S = 120.0  # a driver drains in half a second; one that is stuck in a batch may take longer


@dataclass(frozen=True)
class RestoreReport:
    """What a restore did.

    Attributes:
        savepoint: its id, or `beginning`.
        timeline: the new head.
        parent: the timeline it forked from.
        forked_at: last batch of the parent that counts.
        replayed: recorded batches that were replayed and agreed.
        resumed: whether an interrupted restore was resumed.
        running: whether the stream is wanted again.
    """

    operation: str
    savepoint: str
    timeline: str
    parent: str
    forked_at: int
    replayed: int
    resumed: bool
    running: bool


def restore_savepoint(
    settings: Settings,
    pipeline: str,
    savepoint_id: str | None = None,
    *,
    progress: Progress = print_nothing,
    spark: SparkSession | None = None,
    drain_seconds: float = DRAIN_S,
    unproved: bool = False,
    keep_intent: bool = False,
    upgrade_to: Bundle | None = None,
    rewritten_by: str | None = None,
) -> RestoreReport:
    """Restore a savepoint of the head's path; by default the newest proved one.

    Args:
        settings: where things lie.
        pipeline: the pipeline's name.
        savepoint_id: which savepoint, or `BEGINNING`; None goes on with an interrupted restore, or takes the newest proved one.
        progress: told of every step.
        spark: the session to use; None starts the pipeline's own.
        drain_seconds: how long to wait for a running driver.
        unproved: accept a savepoint that is not proved; every replayed batch is compared all the same.
        keep_intent: leave what is wanted of the stream alone; for a caller that knows that none runs.
        upgrade_to: the definition that the new timeline runs, stored already; None: the one that the old timeline runs.
        rewritten_by: an erasure that keeps the stream at rest (so nothing is drained) and has rewritten the archive, from which
            alone is read.

    Raises:
        SavepointError: none is proved, the named one is not and `unproved` is false, or the chosen one is missing, damaged
            or off the head's path.
        FingerprintError: the definition is another one now, or cannot go on from this state.
        LogGapError: the records after it are gone.
        ReplayMismatchError: a recorded batch gave another result; the old head goes on serving.
        ServiceError: the driver did not stop in time.
    """
    home = settings.pipeline(pipeline)
    with steps.only_restore(home):
        require_no_rewind(read_rewinds(home))
        found = steps.select_unfinished(steps.read_operations(home), savepoint_id)
        require_same_aim(found, upgrade_to)
        operation = found or _begin(
            home,
            savepoint_id,
            unproved=unproved,
            keep_intent=keep_intent,
            bundle=None if upgrade_to is None else upgrade_to.id,
            rewritten_by=rewritten_by,
        )
        try:
            savepoint = _leased(home, operation)
            _check(settings, home, savepoint, operation)
        except Exception:
            if operation.step < steps.DRAINED:  # nothing was touched: a refusal leaves nothing behind
                (home.operations / f"{operation.id}.json").unlink(missing_ok=True)
                _release(home, operation)
            raise
        progress(f"{operation.id}: {savepoint.id} into timeline {operation.child}")
        resting = rewritten_by is not None
        operation = go_on(settings, home, savepoint, operation, progress, spark, None if resting else drain_seconds)
        _release(home, operation)
    return RestoreReport(
        operation=operation.id,
        savepoint=operation.savepoint,
        timeline=operation.child,
        parent=operation.parent,
        forked_at=operation.forked_at or 0,
        replayed=operation.replayed,
        resumed=found is not None,
        running=operation.was_running,
    )


def _leased(home: PipelineHome, operation: Operation) -> Savepoint:
    """Return what the operation is built on, kept from being pruned; the beginning needs no lease."""
    if operation.savepoint == BEGINNING:
        return beginning_of(home, operation.parent)
    savepoint = load_savepoint(home, operation.savepoint)
    lease_savepoint(savepoint.store, savepoint.id, operation.id, now=utc_now(), length=LEASE)
    return savepoint


def _release(home: PipelineHome, operation: Operation) -> None:
    if operation.savepoint != BEGINNING:
        release_savepoint(savepoint_store(home), operation.savepoint, operation.id)


def require_proved(savepoint: Savepoint) -> None:
    """Check that a savepoint is proved.

    Raises:
        SavepointError: it was only taken.
    """
    if savepoint.status != PROVED:
        message = (
            f"savepoint {savepoint.id} was taken and never proved, so it is not known whether a stream can go on from it; "
            "nothing was done; prove it first (`rivertwice savepoint prove`), take the newest proved one (no id), or say "
            "--unproved"
        )
        raise SavepointError(message)


def require_same_aim(found: Operation | None, upgrade_to: Bundle | None) -> None:
    """Refuse an upgrade while something else was cut off; an upgrade that was cut off is resumed by a restore too. Pure.

    Raises:
        RequestError: a restore, or an upgrade to another definition, is not finished.
    """
    if found is not None and upgrade_to is not None and found.bundle != upgrade_to.id:
        what = "a restore" if found.bundle is None else f"an upgrade to bundle {found.bundle[:12]}"
        message = (
            f"{found.id}, {what}, was cut off; finish it first (`rivertwice savepoint restore NAME` without an id) or give it up "
            "(with --abandon), then upgrade"
        )
        raise RequestError(message)


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


def _begin(
    home: PipelineHome,
    savepoint_id: str | None,
    *,
    unproved: bool,
    keep_intent: bool,
    bundle: str | None,
    rewritten_by: str | None,
) -> Operation:  # step 1
    parent = head(home)
    chosen = (
        BEGINNING if savepoint_id == BEGINNING else choose_savepoint(home, savepoint_id, parent, unproved=unproved).id
    )
    if parent is None:
        message = f"{home.root.name} has no head timeline, so there is nothing to restore; start the stream first"
        raise SavepointError(message)
    intent = read_intent(home)
    return steps.write_operation(
        home,
        Operation(
            id=f"restore-{secrets.token_hex(4)}",
            savepoint=chosen,
            parent=parent,
            child=next_timeline_name(home),
            was_running=not keep_intent and intent is not None and intent.desired == "running",
            started_at=utc_now(),
            bundle=bundle,
            rewritten_by=rewritten_by,
        ),
    )


def _check_upgrade(
    home: PipelineHome, manifest: Manifest, parent: str, new: Bundle, current: Mapping[str, str]
) -> None:
    line = load_timeline(home, parent)
    require_fingerprint(manifest, line.fingerprint)
    if new.fingerprint.hashes() != current:
        message = (
            f"the definition of {manifest.pipeline} changed again since the upgrade to bundle {new.id[:12]} began; nothing more was "
            "done; put that definition back, or give the upgrade up (`rivertwice savepoint restore NAME --abandon`)"
        )
        raise FingerprintError(message)
    require_way(decide_upgrade(load_bundle(home.bundles, line.bundle), new, line.fingerprint), manifest.pipeline)


def require_way(decision: Decision, pipeline: str) -> None:
    """Check that a changed definition can go on from the old one's state.

    Raises:
        FingerprintError: it cannot.
        RequestError: nothing that matters changed.
    """
    if decision.way == SAME:
        message = (
            f"nothing in the definition of {pipeline} changed that matters to its results: there is nothing to upgrade"
        )
        raise RequestError(message)
    if decision.way == REFUSED:
        told = "; ".join(f"{name}: {why}" for name, why in decision.obstacles.items())
        message = (
            f"the new definition of {pipeline} cannot go on from the old one's state ({told}); nothing was done; put the definition "
            "back, or start the new one as a pipeline of another name, which reads the log from its beginning"
        )
        raise FingerprintError(message)


def require_in_changelog(manifest: Manifest, rows: Sequence[LedgerRow]) -> None:
    """Check that a savepoint does not lie behind what the changelog still has. Pure.

    Raises:
        SavepointError: it does; its state holds records whose rows are gone.
    """
    last = rows[-1].batch if rows else -1
    if manifest.batch > last:
        message = (
            f"savepoint {manifest.savepoint} stands at batch {manifest.batch}, but the changelog of {manifest.pipeline} ends at batch "
            f"{last}: it lost the commits between, and a stream that went on from there would leave their rows out; nothing was "
            f"done; write them again (`rivertwice repair {manifest.pipeline}`), or use an older savepoint"
        )
        raise SavepointError(message)


def _check(settings: Settings, home: PipelineHome, savepoint: Savepoint, operation: Operation) -> None:  # step 2
    if operation.step >= steps.CREATED:
        return
    manifest = savepoint.manifest
    current = current_fingerprint(settings, manifest.pipeline)
    if operation.bundle is None:
        require_fingerprint(manifest, current)
    else:
        _check_upgrade(home, manifest, operation.parent, load_bundle(home.bundles, operation.bundle), current)
    from_beginning = operation.savepoint == BEGINNING
    if not from_beginning:
        require_on_path(manifest, path_of(home, operation.parent))
    require_whole_logs(home)
    rows = rows_of(home, operation)
    check_rows(home, rows, read_ledger(home))
    check_topics(
        manifest.topic_ids,
        {topic: kafka.topic_id(settings, topic) for topic in manifest.topic_ids},
        manifest.pipeline,
    )
    require_in_changelog(manifest, rows)
    if from_beginning:
        require_one_definition(manifest, rows, equivalent_bundles(home, manifest, rows))
    else:
        require_recorded(manifest, rows)
    last = rows[-1]
    for topic in manifest.topic_ids:
        end = {partition: bounds[1] for partition, bounds in last.ranges(topic).items()}
        require_reach(end, kafka.begin_offsets(settings, topic), batch=last.batch, topic=topic)
    if operation.step < steps.CHECKED:
        if not from_beginning:
            verify_files(savepoint)
        advance(home, operation, steps.CHECKED)
