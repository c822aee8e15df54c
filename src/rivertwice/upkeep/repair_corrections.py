"""Corrections that lost rows: find their backfills; write the chunks again, from own files or computed by the stored plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill.audit import read_audit
from rivertwice.backfill.compute import chunks_computed
from rivertwice.backfill.model import BackfillPlan
from rivertwice.backfill.store import (
    ChunkRecord,
    app_of,
    declared_rows,
    held_rows,
    list_backfills,
    load_plan,
    write_chunk,
)
from rivertwice.core.errors import RequestError, RivertwiceError, TableDamageError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Progress
from rivertwice.definition.bundle import load_bundle_definition
from rivertwice.definition.definition import Definition
from rivertwice.savepoint.feed import session_of
from rivertwice.storage import delta
from rivertwice.storage.delta_mend import delete_where, read_files, unnamed_files
from rivertwice.timeline.intact import CORRECTIONS
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served_rows import publications_of
from rivertwice.timeline.serving import WITHDRAWN, Publication, to_epoch_ms, withdrawn_rows
from rivertwice.upkeep.damage import Damage, LostCorrections

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lost_chunks(
    chunks: int, declared: Mapping[int, int], held: Mapping[int, int], expected: int
) -> tuple[list[int], list[int]]:
    """Return which chunks of a backfill are gone, and which ones may have lost a part. Pure.

    Args:
        chunks: of the plan.
        declared: chunk to the number of rows in its commit; commits are dropped after some hours.
        held: chunk to the number of rows in the table.
        expected: number of rows of the whole backfill.
    """
    if sum(held.values()) >= expected:
        return [], []
    gone = [chunk for chunk in range(chunks) if not held.get(chunk) and declared.get(chunk) != 0]
    partial = [chunk for chunk, rows in sorted(held.items()) if rows < declared.get(chunk, rows)]
    if not gone and not partial:  # their commits were dropped long ago: any of these may lack some
        partial = [chunk for chunk in sorted(held) if chunk not in declared]
    return gone, partial


def find_lost_corrections(home: PipelineHome, view: PipelineHome) -> list[LostCorrections]:
    """Return the backfills that have fewer rows than they computed; `view` reads as the tables will once they are mended."""
    published = {publication.backfill: publication for publication in publications_of(read_sequence(view))}
    losses: list[LostCorrections] = []
    for backfill in dict.fromkeys([*published, *list_backfills(home)]):
        expected = _expected(home, published.get(backfill), backfill)
        held = held_rows(view, backfill) if expected else {}
        if expected is None or sum(held.values()) >= expected:
            continue
        plan = _plan_of(home, backfill)
        count = len(plan.chunks) if plan is not None else 1 + max(held, default=0)
        gone, partial = lost_chunks(count, declared_rows(view, backfill), held, expected)
        rows = None if partial else _own_rows(home, view, backfill, gone, expected - sum(held.values()))
        seq = published[backfill].seq if backfill in published else None
        losses.append(LostCorrections(backfill, seq, expected, sum(held.values()), gone, partial, plan, rows))
    return losses


def _expected(home: PipelineHome, publication: Publication | None, backfill: str) -> int | None:
    """Return how many rows a backfill computed, by its publication or its passed audit; None: not known."""
    if publication is not None and publication.rows is not None:
        return publication.rows
    audit = read_audit(home, backfill)
    return int(audit["rows"]) if audit is not None and audit["passed"] else None


def _plan_of(home: PipelineHome, backfill: str) -> BackfillPlan | None:
    try:
        return load_plan(home, backfill)
    except RequestError:
        return None


def _own_rows(
    home: PipelineHome, view: PipelineHome, backfill: str, gone: Sequence[int], short: int
) -> pa.Table | None:
    """Return the rows of lost chunks from files that no commit names, if there are as many as are missing."""
    place, mended = home.tables.corrections, view.tables.corrections
    if not isinstance(place, Path) or not isinstance(mended, Path):
        return None
    unnamed_rows = read_files(place, unnamed_files(place, mended), ("_backfill", "_chunk"))
    if unnamed_rows is None:
        return None
    lost_rows = unnamed_rows.filter(
        pc.and_(
            pc.equal(unnamed_rows["_backfill"], backfill),
            pc.is_in(unnamed_rows["_chunk"], pa.array(gone, unnamed_rows["_chunk"].type)),
        )
    )
    return lost_rows if lost_rows.num_rows == short else None


def describe_lost_corrections(pipeline: str, loss: LostCorrections) -> Damage:
    """Return the damage of a backfill that lost rows, in words. Pure."""
    ranges = () if loss.plan is None else loss.plan.ranges
    span = "" if not ranges else f" [{to_iso(from_ms(ranges[0][0]))}, {to_iso(from_ms(ranges[-1][1]))})"
    what = f"backfill {loss.backfill} has {loss.found} of {loss.expected} rows"
    meaning = (
        f"windows{span} would be served without them; `served` is not rebuilt"
        if loss.seq is not None
        else f"it is not published, so nothing is served of it; its windows{span} cannot be published"
    )
    chunks = ", ".join(map(str, [*loss.gone, *loss.partial][:8]))
    if loss.rows is not None:
        cure = f"chunks {chunks} are written again from their own data files, which are still there, proved by their number"
    elif loss.plan is not None:
        cure = (
            f"chunks {chunks} are computed again with Spark from the stored plan, proved by the number that was audited"
        )
    else:
        cure = (
            f"cannot be repaired: its plan is not stored here; put the files back from a backup, or publish the same windows once more: "
            f"`rivertwice repair {pipeline} --yes --accept-loss {CORRECTIONS}`, then `rivertwice backfill run {pipeline} --from ... --to ...`"
        )
    return Damage(CORRECTIONS, what, meaning, cure, curable=loss.rows is not None or loss.plan is not None)


def write_lost_corrections(
    settings: Settings,
    home: PipelineHome,
    lost: Sequence[LostCorrections],
    progress: Progress,
    spark: SparkSession | None,
) -> tuple[list[str], list[str]]:
    """Write lost chunks again; the tables' logs are whole by now. Return what was done, and what could not be done and why."""
    done: list[str] = []
    failed: list[str] = []
    for loss in lost:
        if loss.plan is None:
            continue
        try:
            rows = _write(settings, home, loss, loss.plan, progress, spark)
        except RivertwiceError as error:
            failed.append(f"backfill {loss.backfill} could not be computed again: {error}")
            continue
        done.append(f"{CORRECTIONS}: {rows} rows of backfill {loss.backfill} written again")
        progress(done[-1])
    return done, failed


