"""Upgrade: let a changed definition continue from the state of the old one, on a new timeline.

It is a restore whose child runs the new definition: the parent is drained, a savepoint of its checkpoint is taken at its last
committed batch L, the child forks there from that savepoint and becomes the head (`steps.PLANNED_UPGRADE`). The savepoint is proved
afterwards, in the background. With a named savepoint, or where the checkpoint is damaged, the recorded batches since a proved
savepoint are replayed under the old definition and compared instead (`steps.UPGRADE`). The old definition reads the records up to L, the new one those after it. No record is read by both, and none is left
out. What is served does not change: windows that the old one emitted stay, and so do their published corrections. A window that
both definitions made is NOT_COMPARABLE (mixed) until a backfill computes it by the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rivertwice.core import (
    PipelineHome,
    Progress,
    RequestError,
    RivertwiceError,
    Settings,
    SparkVersion,
    base_of,
    report_nothing,
    utc_now,
)
from rivertwice.definition import (
    Bundle,
    ChangedComponent,
    UpgradeDecision,
    build_project_bundle,
    decide_upgrade,
    load_bundle,
)
from rivertwice.engine import buckets_at_genesis, check_bundle
from rivertwice.savepoint.catalogue import Savepoint
from rivertwice.savepoint.feed import session_of
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations import engine
from rivertwice.savepoint.operations.effects import load
from rivertwice.savepoint.operations.fork import DRAIN_S
from rivertwice.savepoint.operations.record import OperationStep, Restore, read_operations, read_restores
from rivertwice.savepoint.operations.restore import RestoreReport, require_same_aim, restore_savepoint
from rivertwice.savepoint.operations.restore_checks import choose_origin, choose_savepoint, require_way
from rivertwice.savepoint.operations.steps import UPGRADE, select_plan
from rivertwice.savepoint.plan import require_fingerprint
from rivertwice.savepoint.resting import describe_no_batch, resting_of
from rivertwice.stream import has_batch, running_partitions
from rivertwice.timeline import (
    Timeline,
    committed_batches,
    head,
    newest_batches,
    next_name,
    path_of,
    path_semantics,
    publications_of,
    read_sequence,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class UpgradePlan:
    """What an upgrade would do; nothing is done.

    Attributes:
        way: `same`, `resume` or `refused`.
        changes: components of the definition that differ. diff: lines of a unified diff of its files. obstacles: component to the reason why it cannot be carried over.
        timeline, batch: where the new timeline would fork, as known now; a running stream commits more until it is drained.
        savepoint: the savepoint that it would start from, or `checkpoint`: one that it would take; None if none is proved.
        origin: if it would take one, the proved savepoint from which that one is proved afterwards; None: none is proved.
        replay: how many recorded batches would be replayed.
        publications: how many publications are still served.
        partitions: number of the state's partitions now and then, if it changes; else None.
        kept: what changed and stays as it is, because it is frozen; empty if nothing did.
    """

    pipeline: str
    way: str
    changes: tuple[ChangedComponent, ...]
    diff: tuple[str, ...]
    obstacles: Mapping[str, str]
    timeline: str
    batch: int | None
    old_bundle: str
    new_bundle: str
    savepoint: str | None
    origin: str | None
    replay: int
    publications: int
    resumes: str | None
    partitions: tuple[int, int] | None
    kept: str
    steps: tuple[engine.ShownStep, ...]
    refusal: str | None


@dataclass(frozen=True)
class UpgradeReport:
    """What an upgrade did: its restore, and the definition that runs now."""

    bundle: str
    changed: tuple[str, ...]
    restore: RestoreReport


def show_upgrade(
    settings: Settings, pipeline: str, savepoint_id: str | None = None, *, unproved: bool = False
) -> UpgradePlan:
    """Return what an upgrade to the definition as it is in the project now would do.

    Raises:
        RequestError: the pipeline never ran.
        DefinitionError: the definition cannot be accepted.
        SavepointError: there is no savepoint of this id.
    """
    home = settings.pipeline(pipeline)
    line, old, new, decision = _observe(settings, home)
    layout = _observe_layout(home, line, new)
    interrupted = _cut_off(home, new.id)
    path = path_of(home, line.timeline)
    committed = committed_batches(home, path)
    newest = newest_batches(home, committed, path, 1)
    serving = path_semantics(home, path)
    last = newest[-1] if newest else None
    refusal: str | None = None
    base: Savepoint | None = None
    origin: str | None = None
    planned = savepoint_id is None if interrupted is None else interrupted.planned
    try:
        unfinished = engine.select_unfinished(read_operations(home), UPGRADE, None, pipeline)
        if unfinished is not None:
            require_same_aim(unfinished, new.id)
        if interrupted is None:
            layout.require_spark(line)
            require_way(decision, pipeline, beside=next_name(home), partitions=layout.wanted, note=layout.note)
            _require_checked(settings, home, new, None)
        if interrupted is not None:
            base, origin = load(home, interrupted), interrupted.origin
        elif planned:
            base = resting_of(home, line.timeline, last)
            proved = choose_origin(home, line.timeline, unproved=unproved)
            origin = None if proved is None else proved.id
        else:
            base = choose_savepoint(home, savepoint_id, line.timeline, unproved=unproved)
        require_fingerprint(base.manifest, line.fingerprint)
    except RivertwiceError as error:
        refusal = str(error)
    return UpgradePlan(
        pipeline=pipeline,
        way=decision.way,
        changes=decision.changes,
        diff=old.renamed(pipeline).diff_to(new.renamed(pipeline)),
        obstacles=decision.obstacles,
        timeline=line.timeline,
        batch=None if last is None else last.batch,
        old_bundle=line.bundle,
        new_bundle=new.id,
        savepoint=None if base is None else base.id,
        origin=origin,
        replay=0 if base is None else len(committed) - len(committed.before(base.manifest.batch + 1)),
        publications=sum(each.semantics in serving for each in publications_of(read_sequence(home))),
        resumes=None if interrupted is None else interrupted.id,
        partitions=layout.change,
        kept=layout.kept,
        steps=engine.explain(select_plan(planned=planned, upgrade=True), interrupted),
        refusal=refusal,
    )


def upgrade_stream(
    settings: Settings,
    pipeline: str,
    savepoint_id: str | None = None,
    *,
    unproved: bool = False,
    progress: Progress = report_nothing,
    spark: SparkSession | None = None,
    drain_seconds: float = DRAIN_S,
) -> UpgradeReport:
    """Upgrade to the definition as it is in the project now, or resume the upgrade that was interrupted.

    The arguments and errors are those of `restore_savepoint`; without a savepoint's id it is planned: nothing is replayed.
    If `stream.shuffle_partitions` is not the running number, the state is rewritten into the new number of partitions.

    Raises:
        FingerprintError: the new definition cannot continue from the old one's state.
        DefinitionError: the checks refuse the new definition; no driver was drained, nothing was stored.
        RequestError: the pipeline never ran, no part that matters changed, another restore is not finished, or the number of
            partitions changed and this Spark cannot rewrite the state.
    """
    home = settings.pipeline(pipeline)
    line, _, new, decision = _observe(settings, home)
    base, partitions = savepoint_id, None
    if _cut_off(home, new.id) is None:  # one that was interrupted after the head's move sees no change
        layout = _observe_layout(home, line, new)
        layout.require_spark(line)
        partitions = layout.wanted
        require_way(decision, pipeline, beside=next_name(home), partitions=partitions, note=layout.note)
        _require_checked(settings, home, new, spark)
        base = savepoint_id or StateBase.RESTING
    new.save(home.bundles)
    report = restore_savepoint(
        settings,
        pipeline,
        base,
        unproved=unproved,
        progress=progress,
        spark=spark,
        drain_seconds=drain_seconds,
        upgrade_to=new,
        partitions=partitions,
    )
    return UpgradeReport(new.id, tuple(change.component for change in decision.changes), report)


@dataclass(frozen=True)
class _Layout:
    """What a new definition says of the state's layout.

    Attributes:
        change: number of partitions now and then, if it changes.
        kept: what it says otherwise than the timeline, and what stays all the same; empty if nothing does.
    """

    change: tuple[int, int] | None
    kept: str

    @property
    def wanted(self) -> int | None:
        """The new number of partitions, or None if it stays."""
        return None if self.change is None else self.change[1]

    @property
    def note(self) -> str:
        """What stays, as the end of a message."""
        return f"; {self.kept}" if self.kept else ""

    def require_spark(self, line: Timeline) -> None:
        """Refuse a new number of partitions where Spark cannot rewrite a state.

        Raises:
            RequestError: it cannot.
        """
        if self.change is not None:
            now, then = self.change
            wanted = f"stream.shuffle_partitions is {then}, and to rewrite the state of {line.timeline}, which is in {now} partitions,"
            remedy = f"put {now} back, or run a changed definition as a new version, which begins with its own number (--new-version)"
            SparkVersion.installed().require("repartition", wanted, remedy)


def _observe_layout(home: PipelineHome, line: Timeline, new: Bundle) -> _Layout:
    pins, now = new.definition.stream, running_partitions(home, line)
    change = None if now in (None, pins.shuffle_partitions) else (int(now or 0), pins.shuffle_partitions)
    buckets = buckets_at_genesis(new.definition)
    kept = ""
    if "fold_buckets" in pins.model_fields_set and buckets != line.fold_buckets:
        kept = (
            f"stream.fold_buckets is {buckets}, but {line.timeline} keeps its {line.fold_buckets}, because the keys' states are laid out by "
            "it: another number counts for a pipeline that begins, and for a new version of a changed definition (--new-version)"
        )
    return _Layout(change, kept)


def _cut_off(home: PipelineHome, bundle: str) -> Restore | None:
    """Return the interrupted upgrade to this definition, or None."""
    unfinished = [
        restore for restore in read_restores(home) if restore.step < OperationStep.DONE and restore.bundle == bundle
    ]
    return unfinished[-1] if unfinished else None


def describe_change(change: ChangedComponent) -> tuple[str, str, str]:
    """Return a change as it is shown: component, old value and new value; long values are shortened."""
    return change.component, _short(change.old), _short(change.new)


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _require_checked(settings: Settings, home: PipelineHome, new: Bundle, spark: SparkSession | None) -> None:
    """Refuse a new definition that the checks refuse; a stored verdict needs no Spark.

    Raises:
        DefinitionError: the checks refuse it; the message has every finding with its remedy, one a line.
    """
    where = str(settings.definitions / base_of(new.definition.name))
    check_bundle(home, new, lambda: spark or session_of(settings, new.definition), utc_now(), where=where).require()


def _observe(settings: Settings, home: PipelineHome) -> tuple[Timeline, Bundle, Bundle, UpgradeDecision]:
    name = head(home)
    if name is None:
        message = f"{home.root.name} never ran, so there is nothing to upgrade; `rivertwice start {home.root.name}`"
        raise RequestError(message)
    if (settings.frozen_definitions / home.root.name).exists():
        base = base_of(home.root.name)
        message = (
            f"the definition of {home.root.name} is frozen, because versions of {base} run beside each other (`rivertwice version list {base}`); "
            f"nothing was done; drop the other version first, or begin another one: `rivertwice upgrade {base} --new-version`"
        )
        raise RequestError(message)
    line = Timeline.load(home, name)
    if line.parent is None and not has_batch(home, line):
        raise RequestError(describe_no_batch(line.pipeline))
    old, new = load_bundle(home.bundles, line.bundle), build_project_bundle(settings, home.root.name)
    return line, old, new, decide_upgrade(old, new, line.fingerprint)
