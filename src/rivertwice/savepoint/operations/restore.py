"""Restore a savepoint, or the beginning, into a new timeline that serves exactly what the old one served.

`steps.RESTORE` lists its steps, and which of them are done again after an interruption. If it is killed anywhere and run again,
the result is the same. The child's checkpoint exists whole or not at all, because it is renamed into the child's folder. The child
counts only once the head has moved, and up to the fork the path is the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rivertwice.core import (
    LostRaceError,
    PipelineHome,
    Progress,
    RequestError,
    RivertwiceError,
    SavepointError,
    Settings,
    report_nothing,
    utc_now,
)
from rivertwice.definition import Bundle, Definition
from rivertwice.savepoint.catalogue import ProofState, list_savepoints, load_savepoint
from rivertwice.savepoint.feed import plan_feed, replay_source, session_of
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations import engine
from rivertwice.savepoint.operations.effects import LEASE, OperationEffects, finish, load
from rivertwice.savepoint.operations.fork import (
    DRAIN_S,
    ParentBatches,
    is_same_fork,
    plan_child,
    plan_fork,
    read_parent,
)
from rivertwice.savepoint.operations.record import (
    OperationStep,
    Restore,
    only_operation,
    read_operations,
    read_restores,
)
from rivertwice.savepoint.operations.restore_checks import (
    check_restore,
    choose_origin,
    choose_savepoint,
    find_unfit_checkpoint,
    select_way_back,
    take_at_rest,
)
from rivertwice.savepoint.operations.steps import OperationPlan, select_plan
from rivertwice.savepoint.plan import ReplayPlan, load_state_definition
from rivertwice.savepoint.records import release_savepoint
from rivertwice.savepoint.replay import replay_recorded
from rivertwice.savepoint.state_files import repartition_state
from rivertwice.savepoint.take import make_empty_checkpoint
from rivertwice.stream import lease_owner, partitions_of
from rivertwice.timeline import Timeline, create_timeline, head

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BEFORE_ALL = -1


@dataclass(frozen=True)
class RestoreReport:
    """What a restore did.

    Attributes:
        savepoint: its id, or `beginning`.
        timeline: the new head.
        forked_at: last batch of the parent that counts.
        replayed: recorded batches that were replayed with equal results.
        running: whether the desired state is running again.
    """

    operation: str
    savepoint: str
    timeline: str
    parent: str
    forked_at: int
    replayed: int
    resumed: bool
    running: bool


@dataclass
class RestoreEffects(OperationEffects[Restore]):
    """The effects of a restore.

    Attributes:
        spark: the session to use; None starts the pipeline's own.
        bundle: for an upgrade, id of the definition that the child runs; None: the parent's.
        rewritten_by: an erasure that keeps the stream stopped, so no driver is drained, and that has rewritten the archive, so
            records are read only from it.
        partitions: for an upgrade, the number of state partitions that the child gets; None: the parent's.
    """

    spark: SparkSession | None = None
    partitions: int | None = None
    bundle: str | None = None
    rewritten_by: str | None = None

    @property
    def effects(self) -> Mapping[int, Callable[[Restore], Restore]]:
        """A step's number to the method that does it."""
        return {
            OperationStep.CHECKED: self.check,
            OperationStep.DRAINED: self.stop,
            OperationStep.FORKED: self.decide_fork,
            OperationStep.REPLAYED: self.replay,
            OperationStep.CREATED: self.create,
        }

    def accept(self, interrupted: Restore) -> None:
        """Refuse an upgrade while another operation is interrupted."""
        require_same_aim(interrupted, self.bundle)

    def begin(self, savepoint: str | None) -> Restore:
        """Decide what is to be done."""
        parent = head(self.home)
        chosen = savepoint
        if savepoint is None or savepoint not in (StateBase.BEGINNING, StateBase.RESTING):
            chosen = choose_savepoint(self.home, savepoint, parent, unproved=self.unproved).id
        if parent is None or chosen is None:
            message = f"{self.pipeline} has no head timeline, so there is nothing to restore; `rivertwice start {self.pipeline} --wait` starts its stream"
            raise SavepointError(message)
        planned = chosen == StateBase.RESTING
        origin = choose_origin(self.home, parent, unproved=self.unproved) if planned else None
        return Restore(
            id=f"restore-{secrets.token_hex(4)}",
            savepoint=chosen,
            parent=parent,
            child=Timeline.next_name(self.home),
            was_running=self.is_wanted(),
            started_at=utc_now(),
            bundle=self.bundle,
            rewritten_by=self.rewritten_by,
            planned=planned,
            origin=None if origin is None else origin.id,
            partitions=self.partitions,
        )

    def check(self, restore: Restore) -> Restore:
        """Refuse what cannot be restored; read every byte of the savepoints that it needs once."""
        check_restore(self.settings, self.home, self.savepoint.manifest, restore)
        if restore.step < OperationStep.CHECKED:
            for name in restore.held:
                load_savepoint(self.home, name).verify_files()
        base = (
            f"the checkpoint of timeline {restore.parent}"
            if restore.savepoint == StateBase.RESTING
            else restore.savepoint
        )
        self.progress(f"{restore.id}: {base} into timeline {restore.child}")
        return restore

    def stop(self, restore: Restore) -> Restore:
        """Stop the stream; under an erasure it is stopped already."""
        return restore if restore.rewritten_by is not None else super().stop(restore)

    def decide_fork(self, restore: Restore) -> Restore:
        """Decide the fork at the parent's last batch; a planned one takes its savepoint there."""
        forked = plan_fork(restore, self.last_batch(restore))
        is_based = restore.savepoint != StateBase.RESTING and (
            forked == restore or self.savepoint.manifest.batch == forked.forked_at
        )
        return forked if is_based or not restore.planned else self._take(forked)

    def _take(self, restore: Restore) -> Restore:
        """Take the savepoint of the resting checkpoint; if that is damaged, the base is the newest proved one."""
        problem = find_unfit_checkpoint(self.home, read_parent(self.home, restore.parent))
        before = self.savepoint
        if problem is None:
            self.savepoint = take_at_rest(self.home, restore, LEASE)
            self.progress(
                f"took {self.savepoint.id} at batch {self.savepoint.manifest.batch}; the fork is batch {restore.forked_at}"
            )
        else:
            self.savepoint = select_way_back(restore, list_savepoints(self.home), problem)
            self.progress(
                f"the checkpoint of {restore.parent} is damaged ({problem}); {self.savepoint.id} is replayed instead"
            )
        if before.id in restore.held and before.id not in (self.savepoint.id, restore.origin):
            release_savepoint(before.store, before.id, restore.id)  # taken at an earlier batch
        return replace(restore, savepoint=self.savepoint.id)

    def last_batch(self, record: Restore) -> int:
        """Return the parent's last batch in the changelog."""
        newest = read_parent(self.home, record.parent).newest
        assert newest is not None, "its check refused a path without a batch"
        return newest

    def replay(self, restore: Restore) -> Restore:
        """Make the child's checkpoint from the savepoint and the recorded batches after it, if there are any."""
        home, manifest = self.home, self.savepoint.manifest
        if restore.step >= OperationStep.REPLAYED and home.checkpoint(restore.child).exists():
            return restore
        with self.new_checkpoint(restore) as work:
            if restore.savepoint == StateBase.BEGINNING:
                make_empty_checkpoint(work)
            else:
                self.savepoint.download(work)
            definition = load_state_definition(home, manifest)
            batches = read_parent(home, restore.parent)
            plan = plan_feed(
                self.settings,
                home,
                definition,
                manifest,
                batches.after(manifest.batch),
                until=restore.forked_at or 0,
                archive_only=restore.rewritten_by is not None,
            )
            self.progress(f"replaying {len(plan.rows)} recorded batches after batch {manifest.batch}")
            if plan.rows:
                self._replay(restore, definition, plan, batches, work)
            self._rewrite(restore, definition, work)
        return replace(restore, replayed=len(plan.rows))

    def _rewrite(self, restore: Restore, definition: Definition, work: Path) -> None:
        """Give the state the number of partitions that the child's record says, if it says one."""
        partitions = restore.partitions or Timeline.load(self.home, restore.parent).shuffle_partitions
        if not partitions:
            return
        batch = restore.forked_at or 0
        now = partitions_of((work / "offsets" / str(batch)).read_text())
        if now != partitions:
            self.progress(f"the state after batch {batch} is rewritten from {now} to {partitions} partitions")
            session = self.spark or session_of(self.settings, definition)
            repartition_state(session, work, batch, partitions)

    def _replay(
        self, restore: Restore, definition: Definition, plan: ReplayPlan, batches: ParentBatches, work: Path
    ) -> None:
        session = self.spark or session_of(self.settings, definition, plan.rows)
        name = f"rivertwice-replay-{restore.id}"
        with replay_source(
            session, self.settings, definition, self.savepoint.manifest, plan, name=name, progress=self.progress
        ) as topics:
            replay_recorded(
                session,
                self.settings,
                definition,
                work,
                plan.rows,
                before=batches.after(_BEFORE_ALL) if len(self.savepoint.manifest.topic_ids) > 1 else plan.rows,
                topic_override=topics,
                progress=self.progress,
            )

    def create(self, restore: Restore) -> Restore:
        """Record the child."""
        last = read_parent(self.home, restore.parent).last()
        if last is None or last.batch != restore.forked_at:
            raise LostRaceError(_moved_on(restore, None if last is None else last.batch))
        parent = Timeline.load(self.home, restore.parent)
        create_timeline(self.home, plan_child(self.home, parent, last, restore, utc_now()))
        if not is_same_fork(
            Timeline.load(self.home, restore.child), restore
        ):  # recorded by an attempt that forked earlier
            self._take_another_child(restore)
        return restore

    def again(self, record: Restore) -> Generator[str | int, None, Restore]:
        """Take another child, because this one's record is final and leaves the parent too early."""
        yield from ()
        self._take_another_child(record)

    def _take_another_child(self, restore: Restore) -> NoReturn:
        another = Timeline.next_name(self.home)
        self.write(replace(restore, step=OperationStep.CHECKED, child=another, forked_at=None, replayed=0))
        raise LostRaceError(_moved_on(restore, self.last_batch(restore)))

    def reason(self, record: Restore) -> str:
        """Return the reason why the head moves."""
        act = "restore from" if record.bundle is None else f"upgrade to bundle {record.bundle[:12]} from"
        act = f"planned {act}" if record.planned else act
        state = "" if record.partitions is None else f", state in {record.partitions} partitions"
        return f"{act} {record.savepoint}{state} ({record.id})"


