"""Repair damage: each step is repeatable, so a repair that was killed is run again.

1. Keep the stream at rest: drain it. The marker stops the agent from starting it while this process lives.
2. Set torn log entries aside, with empty commits in their places, and torn checkpoints. Take data files that are not whole out of
   the tables. Then set damaged files of the archive aside, and read their records from Kafka again: later steps may need them.
3. Write lost rows again: from own data files, or computed again from the recorded ranges. Each is proved before it is written.
   Lost corrections are left to a backfill.
4. Copy the ledger's rows again from the changelog's commits; rebuild `served`.
5. Check again: what is still damaged is named.
6. Set the intent to running again, if it was running.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rivertwice.core import PipelineHome, Progress, RequestError, RivertwiceError, Settings, TableDamageError, utc_now
from rivertwice.definition import Definition, load_bundle_definition
from rivertwice.savepoint import (
    DRAIN_S,
    Savepoint,
    beginning_of,
    drain_stream,
    is_on_path,
    load_state_definition,
    make_empty_checkpoint,
    only_operation,
    plan_feed,
    replay_recorded,
    replay_source,
    require_recorded,
    session_of,
    survey_savepoints,
)
from rivertwice.storage import Table, TableCare, put_json_if_absent
from rivertwice.stream import marker_of, stream_app
from rivertwice.timeline import (
    LEDGER_KEY,
    Intent,
    LedgerRow,
    Segment,
    StreamTable,
    Timeline,
    forget_cursor,
    head_definition,
    heal_ledger,
    path_of,
    read_ledger,
    rebuild_served,
    select_on_path,
    write_intent,
)
from rivertwice.upkeep.damage import Damage, Findings, LostRows
from rivertwice.upkeep.damage_search import all_tables, find_damage, require_damage_on_s3
from rivertwice.upkeep.repair_archives import look_at_archives, repair_archives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Compute lost rows again from the recorded ranges: results by a replay that compares digests, side rows by reading again.


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
        results = [lost_batch for lost_batch in timeline_batches if lost_batch.table == StreamTable.CHANGELOG]
        for part, compute in (
            (results, _replayed),
            ([lost_batch for lost_batch in timeline_batches if lost_batch.table != StreamTable.CHANGELOG], _read_again),
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
            base.download(scratch)
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
    from rivertwice.stream import read_dead, read_late

    settings, home, timeline = work.settings, work.home, work.timeline
    line = Timeline.load(home, timeline)
    done = []
    for lost_batch in work.lost:
        row = lost_batch.row
        definition = load_bundle_definition(home.bundles, row.bundle)
        session = work.session(definition)
        work.progress(f"reading the ranges of batch {row.batch} again for its {lost_batch.table}")
        if lost_batch.table == StreamTable.DEAD:
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
                f"{lost_batch.expected}: the log or the definition has changed; `rivertwice reconcile "
                f"{home.root.name}` names what differs"
            )
            raise TableDamageError(message)
        done.append(replace(lost_batch, rows=rows))
    return done


REPAIRED = "repaired"


@dataclass(frozen=True)
class RepairReport:
    """What a repair did.

    Attributes:
        done: what was done, in order.
        failed: what could not be computed again, and why.
        aside: folder with the damaged files; None: there were none.
    """

    found: Sequence[Damage]
    done: Sequence[str]
    failed: Sequence[str]
    left: Sequence[Damage]
    aside: str | None
    running: bool


def repair(
    settings: Settings,
    pipeline: str,
    *,
    now: datetime,
    accept_loss: Collection[str] = (),
    erased: Mapping[str, Sequence[str]] | None = None,
    progress: Progress,
    spark: SparkSession | None = None,
    drain_seconds: float = DRAIN_S,
) -> RepairReport:
    """Repair a pipeline's tables, as far as that is possible.

    Args:
        now: the present instant, for the folder of what is set aside.
        accept_loss: tables whose torn commits are dropped although their content cannot be restored.
        erased: topic to the erasures that replaced records of its archive; none: its records were never erased.
        spark: the session to use; None starts the pipeline's own, if something must be computed.
        drain_seconds: how long to wait for a running driver.

    Raises:
        LostRaceError: a restore or another repair runs.
        ServiceError: the driver did not stop in time.
    """
    home = settings.pipeline(pipeline)
    by = f"repair-{secrets.token_hex(4)}"
    with only_operation(home):
        intent = Intent.load(home)
        wanted = intent is not None and intent.desired == "running"
        drain_stream(home, by, wanted, drain_seconds, progress)
        put_json_if_absent(home.drain, marker_of(by, utc_now()))
        try:
            report = _repair(settings, home, now, accept_loss, erased or {}, progress, spark, running=wanted)
        finally:
            home.drain.unlink(missing_ok=True)
            if wanted:
                write_intent(home, "running", by=by, now=utc_now())
    return report


def _repair(
    settings: Settings,
    home: PipelineHome,
    now: datetime,
    accept_loss: Collection[str],
    erased: Mapping[str, Sequence[str]],
    progress: Progress,
    spark: SparkSession | None,
    *,
    running: bool,
) -> RepairReport:
    findings = find_damage(home, now)
    require_damage_on_s3(home, findings)
    _require_damaged(home, findings, accept_loss)
    aside = home.root / "damaged" / now.strftime("%Y%m%dT%H%M%SZ")
    done = _mend(home, findings, aside, accept_loss, now)  # which topics are read is in the tables
    rotten, rot = look_at_archives(settings, home, now, erased)
    again, unread = repair_archives(settings, home, aside, now, erased, progress) if rotten else ([], [])
    done += again
    computed, failed = recompute(settings, home, findings.lost, progress, spark)
    for lost_batch in sorted(
        [*(entry for entry in findings.lost if entry.rows is not None), *computed],
        key=lambda entry: (entry.row.batch, entry.table),
    ):
        done.append(_write(home, lost_batch))
        progress(done[-1])
    failed = [*unread, *failed]
    if findings.anything:
        copied = heal_ledger(home, whole=True)
        done += [f"ledger: {copied} rows copied from the changelog's commits"] if copied else []
        forget_cursor(home)
    left = [*find_damage(home, now).damages, *(look_at_archives(settings, home, now, erased)[1] if rot else [])]
    before = [*findings.damages, *rot]
    is_servable = not any(
        damage.table in (StreamTable.CHANGELOG, StreamTable.CORRECTIONS, "sequence") for damage in left
    )
    definition = head_definition(home) if findings.anything and is_servable else None
    if definition is not None:
        rebuild_served(home, definition, force=True)
        done.append("served: rebuilt")
    return RepairReport(before, done, failed, left, str(aside) if aside.exists() else None, running)


def _require_damaged(home: PipelineHome, findings: Findings, accept_loss: Collection[str]) -> None:
    unknown = [name for name in accept_loss if name not in findings.torn]
    if unknown:
        torn = ", ".join(findings.torn) or "none"
        message = (
            f"the log of table {unknown[0]!r} has no torn commit whose loss could be accepted; torn are: {torn}; "
            f"`rivertwice admin repair {home.root.name}` names what is damaged"
        )
        raise RequestError(message)


def _mend(
    home: PipelineHome, findings: Findings, aside: Path, accept_loss: Collection[str], now: datetime
) -> list[str]:
    done, tables = [], all_tables(home)
    # A torn commit of corrections has nothing that a backfill cannot compute again, so its log is mended in any case.
    hopeless = {damage.table for damage in findings.damages if not damage.curable} - {
        StreamTable.CORRECTIONS,
        *accept_loss,
    }
    for name, entries in findings.torn.items():
        if name in hopeless and not all(entry.is_checkpoint for entry in entries):
            continue
        mended = TableCare(tables[name]).mend_log(entries, aside / name, now)
        done.append(f"{name}: {mended}")
        if name in findings.adopted:
            rows = findings.adopted[name]
            Table(tables[name]).append(
                rows,
                transactions=None if name == StreamTable.LEDGER else _numbered(home, name, rows),
                metadata={REPAIRED: {"rows": rows.num_rows}},
            )
            done.append(f"{name}: {rows.num_rows} rows written again from its own data files")
    for name, files in findings.broken.items():
        place = tables[name]
        assert isinstance(place, Path), "data files in an object store are not checked"
        dropped = TableCare(place).drop_files([Path(path) for path, _ in files], aside / name)
        done.append(f"{name}: {dropped} data files taken out")
    return done


def _numbered(home: PipelineHome, name: str, rows: pa.Table) -> dict[str, int] | None:
    """Return the transaction that rows of a sequence are committed with; none if newer ones exist already."""
    from rivertwice.timeline import amendments_app as app_of_amendments
    from rivertwice.timeline import sequence_app as app_of_sequence

    app = app_of_amendments(home) if name == "amendments" else app_of_sequence(home)
    newest = max(rows["seq"].to_pylist())
    return {app: newest} if (Table(getattr(home.tables, name)).applied_version(app) or 0) < newest else None


def _write(home: PipelineHome, lost_batch: LostRows) -> str:
    """Write a batch's rows again, in one commit; its rows that exist are taken out first."""
    assert lost_batch.rows is not None, "only rows that exist are written"
    row, place = lost_batch.row, getattr(home.tables, lost_batch.table)
    app = stream_app(row.pipeline, row.timeline)
    stamp = (row.timeline, row.batch)
    if Table(place).rows_by(("_timeline", "_batch"), above=("_batch", row.batch - 1)).get(stamp, 0):
        TableCare(place).delete_batch(row.timeline, row.batch)
    if lost_batch.table == StreamTable.CHANGELOG:
        from rivertwice.definition import load_bundle_definition
        from rivertwice.stream import changelog_rows

        start = load_bundle_definition(home.bundles, row.bundle).window.start_column
        rows, key, note = changelog_rows(lost_batch.rows, row.timeline, row.batch, start), LEDGER_KEY, row.to_json()
    else:
        from rivertwice.stream import encode_ranges

        kind = "dead" if lost_batch.table == StreamTable.DEAD else "late"
        app = f"{app}/{kind}"
        rows, key, note = lost_batch.rows, kind, {"app": app, "batch": row.batch, "ranges": encode_ranges(row.parts())}
    applied = Table(place).applied_version(app)
    transactions = {app: row.batch} if applied is None or applied < row.batch else None
    partition_by = ["_day"] if lost_batch.table == StreamTable.CHANGELOG else []
    Table(place, partition_by=partition_by).append(rows, transactions=transactions, metadata={key: note})
    return f"{lost_batch.table}: {rows.num_rows} rows of batch {row.batch} of {row.timeline} written again"
