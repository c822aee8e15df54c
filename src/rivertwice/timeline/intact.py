"""Whether the tables still hold what was committed by the ledger: rows of every batch, and whole logs and files.

The ledger counts for each batch the rows it emitted, its dead letters and its late rows. A torn commit removes rows without an
error (delta-rs reads an empty log entry as an empty commit). So these counts are compared before anything uses the rows.
Batches that were compared are not counted again: a cursor stores up to which batch. The totals in the tables' logs show
whether rows before it are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import DamagedFileError, PipelineHome, Place, TableDamageError
from rivertwice.storage import Table, read_json, replace_json
from rivertwice.timeline.committed import CommittedBatches, committed_batches, every_batch, table_of
from rivertwice.timeline.ledger import LedgerRow, heal_ledger
from rivertwice.timeline.lineage import path_of
from rivertwice.timeline.serving import Publication

FORMAT = 1


class StreamTable:
    """The tables of a stream whose rows are counted, and those that are compared as whole logs."""

    CHANGELOG = "changelog"
    DEAD = "dead_letters"
    LATE = "late_rows"
    LEDGER = "ledger"
    CORRECTIONS = "corrections"
    COUNTED = (CHANGELOG, DEAD, LATE)


_MEANING = {
    StreamTable.CHANGELOG: "result rows are missing from what is served",
    StreamTable.DEAD: "dead letters are missing, so they cannot be amended",
    StreamTable.LATE: "late rows are missing, so they are not reported",
}
_COUNTS = {StreamTable.CHANGELOG: "emitted", StreamTable.DEAD: "bad", StreamTable.LATE: "late_rows"}
"""Table to the ledger's column with the number of rows that a batch wrote to it; null: not counted."""
ByBatch = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class Shortfall:
    """Rows of one batch that a table has lost."""

    table: str
    timeline: str
    batch: int
    expected: int
    found: int


def expected_rows(row: LedgerRow) -> dict[str, int]:
    """Return how many rows a batch wrote to each table, as far as its ledger row has the number. Pure."""
    counts = {StreamTable.CHANGELOG: row.emitted, StreamTable.DEAD: row.bad}
    return counts if row.late_rows is None else {**counts, StreamTable.LATE: row.late_rows}


def expected_totals(every: pa.Table) -> dict[str, int]:
    """Return how many rows all batches wrote to each table. Pure."""
    return {name: pc.sum(every[column]).as_py() or 0 for name, column in _COUNTS.items()}


def find_shortfalls(batches: CommittedBatches, row_counts: Mapping[str, ByBatch]) -> list[Shortfall]:
    """Return which batches have fewer rows in a table than the ledger counted. Pure.

    Args:
        row_counts: table to (timeline, batch) to number of rows; only the tables named here are compared.
    """
    lost = []
    for name in row_counts:
        column = _COUNTS[name]
        rows = batches.table.select(["timeline", "batch", column]).filter(pc.field(column) > 0)
        for timeline, batch, expected in zip(*(rows[part].to_pylist() for part in rows.column_names), strict=True):
            held = row_counts[name].get((timeline, batch), 0)
            if held < expected:
                lost.append(Shortfall(name, timeline, batch, expected, held))
    return lost


def find_holes(batches: CommittedBatches) -> list[int]:
    """Return the batches that a path's ledger lacks between its first and its last. Pure."""
    numbers = batches.numbers
    if not len(batches) or len(batches) == numbers[-1] - numbers[0] + 1:
        return []
    return [int(number) for number in np.setdiff1d(np.arange(numbers[0], numbers[-1]), numbers)]


