"""Find damage: torn logs, data files that are not whole, batches whose rows are not what was committed. Changes nothing.

A damaged table cannot be counted. So it is copied as it will be once mended (its log is copied, its data files are linked),
and the copy is compared with the ledger: every batch of every timeline, the changelog by digest.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill import list_backfills, read_audit
from rivertwice.core import PipelineHome, Place, RequestError, from_ms, is_remote, to_iso
from rivertwice.definition import load_bundle_definition
from rivertwice.storage import Table, TableCare, TornEntry
from rivertwice.stream import stream_app
from rivertwice.timeline import (
    LEDGER_KEY,
    CommittedBatches,
    LedgerRow,
    Publication,
    StreamTable,
    Timeline,
    digest_rows,
    expected_rows,
    find_holes,
    from_table,
    late_watermarks_ms,
    path_of,
    path_semantics,
    publications_of,
    read_ledger,
    read_sequence,
    select_head,
    select_on_path,
    select_serving,
    stream_tables,
    tables_of,
)
from rivertwice.upkeep.damage import AGAIN, PROOF, Damage, Findings, LostRows

_DERIVED = {
    "served": "readers see an error until it is rebuilt",
    "provisional": "readers see an error until it is rebuilt",
}
_RESULTS = ("verdicts", "causes", "reconciles", "seals", "quality")


def all_tables(home: PipelineHome) -> dict[str, Place]:
    """Return the tables of a pipeline, by name."""
    return {**stream_tables(home), **tables_of(home.tables)}


@contextmanager
def as_mended(
    home: PipelineHome, now: datetime
) -> Iterator[tuple[PipelineHome, dict[str, Sequence[TornEntry]], dict[str, Sequence[tuple[str, str]]]]]:
    """Yield a home that reads as this one will once its logs are mended, the torn entries, and the files not whole."""
    with tempfile.TemporaryDirectory(prefix="rivertwice-repair-") as folder:
        shared = Path(folder)
        torn: dict[str, Sequence[TornEntry]] = {}
        broken: dict[str, Sequence[tuple[str, str]]] = {}
        for name, table in all_tables(home).items():
            assert isinstance(table, Path), "tables in an object store have no folder"
            view = shared / "tables" / name
            view.parent.mkdir(parents=True, exist_ok=True)
            entries = TableCare(table).find_torn(decode=True)
            if entries:
                torn[name] = entries
            if not entries and not (files := Table(table).broken_files()):
                if table.exists():
                    view.symlink_to(table)
                continue
            TableCare(table).copy_as_mended(entries, [], view, now)
            files = (
                [(table / path.relative_to(view), how) for path, how in Table(view).broken_files()]
                if entries
                else files
            )
            if files:
                broken[name] = [(str(path), how) for path, how in files]
                _again(table, entries, [path for path, _ in files], view, now)
        for name in ("timelines", "bundles"):
            place = home.timeline_records if name == "timelines" else home.bundles
            if isinstance(place, Path) and place.exists():
                (shared / name).symlink_to(place)
        yield dataclasses.replace(home, shared=shared), torn, broken


def _again(table: Path, torn: Sequence[TornEntry], broken: Sequence[Path], view: Path, now: datetime) -> None:
    shutil.rmtree(view)
    TableCare(table).copy_as_mended(torn, broken, view, now)


def find_damage(home: PipelineHome, now: datetime) -> Findings:
    """Return the damages of a pipeline's tables.

    In an object store an object is written whole or not at all, so only what keeps a table from being opened is looked for: an object that was
    deleted or replaced.
    """
    if is_remote(home.tables.root):
        found = {name: TableCare(table).find_torn(decode=True) for name, table in all_tables(home).items()}
        torn = {name: entries for name, entries in found.items() if entries}
        return Findings(torn, damages=_describe_logs(home.root.name, torn, {}, on_s3=True))
    return _find_in_folders(home, now)


def require_damage_on_s3(home: PipelineHome, findings: Findings) -> None:
    """Refuse to look further at tables in an object store.

    Raises:
        RequestError: they can be opened, so a repair can do nothing about them.
    """
    if is_remote(home.tables.root) and not findings.anything:
        message = (
            f"the tables of {home.root.name} are in an object store ({home.tables.root}) and can be opened: there an object is written whole or not at "
            f"all, and rows that are gone were deleted; `rivertwice reconcile {home.root.name}` names them, a backfill "
            "computes them again"
        )
        raise RequestError(message)


def _find_in_folders(home: PipelineHome, now: datetime) -> Findings:
    with as_mended(home, now) as (view, torn, broken):
        lacking = {name for name, entries in torn.items() if not all(entry.is_checkpoint for entry in entries)}
        adopted = find_adopted(home, view, lacking)
        in_files = from_table(adopted[StreamTable.LEDGER]) if StreamTable.LEDGER in adopted else []
        known = {(row.timeline, row.batch) for row in [*_table_rows(view), *in_files]}
        rows = _with_commits(view, [*read_ledger(view), *in_files])
        copied = [row for row in rows if (row.timeline, row.batch) not in known]
        holes, lost = {}, []
        for timeline in Timeline.names(home):
            path = select_on_path(rows, path_of(home, timeline))
            own_batches = {row.batch for row in path if row.timeline == timeline}
            missing = [
                batch for batch in find_holes(CommittedBatches.of(path)) if batch > min(own_batches, default=batch)
            ]
            if StreamTable.LEDGER in lacking and own_batches:  # it may be the first ones that are gone
                missing = [*range(Timeline.load(home, timeline).first_batch, min(own_batches)), *missing]
            if missing:
                holes[timeline] = missing
            late = dict(zip((id(row) for row in path), late_watermarks_ms(path), strict=True))
            lost += _lost(home, view, [(row, late[id(row)]) for row in path if row.timeline == timeline])
        copied = copied if set(torn) & {StreamTable.LEDGER} or len(copied) > 1 else []
        damages = _describe(home.root.name, torn, broken, lost, holes, copied, adopted)
        damages += _find_lost_corrections(home, view)
        return Findings(torn, broken, lost, holes, copied, adopted, damages)


def _find_lost_corrections(home: PipelineHome, view: PipelineHome) -> list[Damage]:
    """Return the publications that the head serves rows of, and that have fewer rows than their backfills computed."""
    entries = read_sequence(view)
    head = select_head(entries)
    if head is None:
        return []
    serving = select_serving(publications_of(entries), path_semantics(home, path_of(home, head)))
    held = {str(name): count for (name,), count in Table(view.tables.corrections).rows_by(("_backfill",)).items()}
    counted = [(each, held.get(each.backfill, 0), _computed_rows(home, each)) for each in reversed(serving)]
    stored = list_backfills(home)
    return [
        _describe_lost_corrections(
            home.root.name, publication, found, expected, is_stored=publication.backfill in stored
        )
        for publication, found, expected in counted
        if found < expected
    ]


def _computed_rows(home: PipelineHome, publication: Publication) -> int:
    """Return how many rows a publication's backfill computed, by the publication or its audit; 0: not known."""
    if publication.rows is not None:
        return publication.rows
    audit = read_audit(home, publication.backfill)
    return int(audit["rows"]) if audit is not None and audit["passed"] else 0