def _write(
    settings: Settings,
    home: PipelineHome,
    loss: LostCorrections,
    plan: BackfillPlan,
    progress: Progress,
    spark: SparkSession | None,
) -> int:
    definition = load_bundle_definition(home.bundles, plan.bundle)
    declared, held = declared_rows(home, plan.id), held_rows(home, plan.id)
    if loss.rows is not None:
        computed = [(_record(definition, rows, chunk), rows) for chunk, rows in _by_chunk(loss.rows, loss.gone)]
    else:
        wanted = [chunk for chunk in plan.chunks if chunk.index in {*loss.gone, *loss.partial}]
        progress(f"computing {len(wanted)} chunks of backfill {plan.id} again")
        session = spark or session_of(settings, definition)
        computed = [(record, rows) for _, rows, record in chunks_computed(session, settings, plan, definition, wanted)]
    remaining = sum(count for chunk, count in held.items() if chunk not in loss.partial)
    total = remaining + sum(record.rows for record, _ in computed)
    differing = [record.chunk for record, _ in computed if record.rows != declared.get(record.chunk, record.rows)]
    if total != loss.expected or differing:
        message = (
            f"its chunks {', '.join(str(record.chunk) for record, _ in computed[:8])} gave {total} rows together with those that are there, its "
            f"audit counted {loss.expected}: the log is not what it was, so nothing of it was written; publish the same windows once more "
            f"(`rivertwice backfill run {plan.pipeline} --from ... --to ...`)"
        )
        raise TableDamageError(message)
    applied = delta.applied_version(home.tables.corrections, app_of(plan.id))
    for record, rows in computed:
        if held.get(record.chunk) and isinstance(home.tables.corrections, Path):
            delete_where(home.tables.corrections, {"_backfill": plan.id, "_chunk": record.chunk})
        again = applied is not None and applied >= record.chunk
        write_chunk(home, plan, definition, rows, record, again=again, declared=record.chunk in declared)
    return sum(record.rows for record, _ in computed)


def _by_chunk(rows: pa.Table, chunks: Sequence[int]) -> list[tuple[int, pa.Table]]:
    """Return each chunk's rows as they were computed, without the columns that the table adds."""
    names = [name for name in rows.schema.names if not name.startswith("_") or name == WITHDRAWN]
    return [(chunk, rows.filter(pc.equal(rows["_chunk"], chunk)).select(names)) for chunk in chunks]


def _record(definition: Definition, rows: pa.Table, chunk: int) -> ChunkRecord:
    """Return the record that a chunk's commit had, computed from its rows."""
    counted: Counter[int] = Counter()
    if definition.count_column is not None:
        remaining = rows.filter(pa.array(~withdrawn_rows(rows)))
        values: list[Any] = remaining[definition.count_column].to_pylist()
        for start, count in zip(to_epoch_ms(remaining[definition.window.start_column]).tolist(), values, strict=True):
            counted[start] += count or 0
    return ChunkRecord(chunk, rows.num_rows, counted)