def describe_shortfalls(pipeline: str, lost: Sequence[Shortfall]) -> str:
    """Return lost rows in words: table, batches, numbers, consequence, remedy. Pure."""
    parts = []
    for table in StreamTable.COUNTED:
        table_shortfalls = [shortfall for shortfall in lost if shortfall.table == table]
        if table_shortfalls:
            shown = ", ".join(
                f"{shortfall.batch} of {shortfall.timeline} ({shortfall.found} of {shortfall.expected} rows)"
                for shortfall in table_shortfalls[:5]
            )
            more = f" and {len(table_shortfalls) - 5} more" if len(table_shortfalls) > 5 else ""
            parts.append(f"{table} has lost rows of batch {shown}{more}: {_MEANING[table]}")
    return (
        f"tables of {pipeline} do not hold what the ledger says was committed: {'; '.join(parts)}; `rivertwice admin repair {pipeline}` "
        "says what can be written again, and does it with --yes"
    )


def _read_cursor(home: PipelineHome) -> dict[str, int]:
    try:
        data = read_json(home.root / "intact.json") or {}
    except DamagedFileError:  # everything is counted again, and the file written
        return {}
    return (
        {str(name): int(batch) for name, batch in data.get("checked", {}).items()}
        if data.get("format") == FORMAT
        else {}
    )


def forget_cursor(home: PipelineHome) -> None:
    """Make the next check count every batch again."""
    (home.root / "intact.json").unlink(missing_ok=True)


def stream_tables(home: PipelineHome) -> dict[str, Place]:
    """Return the tables that a stream and what it serves need, by name; also the versions of tables, if in a folder."""
    names = (
        StreamTable.LEDGER,
        StreamTable.CHANGELOG,
        StreamTable.DEAD,
        StreamTable.LATE,
        "sequence",
        "corrections",
        "amendments",
    )
    root = home.tables.root
    views = sorted(path.name for path in (root / "versions").glob("*")) if isinstance(root, Path) else []
    versions = {f"versions/{view}": home.tables.versions(view) for view in views}
    return {name: getattr(home.tables, name) for name in names} | versions


def require_whole_logs(home: PipelineHome) -> None:
    """Check that no log of the stream's tables has a torn entry, and that their data files are there.

    Raises:
        TableDamageError: the message names table, version and file.
    """
    for place in stream_tables(home).values():
        Table(place).require_whole()
    for name, place in stream_tables(home).items():
        broken = Table(place).broken_files()
        if broken:
            details = "; ".join(f"{path} {how}" for path, how in broken[:5])
            message = (
                f"table {name} of {home.root.name} lacks data that its log names: {details}; the work stops here; `rivertwice admin repair "
                f"{home.root.name}` says what that means and what can be written again"
            )
            raise TableDamageError(message)


def check_rows(
    home: PipelineHome, path_rows: Sequence[LedgerRow], all_rows: Sequence[LedgerRow], *, remember: bool = True
) -> None:
    """Check that each batch of a path has its rows (`check_committed`), for a caller that has read whole rows.

    Args:
        path_rows: the path's committed batches, in order.
        all_rows: those of all timelines; the tables' totals are compared with them.
        remember: False stores no cursor.

    Raises:
        TableDamageError: rows, or batches of the ledger, are gone.
    """
    check_committed(home, CommittedBatches.of(path_rows), table_of(all_rows), remember=remember)


def check_committed(home: PipelineHome, committed: CommittedBatches, every: pa.Table, *, remember: bool = True) -> None:
    """Check that each batch of a path has its rows, and remember up to which batch that is known.

    The ledger's rows are read before the tables are counted: a commit in between adds rows, and never removes any.

    Args:
        every: those of all timelines; the tables' totals are compared with them (`committed.every_batch`).
        remember: False stores no cursor.

    Raises:
        TableDamageError: rows, or batches of the ledger, are gone.
    """
    holes = find_holes(committed)
    if holes:
        message = (
            f"the ledger of {home.root.name} lacks batch {', '.join(map(str, holes[:8]))}, though later ones are committed: it is "
            f"not known what records they read; `rivertwice admin repair {home.root.name}` looks for them in the changelog's commits"
        )
        raise TableDamageError(message)
    known = _read_cursor(home)
    wanted = expected_totals(every)
    totals = {name: Table(getattr(home.tables, name)).total_rows() for name in StreamTable.COUNTED}
    whole = all(total is not None and total >= wanted[name] for name, total in totals.items())
    require_batches(home, committed.beyond(known) if whole else committed, StreamTable.COUNTED)
    newest = committed.newest_by_timeline()
    if remember and newest and any(known.get(name) != batch for name, batch in newest.items()):
        replace_json(home.root / "intact.json", {"format": FORMAT, "checked": {**known, **newest}})


