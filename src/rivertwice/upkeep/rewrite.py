"""Rewrite stored data: the archive day by day, a pipeline's tables, and their digests in the ledger.

Every rewrite reads and replaces on one handle. A commit in between (an append of the archive job, an update of `served`) makes
it fail, and it begins again with a new read. So no commit of another writer is lost or stays unchanged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from rivertwice.core import LedgerError, LostRaceError, PipelineHome, Place, Progress, Settings, retry
from rivertwice.definition import Definition, load_bundle_definition
from rivertwice.log import Part, marks_from_plain, marks_to_plain
from rivertwice.storage import StillHeld, Table, Where
from rivertwice.timeline import (
    SERVED_KEY,
    LedgerRow,
    ServedStamp,
    digest_rows,
    heal_ledger,
    provisional_stamp,
    read_ledger,
    read_served_stamp,
    tables_of,
    to_table,
)
from rivertwice.upkeep.redact import PROSE, Redactor

_RACES = 10  # lost races for one table before the erasure stops, to be resumed later
STAMPS = {"served": read_served_stamp, "provisional": provisional_stamp}


def own_tables(home: PipelineHome, definition: Definition) -> dict[str, Place]:
    """Return all tables of a pipeline, by name; also what an interrupted switch of versions left of the previous rows."""
    left = {"served_left": home.own_served} if home.serves else {}
    return {**tables_of(home.tables, definition.tables), "amendments": home.tables.amendments, **left}


def archived_by_day(settings: Settings, topic: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield each day of a topic's archive with its records; one day is in memory at a time."""
    days = Table(settings.archive(topic)).read(columns=["day"])
    for day in [] if days is None else sorted(set(days["day"].to_pylist())):
        rows = Table(settings.archive(topic)).read(matching=Where("day").equals(day))
        assert rows is not None, "its days were read"
        yield day, rows


def rewrite_archive(settings: Settings, topic: str, redactor: Redactor, progress: Progress, check: StillHeld) -> None:
    """Rewrite the archive of a topic, a day at a time; the caller holds its lock, and `check` is called before each write."""
    path = settings.archive(topic)
    days = Table(path).read(columns=["day"])
    for day in [] if days is None else sorted(set(days["day"].to_pylist())):
        rewritten = _rewrite(path, partial(_replaced, redactor), check, where=Where("day").equals(day))
        if rewritten.changed:
            progress(f"archive of {topic}, {day}: {rewritten.changed} of {rewritten.rows.num_rows} records rewritten")


def forget_read(home: PipelineHome, places: Mapping[Part, Sequence[int]], check: StillHeld) -> None:
    """Forget what the ledger has of records that are about to be rewritten: their marks, and the digests of the batches that read them.

    The rewritten records have others, which would look as if Kafka had given their offsets to other records. Without them nothing is
    compared.

    Args:
        home: the home of the pipeline; the caller holds its lease.
        places: partition to the offsets of the records, in order.
        check: the lease's check; called before the write.
    """
    heal_ledger(home)
    rows = read_ledger(home)
    fresh = [without_records(row, places) for row in rows]
    if any(old.to_json() != new.to_json() for old, new in zip(rows, fresh, strict=True)):
        _rewrite(home.tables.ledger, lambda _: (to_table(fresh), len(fresh)), check)


def without_records(row: LedgerRow, places: Mapping[Part, Sequence[int]]) -> LedgerRow:
    """Return a ledger row without the marks of records, and without the digests of topics of which the batch read one of them. Pure."""

    def reads(part: Part, start: int, end: int) -> bool:
        return bisect_left(places.get(part, ()), start) < bisect_left(places.get(part, ()), end)

    touched = {part.topic for part, bounds in row.parts().items() if reads(part, *bounds)}
    by_topic = {
        topic: replace(counts, digest=None) if topic in touched else counts for topic, counts in row.by_topic.items()
    }
    marks = marks_from_plain(row.marks).items()
    marks_left = {part: mark for part, mark in marks if not reads(part, mark.offset, mark.offset + 1)}
    return replace(row, by_topic=by_topic, marks=marks_to_plain(marks_left))


