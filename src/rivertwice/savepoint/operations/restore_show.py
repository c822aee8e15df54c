"""What a restore would do, step by step; nothing is done."""

from __future__ import annotations

from dataclasses import dataclass

from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import RivertwiceError
from rivertwice.savepoint.bases import BEGINNING, RESTING
from rivertwice.savepoint.bundles import load_state_definition
from rivertwice.savepoint.catalogue import PROVED
from rivertwice.savepoint.feed import plan_feed
from rivertwice.savepoint.operations import engine
from rivertwice.savepoint.operations.effects import load
from rivertwice.savepoint.operations.fork import ParentBatches, read_parent
from rivertwice.savepoint.operations.planned import find_unfit_checkpoint
from rivertwice.savepoint.operations.record import Restore, read_operations
from rivertwice.savepoint.operations.restore import RestoreEffects, choose_plan
from rivertwice.savepoint.operations.restore_checks import check_restore
from rivertwice.stream.lease import lease_owner


@dataclass(frozen=True)
class RestorePlan:
    """What a restore would do; nothing is done.

    Attributes:
        savepoint: a savepoint's id, or `beginning`, or `checkpoint` for one that would be taken.
        proved: whether it is proved; the beginning needs no proof, for every batch is compared.
        timeline, batch: the savepoint's timeline and batch; -1 before the first batch.
        parent: the head, which the new timeline would leave.
        forks_at: the parent's last committed batch as known now; a running stream commits more until it is drained.
        replay: how many recorded batches would be replayed and compared.
        source: `kafka`, or `replay topic`, which is fed from the archive if Kafka no longer has the records.
        resumes: the interrupted restore that would be resumed, or None.
        steps: what would be done, in order.
        refusal: why it cannot be done now, or None.
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
        proved=restore.savepoint == BEGINNING or savepoint.status == PROVED,
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
    if not restore.planned or restore.savepoint != RESTING or lease_owner(home) is not None:
        return None
    return find_unfit_checkpoint(home, batches)
