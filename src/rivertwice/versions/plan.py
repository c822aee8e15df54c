"""What a new version of a pipeline would do, as a value: what changed, what is computed by batch, what is streamed."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from datetime import timedelta

from rivertwice.backfill import LoadPlan, StreamLoadPlan, look_at_log, plan_stream_load
from rivertwice.core import Settings, utc_now
from rivertwice.definition import ChangedComponent
from rivertwice.engine import Spark
from rivertwice.retention import view_retention
from rivertwice.timeline import Timeline, head_path
from rivertwice.versions.begin import VersionRequest, find_wanted
from rivertwice.versions.changes import changes_path


@dataclass(frozen=True)
class VersionPlan:
    """What a new version would do; nothing is done.

    Attributes:
        version: its name; beside: name of the version that serves.
        old_bundle, new_bundle: ids of both definitions, the new one under the version's name.
        changes: components of the definition that differ.
        diff: lines of a unified diff of the definition's files.
        columns_added, columns_gone: columns of the result.
        load: what is computed by batch; None: nothing.
        streamed_whole: why the whole log is streamed; empty if a part is computed by batch.
        stream_load: what the stream loads in large batches; None: nothing, for backfills load the past or nothing is to be loaded.
        look_s: seconds that it took to read the log's event times; a backfill reads these records again, and computes.
        archive_left: time until Kafka may delete a record that the archive lacks; None: it never does, or the archive has all.
        free_bytes: room on the disk of the home.
        change_file: path of the file that declares which differences are meant.
        begun: whether this very version has begun already, so that `--yes` continues it.
        different: why its rows cannot be compared with those that are served, so that a person must accept the switch; empty: they
            can.
    """

    version: str
    beside: str
    old_bundle: str
    new_bundle: str
    changes: tuple[ChangedComponent, ...]
    diff: tuple[str, ...]
    columns_added: tuple[str, ...]
    columns_gone: tuple[str, ...]
    load: LoadPlan | None
    streamed_whole: str
    stream_load: StreamLoadPlan | None
    look_s: float
    archive_left: timedelta | None
    free_bytes: int
    change_file: str
    begun: bool
    different: tuple[str, ...] = ()


def plan_version(settings: Settings, pipeline: str, spark: Spark, *, recompute: bool = False) -> VersionPlan:
    """Return what a new version of a pipeline would do; nothing is written.

    Raises:
        RequestError, DefinitionError: see `begin.find_wanted`.
        LogGapError: records were deleted while the log was read; or what a fold depends on exists no longer.
    """
    wanted = find_wanted(settings, pipeline, recompute=recompute)
    old, new = wanted.old.definition, wanted.new.definition
    stream_load = _plan_stream_load(settings, wanted)
    began = time.monotonic()
    looked = new.load_obstacle or look_at_log(spark(), settings, wanted.new)
    load, why = (None, looked) if isinstance(looked, str) else (looked, "")
    return VersionPlan(
        version=new.name,
        beside=wanted.beside,
        old_bundle=wanted.old.id,
        new_bundle=wanted.new.id,
        changes=wanted.changes,
        diff=wanted.old.renamed(pipeline).diff_to(wanted.new.renamed(pipeline)),
        columns_added=tuple(name for name in new.result_columns if name not in old.result_columns),
        columns_gone=tuple(name for name in old.result_columns if name not in new.result_columns),
        load=load,
        streamed_whole=why,
        stream_load=stream_load,
        look_s=round(time.monotonic() - began, 1),
        archive_left=_archive_left(settings, pipeline),
        free_bytes=shutil.disk_usage(settings.home).free,
        change_file=str(changes_path(settings, new.name)),
        begun=wanted.begun is not None,
        different=wanted.way.reasons,
    )


def require_readable(settings: Settings, pipeline: str, *, recompute: bool) -> None:
    """Check that a new version can read what it depends on, before anything of it is stored.

    Raises:
        RequestError, DefinitionError: see `begin.find_wanted`.
        LogGapError: what a fold depends on exists no longer.
    """
    _plan_stream_load(settings, find_wanted(settings, pipeline, recompute=recompute))


def _plan_stream_load(settings: Settings, wanted: VersionRequest) -> StreamLoadPlan | None:
    new = wanted.new.definition
    if new.load_obstacle is None:
        return None
    plan = plan_stream_load(settings, new)
    home = settings.pipeline(wanted.beside)
    plan.require_same_past(Timeline.load(home, head_path(home)[0].timeline), new)
    return plan


def _archive_left(settings: Settings, pipeline: str) -> timedelta | None:
    clocks = [topic.unarchived.left for topic in view_retention(settings, pipeline, utc_now()).topics]
    return min((left for left in clocks if left is not None), default=None)