def rewrite_tables(
    home: PipelineHome, definition: Definition, redactor: Redactor, progress: Progress, check: StillHeld
) -> None:
    """Rewrite the tables of a pipeline at rest, and put the digests of the changed batches into the ledger.

    Args:
        home: the home of the pipeline; the caller holds its lease.
        definition: the head's definition.
        check: the lease's check; called before each write.

    Raises:
        LedgerError: a batch does not contain the rows that were committed.
    """
    heal_ledger(home)

    def replaced(rows: pa.Table) -> tuple[pa.Table, int]:
        new, changed = redactor.table(rows)
        _check_untouched(home, rows, changed)
        return new, len(changed)

    for name, path in own_tables(home, definition).items():
        if name == "ledger" or Table(path).open() is None:
            continue
        rewritten = _rewrite(
            path,
            replaced if name == "changelog" else partial(_replaced, redactor, prose=PROSE.get(name, ())),
            check,
            stamp=partial(STAMPS[name], home) if name in STAMPS else None,
        )
        if rewritten.changed:
            progress(f"{home.root.name}.{name}: {rewritten.changed} of {rewritten.rows.num_rows} rows rewritten")
        if name == "changelog":
            _redigest(home, rewritten.rows, redactor, check)


@dataclass(frozen=True)
class _Rewritten:
    """The rows after a rewrite, and how many of them were changed."""

    rows: pa.Table
    changed: int


def _replaced(redactor: Redactor, rows: pa.Table, *, prose: Collection[str] = ()) -> tuple[pa.Table, int]:
    new, changed = redactor.table(rows, prose=prose)
    return new, len(changed)


def _rewrite(
    path: Place,
    change: Callable[[pa.Table], tuple[pa.Table, int]],
    check: StillHeld,
    *,
    where: str | None = None,
    stamp: Callable[[], ServedStamp | None] | None = None,
) -> _Rewritten:
    """Read and replace on one handle; begin again with a new read if another writer commits in between.

    Args:
        change: returns the new rows, and how many changed; with 0, nothing is written.
        check: called right before the write.
        where: the condition of the rows; None: all.
        stamp: returns what the table shows, which is stored with the commit.

    Raises:
        LostRaceError: another writer committed each time.
    """

    def read_and_replace() -> _Rewritten:
        table = Table(path).open()
        assert table is not None, "the table is there"
        rows = table.read(matching=where)
        new, changed = change(rows)
        if not changed:
            return _Rewritten(rows, 0)
        shown = None if stamp is None else stamp()
        check()
        metadata = None if shown is None else {SERVED_KEY: vars(shown)}
        Table(path).replace_rows(new, where=where, metadata=metadata, at=table)
        return _Rewritten(new, changed)

    return retry(LostRaceError, tries=_RACES)(read_and_replace)


def _check_untouched(home: PipelineHome, rows: pa.Table, changed: Sequence[int]) -> None:
    """Refuse to give a new digest to a batch whose rows differ from the committed ones.

    Raises:
        LedgerError: a batch's rows differ; this table was not written.
    """
    for row, digest in _digests(home, rows, changed):
        if row.digest != digest:
            message = (
                f"batch {row.batch} of {row.timeline} of {home.root.name} does not hold the rows that were committed (digest {digest}, "
                f"recorded {row.digest}), and rewriting it would hide that; `rivertwice reconcile {home.root.name}` first"
            )
            raise LedgerError(message)


def _redigest(home: PipelineHome, rows: pa.Table, redactor: Redactor, check: StillHeld) -> None:
    """Put the digests of the batches that contain the pseudonym into the ledger."""
    back = replace(redactor, value=redactor.pseudonym, pseudonym=redactor.value)
    fresh = {
        (row.timeline, row.batch): digest
        for row, digest in _digests(home, rows, back.table(rows)[1])
        if row.digest != digest
    }
    if fresh:
        _rewrite(home.tables.ledger, lambda _: (to_table(_with_digests(home, fresh)), len(fresh)), check)


def _with_digests(home: PipelineHome, fresh: Mapping[tuple[str, int], str]) -> list[LedgerRow]:
    return [replace(row, digest=fresh.get((row.timeline, row.batch), row.digest)) for row in read_ledger(home)]


def _digests(home: PipelineHome, rows: pa.Table, at: Sequence[int]) -> Iterator[tuple[LedgerRow, str]]:
    """Return the ledger rows of the batches that contain the rows at these indexes, each with the digest of its rows."""
    stamps = list(zip(rows["_timeline"].to_pylist(), rows["_batch"].to_pylist(), strict=True))
    wanted = {stamps[place] for place in at}
    where: dict[tuple[str, int], list[int]] = {}
    for place, stamp in enumerate(stamps):
        if stamp in wanted:
            where.setdefault(stamp, []).append(place)
    columns: dict[str, list[str]] = {}
    for row in read_ledger(home) if wanted else ():
        held = where.get((row.timeline, row.batch))
        if held is not None:
            if row.bundle not in columns:
                columns[row.bundle] = load_bundle_definition(home.bundles, row.bundle).result_columns
            yield row, digest_rows(rows.take(pa.array(held, pa.int64())), columns[row.bundle])
