"""Repair damage: each step is repeatable, so a repair that was killed is run again.

1. Keep the stream at rest: drain it. The marker stops the agent from starting it while this process lives.
2. Set torn log entries aside, with empty commits in their places, and torn checkpoints. Take data files that are not whole out of
   the tables. Then set damaged files of the archive aside, and read their records from Kafka again: later steps may need them.
3. Write lost rows again: from own data files, or computed again from the recorded ranges (corrections: from the backfill's
   stored plan). Each is proved before it is written.
4. Copy the ledger's rows again from the changelog's commits; rebuild `served`.
5. Check again: what is still damaged is named.
6. Set the intent to running again, if it was running.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import RequestError
from rivertwice.instants import utc_now
from rivertwice.progress import Progress
from rivertwice.repair.archives import look_at_archives, repair_archives
from rivertwice.repair.corrections import write_lost_corrections
from rivertwice.repair.find import all_tables, find_damage, require_damage_on_s3
from rivertwice.repair.model import Damage, Findings, LostRows
from rivertwice.repair.recompute import recompute
from rivertwice.savepoint.operations.drain import DRAIN_S, drain_stream
from rivertwice.savepoint.operations.record import only_operation
from rivertwice.store import delta
from rivertwice.store.delta_counts import rows_by
from rivertwice.store.delta_log import are_checkpoints
from rivertwice.store.delta_mend import delete_rows, describe_mended, drop_files, mend_log
from rivertwice.store.files import put_json_if_absent
from rivertwice.stream.at_rest import marker_of
from rivertwice.stream.seal import app_of
from rivertwice.timeline.intact import CHANGELOG, CORRECTIONS, DEAD, LEDGER, forget_cursor
from rivertwice.timeline.intent import read_intent, write_intent
from rivertwice.timeline.ledger import METADATA_KEY, heal_ledger
from rivertwice.timeline.lineage import head_definition
from rivertwice.timeline.served import rebuild_served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPAIRED = "repaired"


@dataclass(frozen=True)
class RepairReport:
    """What a repair did.

    Attributes:
        found: what was damaged before.
        done: what was done, in order.
        failed: what could not be computed again, and why.
        left: what is still damaged.
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
        settings: where everything is stored.
        pipeline: its name.
        now: the present instant, for the folder of what is set aside.
        accept_loss: tables whose torn commits are given up though their content cannot be restored.
        erased: topic to the erasures that replaced records of its archive; none: its records were never erased.
        progress: is informed of every step.
        spark: the session to use; None starts the pipeline's own, if something must be computed.
        drain_seconds: how long to wait for a running driver.

    Raises:
        LostRaceError: a restore or another repair runs.
        ServiceError: the driver did not stop in time.
    """
    home = settings.pipeline(pipeline)
    by = f"repair-{secrets.token_hex(4)}"
    with only_operation(home):
        intent = read_intent(home)
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
    again, unwritten = write_lost_corrections(settings, home, findings.corrections, progress, spark)
    done, failed = [*done, *again], [*unread, *failed, *unwritten]
    if findings.anything:
        copied = heal_ledger(home, whole=True)
        done += [f"ledger: {copied} rows copied from the changelog's commits"] if copied else []
        forget_cursor(home)
    left = [*find_damage(home, now).damages, *(look_at_archives(settings, home, now, erased)[1] if rot else [])]
    before = [*findings.damages, *rot]
    is_servable = not any(damage.table in (CHANGELOG, CORRECTIONS, "sequence") for damage in left)
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
            f"the log of table {unknown[0]!r} has no torn commit whose loss could be accepted; torn are: {torn}; nothing was done; "
            f"`rivertwice repair {home.root.name}` names what is damaged"
        )
        raise RequestError(message)


def _mend(
    home: PipelineHome, findings: Findings, aside: Path, accept_loss: Collection[str], now: datetime
) -> list[str]:
    done, tables = [], all_tables(home)
    hopeless = {damage.table for damage in findings.damages if not damage.curable} - set(accept_loss)
    for name, entries in findings.torn.items():
        if name in hopeless and not are_checkpoints(entries):
            continue
        mend_log(tables[name], entries, aside / name, now)
        done.append(f"{name}: {describe_mended(entries)}")
        if name in findings.adopted:
            rows = findings.adopted[name]
            delta.append(
                tables[name],
                rows,
                transactions=None if name == LEDGER else _numbered(home, name, rows),
                metadata={REPAIRED: {"rows": rows.num_rows}},
            )
            done.append(f"{name}: {rows.num_rows} rows written again from its own data files")
    for name, files in findings.broken.items():
        place = tables[name]
        assert isinstance(place, Path), "data files on S3 are not checked"
        dropped = drop_files(place, [Path(path) for path, _ in files], aside / name)
        done.append(f"{name}: {dropped} data files taken out")
    return done


def _numbered(home: PipelineHome, name: str, rows: pa.Table) -> dict[str, int] | None:
    """Return the transaction that rows of a sequence are committed with; none if newer ones exist already."""
    from rivertwice.deadletters.amendments import app_of as app_of_amendments
    from rivertwice.timeline.sequence import app_of as app_of_sequence

    app = app_of_amendments(home) if name == "amendments" else app_of_sequence(home)
    newest = max(rows["seq"].to_pylist())
    return {app: newest} if (delta.applied_version(getattr(home.tables, name), app) or 0) < newest else None


def _write(home: PipelineHome, lost_batch: LostRows) -> str:
    """Write a batch's rows again, in one commit; its rows that exist are taken out first."""
    assert lost_batch.rows is not None, "only rows that exist are written"
    row, place = lost_batch.row, getattr(home.tables, lost_batch.table)
    app = app_of(row.pipeline, row.timeline)
    stamp = (row.timeline, row.batch)
    if rows_by(place, ("_timeline", "_batch"), above=("_batch", row.batch - 1)).get(stamp, 0):
        delete_rows(place, row.timeline, row.batch)
    if lost_batch.table == CHANGELOG:
        from rivertwice.pipeline.bundle import load_bundle_definition
        from rivertwice.stream.result_rows import changelog_rows

        start = load_bundle_definition(home.bundles, row.bundle).window.start_column
        rows, key, note = changelog_rows(lost_batch.rows, row.timeline, row.batch, start), METADATA_KEY, row.to_json()
    else:
        from rivertwice.stream.side import encode_ranges

        kind = "dead" if lost_batch.table == DEAD else "late"
        app = f"{app}/{kind}"
        rows, key, note = lost_batch.rows, kind, {"app": app, "batch": row.batch, "ranges": encode_ranges(row.parts())}
    applied = delta.applied_version(place, app)
    transactions = {app: row.batch} if applied is None or applied < row.batch else None
    partition_by = ["_day"] if lost_batch.table == CHANGELOG else []
    delta.append(place, rows, transactions=transactions, metadata={key: note}, partition_by=partition_by)
    return f"{lost_batch.table}: {rows.num_rows} rows of batch {row.batch} of {row.timeline} written again"