def _table_rows(view: PipelineHome) -> list[LedgerRow]:
    table = Table(view.tables.ledger).read()
    return [] if table is None else from_table(table)


def _with_commits(view: PipelineHome, found: list[LedgerRow]) -> list[LedgerRow]:
    rows = list({(row.timeline, row.batch): row for row in found}.values())
    known = {(row.timeline, row.batch) for row in rows}
    carried = [LedgerRow.from_json(data) for _, data in Table(view.tables.changelog).commits(LEDGER_KEY)]
    return rows + [row for row in carried if (row.timeline, row.batch) not in known]


def _lost(home: PipelineHome, view: PipelineHome, rows: Sequence[tuple[LedgerRow, int]]) -> list[LostRows]:
    lost: list[LostRows] = []
    if not rows:
        return lost
    digests = _digests(view, [row for row, _ in rows])
    applied = Table(view.tables.changelog).applied_version(stream_app(rows[0][0].pipeline, rows[0][0].timeline))
    counts = {
        name: Table(getattr(view.tables, name)).rows_by(("_timeline", "_batch"))
        for name in (StreamTable.DEAD, StreamTable.LATE)
    }
    for row, late_ms in rows:
        for table, expected in expected_rows(row).items():
            stamp = (row.timeline, row.batch)
            held_count, is_same = (
                digests.get(stamp, (0, row.emitted == 0))
                if table == StreamTable.CHANGELOG
                else (counts[table].get(stamp, 0), True)
            )
            uncommitted = table == StreamTable.CHANGELOG and (applied is None or row.batch > applied)
            if held_count != expected or not is_same or uncommitted:
                lost.append(LostRows(table, row, late_ms, expected, held_count))
    unnamed_rows = {table: _unnamed_rows(home, view, table) for table in {lost_batch.table for lost_batch in lost}}
    return [
        dataclasses.replace(lost_batch, rows=_own_rows(home, view, lost_batch, unnamed_rows[lost_batch.table]))
        for lost_batch in lost
    ]


