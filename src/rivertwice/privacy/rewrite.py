"""Rewrite what is kept: the archive day by day, a pipeline's tables, and the digests that the ledger has of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from rivertwice.config import PipelineHome, Place, Settings
from rivertwice.errors import LedgerError
from rivertwice.log.archive import archive_lock
from rivertwice.pipeline.bundle import load_bundle_definition
from rivertwice.pipeline.definition import Definition
from rivertwice.privacy.redact import Redactor
from rivertwice.store import delta
from rivertwice.timeline.digest import digest_rows
from rivertwice.timeline.ledger import LedgerRow, heal_ledger, read_ledger, to_table
from rivertwice.timeline.served import METADATA_KEY, provisional_stamp, served_stamp
from rivertwice.timeline.upkeep import tables_of

Progress = Callable[[str], None]
STAMPS = {"served": served_stamp, "provisional": provisional_stamp}


def own_tables(home: PipelineHome, definition: Definition) -> dict[str, Place]:
    """Return all tables of a pipeline, by name."""
    return {**tables_of(home.tables, definition.tables), "amendments": home.tables.amendments}


def archived_by_day(settings: Settings, topic: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield each day of a topic's archive with its records: so much is in memory at once."""
    days = delta.read(settings.archive(topic), columns=["day"])
    for day in [] if days is None else sorted(set(days["day"].to_pylist())):
        rows = delta.read(settings.archive(topic), only=("day", day))
        assert rows is not None, "its days were read"
        yield day, rows


def rewrite_archive(settings: Settings, topic: str, redactor: Redactor, progress: Progress) -> None:
    """Rewrite the archive of a topic, a day at a time."""
    path = settings.archive(topic)
    with archive_lock(settings, topic):
        for day, rows in archived_by_day(settings, topic):
            new, changed = redactor.table(rows)
            if changed:
                delta.replace_rows(path, new, only=("day", day))
                progress(f"archive of {topic}, {day}: {len(changed)} of {rows.num_rows} records rewritten")


def rewrite_tables(home: PipelineHome, definition: Definition, redactor: Redactor, progress: Progress) -> None:
    """Rewrite the tables of a pipeline at rest, and let the ledger say the digests of the batches that changed.

    Raises:
        LedgerError: a batch does not hold the rows that were committed.
    """
    heal_ledger(home)
    for name, path in own_tables(home, definition).items():
        rows = delta.read(path)
        if rows is None or name == "ledger":
            continue
        new, changed = redactor.table(rows)
        if name == "changelog":
            _check_untouched(home, rows, changed)
        if changed:
            stamp = STAMPS[name](home) if name in STAMPS else None
            delta.replace_rows(path, new, metadata=None if stamp is None else {METADATA_KEY: vars(stamp)})
            progress(f"{home.root.name}.{name}: {len(changed)} of {rows.num_rows} rows rewritten")
        if name == "changelog":
            _redigest(home, new, redactor)


def _check_untouched(home: PipelineHome, rows: pa.Table, changed: Sequence[int]) -> None:
    """Refuse to give a new digest to a batch whose rows are not those that were committed.

    Raises:
        LedgerError: a batch's rows are others; nothing of this table was written.
    """
    for row, digest in _digests(home, rows, changed):
        if row.digest != digest:
            message = (
                f"batch {row.batch} of {row.timeline} of {home.root.name} does not hold the rows that were committed (digest {digest}, "
                f"recorded {row.digest}), and rewriting it would hide that; `rivertwice reconcile {home.root.name}` first"
            )
            raise LedgerError(message)


def _redigest(home: PipelineHome, rows: pa.Table, redactor: Redactor) -> None:
    """Let the ledger say the digests of the batches that hold the pseudonym."""
    back = replace(redactor, value=redactor.pseudonym, pseudonym=redactor.value)
    fresh = {
        (row.timeline, row.batch): digest
        for row, digest in _digests(home, rows, back.table(rows)[1])
        if row.digest != digest
    }
    if fresh:
        ledger = [replace(row, digest=fresh.get((row.timeline, row.batch), row.digest)) for row in read_ledger(home)]
        delta.replace_rows(home.tables.ledger, to_table(ledger))


def _digests(home: PipelineHome, rows: pa.Table, at: Sequence[int]) -> Iterator[tuple[LedgerRow, str]]:
    """Return the ledger rows of the batches that the rows at some places belong to, each with its rows' digest."""
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