def restore_savepoint(
    settings: Settings,
    pipeline: str,
    savepoint_id: str | None = None,
    *,
    progress: Progress = report_nothing,
    spark: SparkSession | None = None,
    drain_seconds: float = DRAIN_S,
    unproved: bool = False,
    keep_intent: bool = False,
    upgrade_to: Bundle | None = None,
    partitions: int | None = None,
    rewritten_by: str | None = None,
) -> RestoreReport:
    """Restore a savepoint of the head's path; by default the newest proved one.

    Args:
        savepoint_id: which savepoint, or `BEGINNING`, or `RESTING` for a planned one, whose savepoint is taken now; None resumes an
            interrupted restore, or takes the newest proved one.
        spark: the session to use; None starts the pipeline's own.
        drain_seconds: how long to wait for a running driver.
        unproved: accept a savepoint that is not proved; every replayed batch is compared in any case.
        keep_intent: do not change the stream's intent; for a caller that knows that no driver runs.
        upgrade_to: the stored definition that the new timeline runs; None: the one that the old timeline runs.
        partitions: for an upgrade, the number of state partitions that the new timeline gets; None: the old one's.
        rewritten_by: see `RestoreEffects`.

    Raises:
        SavepointError: no savepoint is proved, the named one is not proved and `unproved` is false, or the chosen one is
            missing, damaged or off the head's path.
        FingerprintError: the definition has changed, or cannot continue from this state.
        LogGapError: the records after the savepoint are gone.
        ReplayMismatchError: a recorded batch gave another result; the old head keeps serving.
        RequestError: another operation is not finished.
        ServiceError: the driver did not stop in time.
        LostRaceError: another process works on an operation, or the head moved meanwhile.
    """
    home = settings.pipeline(pipeline)
    effects = RestoreEffects(
        settings,
        home,
        progress,
        drain_seconds,
        keep_intent=keep_intent,
        spark=spark,
        unproved=unproved,
        bundle=None if upgrade_to is None else upgrade_to.id,
        rewritten_by=rewritten_by,
        partitions=partitions,
    )
    with only_operation(home):
        plan = choose_plan(home, savepoint_id, upgrade=upgrade_to is not None)
        ran = finish(engine.run(plan, effects, savepoint_id))
    return RestoreReport(
        operation=ran.record.id,
        savepoint=ran.record.savepoint,
        timeline=ran.record.child,
        parent=ran.record.parent,
        forked_at=ran.record.forked_at or 0,
        replayed=ran.record.replayed,
        resumed=ran.resumed,
        running=ran.record.was_running,
    )