def require_batches(
    home: PipelineHome, batches: CommittedBatches, names: Sequence[str] = (StreamTable.CHANGELOG,)
) -> None:
    """Check that tables hold the rows of some batches; only columns of their numbers are read, from the first of them on.

    Raises:
        TableDamageError: rows are gone.
    """
    if not len(batches):
        return
    above = ("_batch", int(batches.numbers[0]) - 1)
    lost = find_shortfalls(batches, {name: _counted(home, name, above) for name in names})
    if lost:
        raise TableDamageError(describe_shortfalls(home.root.name, lost))


def require_rows(home: PipelineHome, timeline: str) -> CommittedBatches:
    """Return the committed batches on a timeline's path once it is known that the tables hold their rows.

    A batch that only the ledger's table lost is copied again from the changelog's commits, as far as those are kept.

    Raises:
        TableDamageError: rows, or batches of the ledger, are gone.
    """
    path = path_of(home, timeline)
    every = every_batch(home)
    if find_holes(committed_batches(home, path)) and heal_ledger(home, whole=True):
        every = every_batch(home)
    committed = committed_batches(home, path)
    check_committed(home, committed, every)
    return committed


def check_stream_rows(home: PipelineHome, batches: CommittedBatches, stream: pa.Table | None) -> None:
    """Check that the changelog's rows that will be served are all that the path's batches emitted.

    Raises:
        TableDamageError: some are gone; what is served stays as it is.
    """
    counted = (
        stream.group_by(["_timeline", "_batch"]).aggregate([([], "count_all")]).to_pylist()
        if stream is not None
        else []
    )
    emitted = {(row["_timeline"], row["_batch"]): row["count_all"] for row in counted}
    lost = find_shortfalls(batches, {StreamTable.CHANGELOG: emitted})
    if lost:
        raise TableDamageError(describe_shortfalls(home.root.name, lost))


def check_corrections(pipeline: str, publications: Sequence[Publication], corrections: pa.Table | None) -> None:
    """Check that publications that will be served have all rows that their backfills computed, as far as the number is known.

    A window that a publication covers serves only its rows: without them it would be served empty, or lack keys.

    Raises:
        TableDamageError: rows are gone; what is served stays as it is.
    """
    counted = [] if corrections is None else pc.value_counts(corrections["_backfill"].combine_chunks()).to_pylist()
    check_correction_counts(pipeline, publications, {row["values"]: row["counts"] for row in counted})


def check_correction_counts(pipeline: str, publications: Sequence[Publication], row_counts: Mapping[str, int]) -> None:
    """Check the number of corrections by backfill, as `check_corrections` does.

    Raises:
        TableDamageError: rows are gone.
    """
    short = [
        publication
        for publication in publications
        if publication.rows is not None and row_counts.get(publication.backfill, 0) < publication.rows
    ]
    if short:
        shown = ", ".join(
            f"{publication.backfill} ({row_counts.get(publication.backfill, 0)} of {publication.rows} rows)"
            for publication in short[:5]
        )
        message = (
            f"{StreamTable.CORRECTIONS} of {pipeline} have lost rows of backfill {shown}, which is published; nothing is served, because its windows "
            f"would lack them; `rivertwice admin repair {pipeline}` names the backfill that computes them again"
        )
        raise TableDamageError(message)


def _counted(home: PipelineHome, name: str, above: tuple[str, int]) -> ByBatch:
    counted = Table(getattr(home.tables, name)).rows_by(("_timeline", "_batch"), above=above)
    return {(str(timeline), int(batch)): count for (timeline, batch), count in counted.items()}