def _digests(view: PipelineHome, rows: Sequence[LedgerRow]) -> dict[tuple[str, int], tuple[int, bool]]:
    """Return the number of rows of each batch in the changelog, and whether their digest is the ledger's."""
    table = Table(view.tables.changelog).read()
    if table is None or not rows:
        return {}
    by_batch = {}
    timeline_rows = table.filter(pc.equal(table["_timeline"], rows[0].timeline)).sort_by("_batch")
    starts = {value: number for number, value in reversed(list(enumerate(timeline_rows["_batch"].to_pylist())))}
    ends = {value: number + 1 for number, value in enumerate(timeline_rows["_batch"].to_pylist())}
    for row in rows:
        if row.batch in starts:
            part = timeline_rows.slice(starts[row.batch], ends[row.batch] - starts[row.batch])
            columns = load_bundle_definition(view.bundles, row.bundle).result_columns
            by_batch[row.timeline, row.batch] = (part.num_rows, digest_rows(part, columns) == row.digest)
    return by_batch


def _unnamed_rows(
    home: PipelineHome, view: PipelineHome, table: str, columns: Sequence[str] = ("_timeline", "_batch")
) -> pa.Table | None:
    """Return the rows of data files that no readable commit names."""
    place, mended = getattr(home.tables, table), getattr(view.tables, table)
    return TableCare(place).unnamed_rows(mended, columns)


def _own_rows(
    home: PipelineHome, view: PipelineHome, lost_batch: LostRows, unnamed_rows: pa.Table | None
) -> pa.Table | None:
    """Return a batch's rows from files that no commit names, if they are what was committed; an empty table for no rows."""
    if lost_batch.expected == 0 and lost_batch.table == StreamTable.CHANGELOG:
        opened = Table(view.tables.changelog).open()
        columns = load_bundle_definition(home.bundles, lost_batch.row.bundle).result_columns
        return None if opened is None else opened.schema.empty_table().select(columns)
    if unnamed_rows is None:
        return None
    batch_rows = unnamed_rows.filter(
        pc.and_(
            pc.equal(unnamed_rows["_timeline"], lost_batch.row.timeline),
            pc.equal(unnamed_rows["_batch"], lost_batch.row.batch),
        )
    )
    if batch_rows.num_rows != lost_batch.expected or batch_rows.num_rows == 0:
        return None
    if lost_batch.table == StreamTable.CHANGELOG:
        columns = load_bundle_definition(home.bundles, lost_batch.row.bundle).result_columns
        return (
            batch_rows.select(columns)
            if digest_rows(batch_rows.select(columns), columns) == lost_batch.row.digest
            else None
        )
    return batch_rows if lost_batch.table == StreamTable.LATE or _are_in_range(batch_rows, lost_batch.row) else None