def choose_plan(home: PipelineHome, savepoint_id: str | None, *, upgrade: bool) -> OperationPlan[Restore]:
    """Return the plan of what is asked for, or of the restore that would be resumed."""
    unfinished = [restore for restore in read_restores(home) if restore.step < OperationStep.DONE]
    planned = unfinished[-1].planned if unfinished else savepoint_id == StateBase.RESTING
    return select_plan(planned=planned, upgrade=upgrade)


def require_same_aim(interrupted: Restore, bundle: str | None) -> None:
    """Refuse an upgrade while another operation is interrupted; a restore resumes an interrupted upgrade, too. Pure.

    Raises:
        RequestError: a restore, or an upgrade to another definition, is not finished.
    """
    if bundle is not None and interrupted.bundle != bundle:
        description = "a restore" if interrupted.bundle is None else f"an upgrade to bundle {interrupted.bundle[:12]}"
        message = (
            f"{interrupted.id}, {description}, was interrupted; finish it first (`rivertwice savepoint restore NAME` without an id) or abandon it "
            "(with --abandon), then upgrade"
        )
        raise RequestError(message)


def _moved_on(restore: Restore, last: int | None) -> str:
    return (
        f"{restore.id} forked {restore.parent} at batch {restore.forked_at}, but meanwhile it has batch {last}: somebody "
        "started the stream; nothing served changed; run the restore again"
    )


