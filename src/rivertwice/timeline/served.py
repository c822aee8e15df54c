"""The served table: what each closed window serves now. It is rebuilt as a whole and stamped with what it shows.

For a pipeline that emits updates, `provisional` has the newest rows of the windows that are open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.config import PipelineHome, Place
from rivertwice.errors import LedgerError, LostRaceError, ServiceError
from rivertwice.instants import to_iso
from rivertwice.locks import lock
from rivertwice.pipeline.definition import Definition
from rivertwice.retry import retry
from rivertwice.store import delta
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.intact import check_corrections, check_stream_rows
from rivertwice.timeline.ledger import LedgerRow, read_ledger
from rivertwice.timeline.lineage import Segment, path_ledger, path_of, path_semantics, select_on_path
from rivertwice.timeline.sequence import PUBLICATION, Entry, read_sequence, select_head
from rivertwice.timeline.serving import Publication, select_serving
from rivertwice.timeline.serving import select_served as select_served
from rivertwice.waits import Deadline

METADATA_KEY = "served"
_RACES = 5
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ServedStamp:
    """What a build of the served table shows: the sequence, and the last committed batch on the head's path."""

    sequence: int
    timeline: str
    batch: int


@dataclass(frozen=True)
class ServedReport:
    """What a rebuild did.

    Attributes:
        stamp: what the table shows now; None if there is nothing to serve yet.
        rebuilt: False if it showed that already.
        rows: rows written: of the whole table, or those that were appended; 0 if it was not rebuilt.
        published: how many of them come from publications.
        is_appended: whether only the rows of new batches were written.
    """

    stamp: ServedStamp | None
    rebuilt: bool
    rows: int = 0
    published: int = 0
    is_appended: bool = False


def publications_of(entries: Sequence[Entry]) -> list[Publication]:
    """Return the publications of a sequence, oldest first."""
    return [Publication.from_payload(entry.seq, entry.payload) for entry in entries if entry.kind == PUBLICATION]


def stream_rows(home: PipelineHome) -> pa.Table | None:
    """Return the changelog's rows on the head's path, of committed batches; None before the first batch."""
    head = select_head(read_sequence(home))
    if head is None:
        return None
    path = path_of(home, head)
    ledger = select_on_path(read_ledger(home), path)
    return _stream_rows(home, path, ledger)


def _stream_rows(home: PipelineHome, path: Sequence[Segment], ledger: Sequence[LedgerRow]) -> pa.Table | None:
    rows = delta.read(home.tables.changelog)
    if rows is None or not ledger:
        return None
    return rows.filter(_on_path(path, ledger[-1]))


def _on_path(path: Sequence[Segment], last: LedgerRow) -> pc.Expression:
    """Return the condition that a changelog row is of a batch on the path, up to the last committed one."""
    keep = pc.scalar(False)
    for segment in path:
        inside = (pc.field("_timeline") == segment.timeline) & (pc.field("_batch") >= segment.first)
        ends = [
            end for end in (segment.last, last.batch if segment.timeline == last.timeline else None) if end is not None
        ]
        keep = keep | (inside & (pc.field("_batch") <= min(ends)) if ends else inside)
    return keep


def newest_rows(rows: pa.Table, definition: Definition) -> pa.Table:
    """Return the newest version of each row that was emitted more than once (emit: updates): batches only rise on a path."""
    if not definition.has_updates:
        return rows
    return newest_by(rows, [definition.window.start_column, definition.window.end_column, *definition.row_keys])


