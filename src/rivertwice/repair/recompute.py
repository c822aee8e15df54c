"""Compute lost rows again from the recorded ranges: results by a replay that compares digests, side rows by reading again."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import RivertwiceError, TableDamageError
from rivertwice.pipeline.bundle import load_bundle_definition
from rivertwice.pipeline.definition import Definition
from rivertwice.progress import Progress
from rivertwice.repair.model import LostRows
from rivertwice.savepoint.beginning import beginning_of, make_empty_checkpoint
from rivertwice.savepoint.bundles import load_state_definition
from rivertwice.savepoint.catalogue import Savepoint, download, survey_savepoints
from rivertwice.savepoint.feed import plan_feed, replay_source
from rivertwice.savepoint.plan import is_on_path, require_recorded
from rivertwice.savepoint.replay import replay_recorded
from rivertwice.savepoint.sessions import session_of
from rivertwice.timeline.intact import CHANGELOG, DEAD
from rivertwice.timeline.ledger import LedgerRow, read_ledger
from rivertwice.timeline.lineage import Segment, load_timeline, path_of, select_on_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class _Work:
    """Lost batches of one timeline, and what is needed to compute them again; `spark` None starts the pipeline's session."""

    settings: Settings
    home: PipelineHome
    timeline: str
    lost: Sequence[LostRows]
    progress: Progress
    spark: SparkSession | None

    def session(self, definition: Definition) -> SparkSession:
        """Return the session for a definition."""
        return self.spark or session_of(self.settings, definition)


def recompute(
    settings: Settings,
    home: PipelineHome,
    lost: Sequence[LostRows],
    progress: Progress,
    spark: SparkSession | None = None,
) -> tuple[list[LostRows], list[str]]:
    """Return lost batches with the rows that were computed again, and which ones could not be computed and why.

    No table is written. Batches that have their rows already are left out.
    """
    wanted = [lost_batch for lost_batch in lost if lost_batch.rows is None]
    done: list[LostRows] = []
    failed: list[str] = []
    for timeline in sorted({lost_batch.row.timeline for lost_batch in wanted}):
        timeline_batches = [lost_batch for lost_batch in wanted if lost_batch.row.timeline == timeline]
        results = [lost_batch for lost_batch in timeline_batches if lost_batch.table == CHANGELOG]
        for part, compute in (
            (results, _replayed),
            ([lost_batch for lost_batch in timeline_batches if lost_batch.table != CHANGELOG], _read_again),
        ):
            if not part:
                continue
            numbers = ", ".join(f"{lost_batch.table} {lost_batch.row.batch}" for lost_batch in part[:8])
            try:
                done += compute(_Work(settings, home, timeline, part, progress, spark))
            except RivertwiceError as error:
                failed.append(f"batches of {timeline} ({numbers}) could not be computed again: {error}")
    return done, failed


def select_bases(savepoints: Sequence[Savepoint], path: Sequence[Segment], first: int) -> list[Savepoint]:
    """Return the savepoints that a batch can be replayed from, nearest first; proved or not: all digests are compared. Pure."""
    fitting = [
        savepoint
        for savepoint in savepoints
        if is_on_path(savepoint.manifest, path) and savepoint.manifest.batch < first
    ]
    return sorted(fitting, key=lambda savepoint: (savepoint.manifest.batch, savepoint.id), reverse=True)


def _replayed(work: _Work) -> list[LostRows]:
    home, timeline, lost = work.home, work.timeline, work.lost
    path = path_of(home, timeline)
    rows = select_on_path(read_ledger(home), path)
    first, last = min(lost_batch.row.batch for lost_batch in lost), max(lost_batch.row.batch for lost_batch in lost)
    bases = [*select_bases(survey_savepoints(home).sound, path, first), beginning_of(home, timeline)]
    refusals = []
    for base in bases:
        try:
            replayed = _replay_from(work, base, rows, last)
        except RivertwiceError as error:
            refusals.append(f"from {base.manifest.savepoint}: {error}")
            work.progress(refusals[-1])
            continue
        return [replace(lost_batch, rows=replayed[lost_batch.row.batch]) for lost_batch in lost]
    message = f"no savepoint and not the beginning gave the recorded rows ({'; '.join(refusals)})"
    raise TableDamageError(message)


def _replay_from(work: _Work, base: Savepoint, rows: Sequence[LedgerRow], last: int) -> dict[int, pa.Table]:
    settings, home, progress, manifest = work.settings, work.home, work.progress, base.manifest
    definition = load_state_definition(home, manifest)
    scratch = home.scratch / f"repair-{secrets.token_hex(4)}"
    replayed: dict[int, pa.Table] = {}
    try:
        if manifest.batch < 0:
            make_empty_checkpoint(scratch)
        else:
            require_recorded(manifest, rows)
            download(base, scratch)
        plan = plan_feed(settings, home, definition, manifest, rows, until=last)
        progress(f"replaying {len(plan.rows)} recorded batches after batch {manifest.batch} ({manifest.savepoint})")
        session = work.session(definition)
        with replay_source(
            session, settings, definition, manifest, plan, name=scratch.name, progress=progress
        ) as topics:
            replay_recorded(
                session,
                settings,
                definition,
                scratch,
                plan.rows,
                before=rows,
                topic_override=topics,
                progress=progress,
                keep=lambda row, table: replayed.update({row.batch: table}),
            )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return replayed


def _read_again(work: _Work) -> list[LostRows]:
    from rivertwice.stream.dead import read_dead
    from rivertwice.stream.late import read_late

    settings, home, timeline = work.settings, work.home, work.timeline
    line = load_timeline(home, timeline)
    done = []
    for lost_batch in work.lost:
        row = lost_batch.row
        definition = load_bundle_definition(home.bundles, row.bundle)
        session = work.session(definition)
        work.progress(f"reading the ranges of batch {row.batch} again for its {lost_batch.table}")
        if lost_batch.table == DEAD:
            counts = {topic: topic_counts.bad for topic, topic_counts in row.by_topic.items() if topic_counts.bad}
            counts = counts or dict.fromkeys(definition.topics, row.bad)
            pieces = read_dead(session, settings, line, definition, row.batch, row.parts(), counts)
        else:
            streams = [source.topic for source in definition.streams.values()]
            pieces = read_late(session, settings, line, definition, row.batch, row.parts(), lost_batch.late_ms, streams)
        rows = pa.concat_tables(pieces)
        if rows.num_rows != lost_batch.expected:
            message = (
                f"reading the ranges of batch {row.batch} of {timeline} again gave {rows.num_rows} {lost_batch.table}, the ledger counted "
                f"{lost_batch.expected}: the log or the definition is not what it was, so nothing of it was written; `rivertwice reconcile "
                f"{home.root.name}` names what differs"
            )
            raise TableDamageError(message)
        done.append(replace(lost_batch, rows=rows))
    return done