def _are_in_range(rows: pa.Table, row: LedgerRow) -> bool:
    """Say whether dead letters are at different addresses of the batch's ranges."""
    parts = {(part.topic, part.partition): bounds for part, bounds in row.parts().items()}
    topics = (
        rows["topic"].to_pylist() if "topic" in rows.schema.names else [next(iter(row.end_offsets))] * rows.num_rows
    )
    places = list(zip(topics, rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    bounds = [(parts.get((topic, partition), (0, 0)), offset) for topic, partition, offset in places]
    return len(set(places)) == len(places) and all(start <= offset < end for (start, end), offset in bounds)


def find_adopted(home: PipelineHome, view: PipelineHome, torn: Collection[str]) -> dict[str, pa.Table]:
    """Return rows of torn commits that cannot be computed again, if data files of the commits have exactly what is missing.

    A file that lost a race has such rows too. So only one row per number, and only numbers without a gap, are taken. Rows of the ledger
    are copies of what the changelog committed, so each file's are true; a file that was merged has those of others again.
    """
    adopted = {}
    if StreamTable.LEDGER in torn:
        copies = _unnamed_rows(home, view, StreamTable.LEDGER, ("timeline", "batch"))
        stored = {(row.timeline, row.batch) for row in _table_rows(view)}
        first = {} if copies is None else _first_of(copies, stored)
        if copies is not None and first:
            adopted[StreamTable.LEDGER] = copies.take(list(first.values()))
    for name in {*torn} & {"sequence", "amendments"}:
        place, mended = getattr(home.tables, name), getattr(view.tables, name)
        unnamed_rows, present = TableCare(place).unnamed_rows(mended, ("seq",)), Table(mended).read()
        present_numbers = set() if present is None else set(present["seq"].to_pylist())
        rows = (
            None
            if unnamed_rows is None
            else unnamed_rows.filter(
                pc.invert(pc.is_in(unnamed_rows["seq"], pa.array(sorted(present_numbers), unnamed_rows["seq"].type)))
            )
        )
        numbers = [] if rows is None else rows["seq"].to_pylist()
        if rows is not None and numbers and fills(numbers, present_numbers):
            adopted[name] = rows
    return adopted


def _first_of(rows: pa.Table, stored: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return (timeline, batch) to the first of its rows, without those that are stored. Pure."""
    keys = list(zip(rows["timeline"].to_pylist(), rows["batch"].to_pylist(), strict=True))
    return {key: at for at, key in reversed(list(enumerate(keys))) if key not in stored}


def fills(numbers: Sequence[int], taken: Collection[int]) -> bool:
    """Say whether numbers, each once, complete a sequence that begins with 1. Pure."""
    together = sorted([*numbers, *taken])
    return len(set(numbers)) == len(numbers) and together == list(range(1, len(together) + 1))


# ---- words


def _describe(
    pipeline: str,
    torn: Mapping[str, Sequence[TornEntry]],
    broken: Mapping[str, Sequence[tuple[str, str]]],
    lost: Sequence[LostRows],
    holes: dict[str, Any],
    copied: Sequence[LedgerRow],
    adopted: Mapping[str, pa.Table],
) -> list[Damage]:
    damages = _describe_logs(pipeline, torn, adopted)
    damages += [
        Damage(
            name,
            f"data file {path} {how}",
            _meaning(name),
            "taken out of the table; where its rows come from is named below",
        )
        for name, files in broken.items()
        for path, how in files
    ]
    damages += [_describe_lost(lost_batch) for lost_batch in lost]
    if copied:
        numbers = ", ".join(str(row.batch) for row in copied[:8])
        what = f"the table lacks batch {numbers}{' ...' if len(copied) > 8 else ''}"
        damages.append(
            Damage(
                StreamTable.LEDGER,
                what,
                "none for what is served, as long as the changelog's commits are kept (6 hours)",
                "copied again from them",
            )
        )
    damages += [
        Damage(
            StreamTable.LEDGER,
            f"batch {', '.join(map(str, batches))} of {timeline} is in neither the table nor the changelog's commits",
            "it is not known what records these batches read, nor what they emitted",
            f"cannot be repaired; put the table's files back from a backup, or go back to before the hole: `rivertwice savepoint rewind {pipeline}` "
            "with a savepoint before it",
            curable=False,
        )
        for timeline, batches in holes.items()
    ]
    return damages


def _describe_logs(
    pipeline: str,
    torn: Mapping[str, Sequence[TornEntry]],
    adopted: Mapping[str, pa.Table],
    *,
    on_s3: bool = False,
) -> list[Damage]:
    return [
        Damage(name, f"log {entry.text}", "the table cannot be opened", _checkpoint_cure(entries))
        if entry.is_checkpoint
        else Damage(
            name,
            f"log {entry.text}",
            _meaning(name),
            *(_cure_on_s3(entry) if on_s3 else _log_cure(pipeline, name, adopted.get(name))),
        )
        for name, entries in torn.items()
        for entry in entries
    ]


def _checkpoint_cure(entries: Sequence[TornEntry]) -> str:
    if all(entry.is_checkpoint for entry in entries):
        return "set aside; its commits are read from their own entries and an older checkpoint; no commit is lost"
    return "set aside; the entries that no other file has are named here too"


def _cure_on_s3(entry: TornEntry) -> tuple[str, bool]:
    return f"cannot be repaired: put the object back, an earlier version of it or from a backup: {entry.path}", False


def _meaning(name: str) -> str:
    if name in StreamTable.COUNTED or name == StreamTable.LEDGER:
        return "what the commit wrote is not read; the batches that lost rows by it are named below"
    if name == StreamTable.CORRECTIONS:
        return "what the commit wrote is not read; the backfills that lost rows by it are named below"
    if name in _DERIVED:
        return _DERIVED[name]
    if name in _RESULTS:
        return "verdicts of one reconcile run are not read; what is served does not depend on them"
    return "head moves, publications or decisions of one commit are not read: what is served may change by it"


def _log_cure(pipeline: str, name: str, adopted: pa.Table | None) -> tuple[str, bool]:
    """Return what a repair does about a torn entry, and whether it does anything."""
    first = "the file is set aside and an empty commit takes its place"
    if name in StreamTable.COUNTED or name == StreamTable.LEDGER:
        return f"{first}; lost rows are written again as below", True
    if name == StreamTable.CORRECTIONS:
        return f"{first}; which backfill computes lost rows again is named below", True
    if name in _DERIVED:
        return f"{first}; the table is rebuilt", True
    if name in _RESULTS:
        return f"{first}; run `rivertwice reconcile {pipeline}` again", True
    if adopted is not None:
        return (
            f"{first}; its {adopted.num_rows} rows are written again from its own data file, which is still there",
            True,
        )
    return (
        "cannot be repaired: what it held cannot be computed again, and no data file has it; put the file back from a backup; or "
        f"accept the loss (`rivertwice admin repair {pipeline} --yes --accept-loss {name}`), then look at `rivertwice backfill list {pipeline}` and "
        f"`rivertwice dead list {pipeline}` and do again what is missing there",
        False,
    )


def _describe_lost(lost_batch: LostRows) -> Damage:
    row = lost_batch.row
    if lost_batch.table == StreamTable.CHANGELOG:
        span = ""
        if 0 < lost_batch.late_ms < row.batch_watermark_ms:
            span = f", of windows that ended after {to_iso(from_ms(lost_batch.late_ms))} up to {to_iso(from_ms(row.batch_watermark_ms))}"
        meaning = f"served would lack or alter {max(lost_batch.expected - lost_batch.found, 0) or lost_batch.expected} result rows{span}"
    elif lost_batch.table == StreamTable.DEAD:
        meaning = "dead letters that cannot be seen or amended; what is served does not change"
    else:
        meaning = "late rows that are not reported; what is served does not change"
    difference = (
        f"has {lost_batch.found} of {lost_batch.expected} rows"
        if lost_batch.found != lost_batch.expected
        else f"has other rows (digest) than the {lost_batch.expected} committed"
    )
    source = (
        "its own data file, which is still there"
        if lost_batch.rows is not None
        else f"{AGAIN} (read and computed again with Spark)"
    )
    return Damage(
        lost_batch.table,
        f"batch {row.batch} of {row.timeline} {difference}",
        meaning,
        f"written again from {source}, {PROOF[lost_batch.table]}",
    )


def _describe_lost_corrections(
    pipeline: str, publication: Publication, found: int, expected: int, *, is_stored: bool
) -> Damage:
    start, end = (to_iso(from_ms(ms)) for ms in (publication.ranges[0][0], publication.ranges[-1][1]))
    which = f"--id {publication.backfill}" if is_stored else f"--from {start} --to {end}"
    return Damage(
        StreamTable.CORRECTIONS,
        f"backfill {publication.backfill} has {found} of {expected} rows",
        f"windows [{start}, {end}) would be served without them; `served` is not rebuilt",
        f"not written again by a repair; after the repair run `rivertwice backfill run {pipeline} {which} --yes`",
        curable=False,
    )