# What a restore would do, step by step; nothing is done.


@dataclass(frozen=True)
class RestorePlan:
    """What a restore would do; nothing is done.

    Attributes:
        savepoint: a savepoint's id, or `beginning`, or `checkpoint` for one that would be taken.
        proved: whether it is proved; the beginning needs no proof, because every batch is compared.
        timeline, batch: the savepoint's timeline and batch; -1 before the first batch.
        parent: the head, which the new timeline would leave.
        forks_at: the parent's last committed batch as known now; a running stream commits more until it is drained.
        replay: how many recorded batches would be replayed and compared.
        source: `kafka`, or `replay topic`, which is fed from the archive if Kafka no longer has the records.
        origin: for a planned one, the proved savepoint from which the new one would be proved afterwards.
        damage: for a planned one of a stream that does not run, what is wrong with its checkpoint; then `origin` is replayed.
    """

    pipeline: str
    savepoint: str
    proved: bool
    timeline: str
    batch: int
    parent: str
    forks_at: int | None
    replay: int | None
    source: str | None
    resumes: str | None
    steps: tuple[engine.ShownStep, ...]
    refusal: str | None
    origin: str | None = None
    damage: str | None = None


def show_restore(
    settings: Settings, pipeline: str, savepoint_id: str | None = None, *, unproved: bool = False
) -> RestorePlan:
    """Return what a restore would do; nothing is done. The savepoint's bytes are read only by the restore itself.

    Raises:
        SavepointError: there is nothing to restore: no head, no such savepoint, or none is proved.
        RequestError: another operation is not finished.
    """
    home = settings.pipeline(pipeline)
    effects = RestoreEffects(settings, home, unproved=unproved)
    interrupted = engine.select_unfinished(
        read_operations(home), choose_plan(home, savepoint_id, upgrade=False), savepoint_id, pipeline
    )
    restore = interrupted or effects.begin(savepoint_id)
    savepoint = load(home, restore)
    manifest = savepoint.manifest
    refusal, source = None, None
    try:
        batches = check_restore(settings, home, manifest, restore, remember=False)
        definition = load_state_definition(home, manifest)
        plan = plan_feed(
            settings,
            home,
            definition,
            manifest,
            batches.after(manifest.batch),
            until=batches.newest or 0,
            archive_only=restore.rewritten_by is not None,
        )
        source = plan.source
    except RivertwiceError as error:
        refusal, batches = str(error), read_parent(home, restore.parent)
    return RestorePlan(
        pipeline=pipeline,
        savepoint=restore.savepoint,
        proved=restore.savepoint == StateBase.BEGINNING or savepoint.status == ProofState.PROVED,
        timeline=manifest.timeline,
        batch=manifest.batch,
        parent=restore.parent,
        forks_at=batches.newest,
        replay=batches.count_after(manifest.batch),
        source=source,
        resumes=None if interrupted is None else interrupted.id,
        steps=engine.explain(choose_plan(home, savepoint_id, upgrade=False), interrupted),
        refusal=refusal,
        origin=restore.origin,
        damage=_find_damage(home, restore, batches),
    )


def _find_damage(home: PipelineHome, restore: Restore, batches: ParentBatches) -> str | None:
    """Return what is wrong with the checkpoint that a planned restore would save; of a running stream it is not known."""
    if not restore.planned or restore.savepoint != StateBase.RESTING or lease_owner(home) is not None:
        return None
    return find_unfit_checkpoint(home, batches)