def newest_by(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the newest row of each address on a path; `names` are the columns of the address."""
    ordered = rows.sort_by("_batch")
    keys = zip(*(ordered[name].to_pylist() for name in names), strict=True)
    newest = {key: place for place, key in enumerate(keys)}
    return ordered.take(pa.array(sorted(newest.values()), pa.int64()))


def read_provisional(home: PipelineHome, definition: Definition) -> pa.Table | None:
    """Return the newest rows of windows that are not closed yet; None before the first batch. Only for emit: updates."""
    ledger = path_ledger(home)
    rows = stream_rows(home)
    if rows is None or not ledger:
        return None
    return open_rows(newest_rows(rows, definition), definition, ledger[-1].batch_watermark_ms)


def open_rows(newest: pa.Table, definition: Definition, watermark_ms: int) -> pa.Table:
    """Return the rows of windows that are not closed at a watermark."""
    ends = pc.cast(pc.cast(newest[definition.window.end_column], pa.timestamp("ms", "UTC"), safe=False), pa.int64())
    return newest.filter(pc.greater(ends, definition.window.closed_ms(watermark_ms)))


def rebuild_served(home: PipelineHome, definition: Definition, *, force: bool = False) -> ServedReport:
    """Make the served table show the newest sequence and the last committed batch, in one commit; not if rows are gone.

    1. Read sequence, path and the newest batch. 2. Stop if the table has that stamp already. 3. If nothing but batches came
    since its stamp, append the rows that they emitted, with the new stamp in the commit, and stop. Else choose all rows.
    4. Overwrite, with the stamp in the commit. A crash before a commit or after it does no harm. 5. For a pipeline that emits updates, do the same with
    `provisional`: a window that has just closed is in both for a moment, never in none.

    The handles that write were opened before step 1: a commit in between, of another host or an erasure, is never hidden.
    With `force` step 2 is left out: rows that a repair wrote again have the stamps of old batches.

    Raises:
        TableDamageError: the changelog lost rows of the path, or the corrections those of a publication.
        LostRaceError: others committed to the table each time; the next caller tries again.
    """
    # A race is lost to another host, an erasure or upkeep: what was read may be old.
    return retry(LostRaceError, tries=_RACES)(_rebuild, home, definition, force=force)


def _rebuild(home: PipelineHome, definition: Definition, *, force: bool) -> ServedReport:
    with _alone(home):
        # Step 1.
        handles = {table: delta.open_table(table) for table in (home.tables.served, home.tables.provisional)}
        entries = read_sequence(home)
        head = select_head(entries)
        if head is None:
            return ServedReport(None, rebuilt=False)
        path = path_of(home, head)
        last = newest_batch(home, path)
        if last is None:
            return ServedReport(None, rebuilt=False)
        stamp = ServedStamp(entries[-1].seq, last.timeline, last.batch)
        # Step 2.
        tables = home.tables
        wanted = [tables.served, tables.provisional] if definition.has_updates else [tables.served]
        stamps = [_stamp_of(table) for table in wanted]
        if not force and all(shown == stamp for shown in stamps):
            return ServedReport(stamp, rebuilt=False)
        # Step 3.
        delta.require_whole(tables.changelog)
        delta.require_whole(tables.corrections)
        handle = handles[tables.served]
        if not force and handle is not None and _may_append(stamps[0], definition, entries, path):
            report = _append_new(home, definition, entries, path, stamps[0].batch, handle)
            if report is not None:
                return report
        ledger = select_on_path(read_ledger(home), path)
        stamp = ServedStamp(entries[-1].seq, ledger[-1].timeline, ledger[-1].batch)
        emitted = _stream_rows(home, _head_path(home, entries), ledger)
        check_stream_rows(home, ledger, emitted)
        stream = None if emitted is None else newest_rows(emitted, definition)
        if stream is None:
            message = (
                f"the ledger of {home.root.name} has batch {stamp.batch} of {stamp.timeline}, but there is no changelog; "
                f"its rows are lost; what is served stays as it is; `rivertwice repair {home.root.name}` says what can be done"
            )
            raise LedgerError(message)
        # Step 4.
        publications = publications_of(entries)
        serving = select_serving(publications, path_semantics(home, _head_path(home, entries)))
        corrections = read_corrections(home, publications)
        check_corrections(home.root.name, serving, corrections)
        served = _select(home, definition, entries, ledger, stream, corrections)
        metadata = {METADATA_KEY: asdict(stamp)}
        delta.overwrite(tables.served, served, metadata=metadata, at=handles[tables.served])
        # Step 5.
        if definition.has_updates:
            still_open = open_rows(stream, definition, ledger[-1].batch_watermark_ms)
            delta.overwrite(tables.provisional, still_open, metadata=metadata, at=handles[tables.provisional])
        published = pc.sum(pc.equal(served["_status"], "published")).as_py() or 0
        return ServedReport(stamp, rebuilt=True, rows=served.num_rows, published=published)


def _may_append(
    shown: ServedStamp | None, definition: Definition, entries: Sequence[Entry], path: Sequence[Segment]
) -> TypeGuard[ServedStamp]:
    """Say whether what is served can only have grown since a build: the same head and publications, rows emitted once. Pure.

    A published session covers sessions of the stream that start later, so what sessions serve is chosen from all of them.
    """
    return (
        shown is not None
        and shown.sequence == entries[-1].seq
        and not definition.has_updates
        and (definition.session_keys is None or not publications_of(entries))
        and any(segment.contains(shown.timeline, shown.batch) for segment in path)
    )


def _append_new(
    home: PipelineHome,
    definition: Definition,
    entries: list[Entry],
    path: Sequence[Segment],
    shown: int,
    handle: delta.Table,
) -> ServedReport | None:
    """Append what the batches after `shown` add, in one commit after the handle's version; None: a whole build is needed.

    Raises:
        TableDamageError: the changelog lost rows of these batches.
        LostRaceError: another process committed to the table meanwhile.
    """
    rows = select_on_path(read_ledger(home, first_batch=shown), path)
    if len(rows) < 2 or [rows[0].batch, rows[1].batch] != [shown, shown + 1]:
        return None
    before, fresh, last = rows[0], rows[1:], rows[-1]
    if _has_open_publication(publications_of(entries), definition, before.batch_watermark_ms):
        return None
    emitted = delta.read(home.tables.changelog, between=("_batch", fresh[0].batch, last.batch))
    if emitted is None:
        return None
    emitted = emitted.filter(_on_path(path, last))
    check_stream_rows(home, fresh, emitted)
    if open_rows(emitted, definition, last.batch_watermark_ms).num_rows:
        return None
    served = _select(home, definition, entries, fresh, emitted, None)
    stamp = ServedStamp(entries[-1].seq, last.timeline, last.batch)
    delta.append_rows(home.tables.served, served, metadata={METADATA_KEY: asdict(stamp)}, at=handle)
    return ServedReport(stamp, rebuilt=True, rows=served.num_rows, is_appended=True)


def _has_open_publication(publications: Sequence[Publication], definition: Definition, watermark_ms: int) -> bool:
    """Say whether a publication covers windows that are not closed at a watermark: after a rewind its rows wait for that. Pure."""
    closed_ms = definition.window.closed_ms(watermark_ms)
    length_ms = definition.window.length // timedelta(milliseconds=1)
    return any(end + length_ms > closed_ms for publication in publications for _, end in publication.ranges)


def rows_served_by(
    home: PipelineHome, definition: Definition, entries: list[Entry], ledger: Sequence[LedgerRow]
) -> pa.Table | None:
    """Return what closed windows serve by a sequence and the path's ledger, not by the table; None before the first batch.

    Args:
        home: the pipeline's.
        definition: what the head runs.
        entries: the sequence.
        ledger: the committed batches on the head's path.
    """
    stream = _newest_stream(home, definition, entries, ledger)
    if stream is None:
        return None
    return _select(home, definition, entries, ledger, stream, read_corrections(home, publications_of(entries)))


def _newest_stream(
    home: PipelineHome, definition: Definition, entries: list[Entry], ledger: Sequence[LedgerRow]
) -> pa.Table | None:
    stream = _stream_rows(home, _head_path(home, entries), ledger)
    return None if stream is None else newest_rows(stream, definition)


def _head_path(home: PipelineHome, entries: list[Entry]) -> Sequence[Segment]:
    head = select_head(entries)
    return [] if head is None else path_of(home, head)


def _select(
    home: PipelineHome,
    definition: Definition,
    entries: list[Entry],
    ledger: Sequence[LedgerRow],
    stream: pa.Table,
    corrections: pa.Table | None,
) -> pa.Table:
    publications = publications_of(entries)
    return select_served(
        stream,
        corrections,
        publications,
        semantics=path_semantics(home, _head_path(home, entries)),
        closed_ms=definition.window.closed_ms(ledger[-1].batch_watermark_ms),
        start_column=definition.window.start_column,
        end_column=definition.window.end_column,
        session_keys=definition.session_keys,
    )


def read_corrections(home: PipelineHome, publications: Sequence[Publication]) -> pa.Table | None:
    """Return the rows that the backfills of publications computed; None if there are none."""
    if not publications:
        return None
    names = pa.array(sorted({entry.backfill for entry in publications}))
    return delta.read(home.tables.corrections, where=pc.field("_backfill").isin(names))


def _alone(home: PipelineHome) -> AbstractContextManager[None]:
    """Let one process at a time rebuild, so that what was read earlier never overwrites what was read later."""
    return lock(home.root / "served.lock")


def served_stamp(home: PipelineHome) -> ServedStamp | None:
    """Return what the served table shows, or None if it was never built."""
    return _stamp_of(home.tables.served)


def provisional_stamp(home: PipelineHome) -> ServedStamp | None:
    """Return what the table of open windows shows, or None if it was never built."""
    return _stamp_of(home.tables.provisional)


def _stamp_of(table: Place) -> ServedStamp | None:
    for limit in (4, None):
        commits = delta.commits(table, METADATA_KEY, limit=limit)
        if commits:
            return ServedStamp(**commits[-1][1])
    return None


def read_served(home: PipelineHome) -> pa.Table | None:
    """Return the served rows, or None if the table was never built."""
    return delta.read(home.tables.served)


def wait_served(home: PipelineHome, sequence: int, timeout: float) -> ServedStamp:
    """Wait until the served table shows at least `sequence`.

    Raises:
        ServiceError: it does not show it within `timeout` seconds.
    """
    stamp = None
    for _ in Deadline.after(timeout).polls(POLL_SECONDS):
        stamp = served_stamp(home)
        if stamp is not None and stamp.sequence >= sequence:
            return stamp
    shown = "was never built" if stamp is None else f"shows sequence {stamp.sequence}"
    message = (
        f"the served table of {home.root.name} {shown}, not {sequence}, after {timeout:g} s; the agent rebuilds it: "
        "look at `rivertwice status` and the agent's log"
    )
    raise ServiceError(message)


def export_lines(rows: pa.Table) -> list[bytes]:
    """Return the canonical export: a header line, then one JSON line per row, sorted by bytes.

    Two tables have equal lines exactly when they hold the same rows, whatever the order and the files.
    """
    names = sorted(rows.schema.names)
    columns = [rows[name].to_pylist() for name in names]
    body = [
        json.dumps([_canonical(value) for value in row], ensure_ascii=False, separators=(",", ":")).encode()
        for row in zip(*columns, strict=True)
    ]
    return [json.dumps(names).encode(), *sorted(body)]


def export_sha256(home: PipelineHome) -> str:
    """Return the SHA-256 of the canonical sorted export of the served table, of all its columns.

    The stamp is in the commit, not in the rows: a head move that changes no served row does not change the hash.

    Raises:
        ServiceError: the table was never built.
    """
    rows = read_served(home)
    if rows is None:
        message = f"the served table of {home.root.name} was never built; the agent builds it after the first batch"
        raise ServiceError(message)
    return hashlib.sha256(b"\n".join(export_lines(rows))).hexdigest()


def _canonical(value: Any) -> Any:
    """Return a value as JSON can hold it, without losing a digit."""
    if isinstance(value, datetime):
        return to_iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return repr(value) if isinstance(value, float) else str(value)
