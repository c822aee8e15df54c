"""The served table: what each closed window serves now, in one table that is stamped with what it shows.

It is kept by what changed since its stamp (`served_change`), and built whole where only that is sound, or where it is asked for.
Both give the same rows. For a pipeline that emits updates, `provisional` has the newest rows of the windows that are open.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import Deadline, LedgerError, LostRaceError, PipelineHome, Place, ServiceError, lock, retry
from rivertwice.definition import Definition
from rivertwice.storage import Snapshot, Table, TableCare, TableFiles, Where, sorted_rows
from rivertwice.timeline.committed import CommittedBatches, committed_batches, newest_batch
from rivertwice.timeline.intact import check_correction_counts, check_corrections, check_stream_rows, require_batches
from rivertwice.timeline.ledger import LedgerRow, read_ledger
from rivertwice.timeline.lineage import Segment, last_in_common, path_of, path_semantics, path_until, select_on_path
from rivertwice.timeline.sequence import Entry, read_sequence, select_head
from rivertwice.timeline.served_ranges import Ranges, has_start, is_inside, joined, merged, overlaps
from rivertwice.timeline.served_rows import (
    OWN_COLUMNS,
    is_on_path,
    json_lines,
    newest_rows,
    open_rows,
    path_rows,
    publications_of,
    read_corrections,
)
from rivertwice.timeline.served_stamp import (
    SERVED_KEY,
    ServedStamp,
    follow_stamp,
    is_own,
    mark_of,
    read_served_stamp,
    stamp_of,
)
from rivertwice.timeline.serving import Publication, select_served, select_serving, to_epoch_ms

# The batches and publications between what the served table shows and what it is to show.


@dataclass(frozen=True)
class Build:
    """What a build is to show.

    Attributes:
        path: the head's, up to the last batch (`lineage.path_until`).
        table: the served table: the one that consumers read, or the version's own.
        served, provisional: handles that were opened before all that; None: the table does not exist.
    """

    home: PipelineHome
    definition: Definition
    entries: list[Entry]
    path: list[Segment]
    last: LedgerRow
    table: Place
    served: Snapshot | None
    provisional: Snapshot | None

    @property
    def stamp(self) -> ServedStamp:
        """What the table will show."""
        return ServedStamp(self.entries[-1].seq, self.last.timeline, self.last.batch, mark_of(self.home, self.table))

    @property
    def closed_ms(self) -> int:
        """The window end up to which rows are final."""
        return self.definition.window.closed_ms(self.last.batch_watermark_ms)


@dataclass(frozen=True)
class Span:
    """The batches between what the table shows and what it is to show.

    Attributes:
        fork: the last batch that both have.
        fork_ms, shown_ms: the window ends up to which rows were final at the fork, and at the stamp.
        lost: batches that left the path.
        gained: batches that joined it, with their ledger rows in `fresh`.
        counted: the publications that the table shows, by their number.
        counting: those that count now, oldest first.
    """

    fork: int
    fork_ms: int
    shown_ms: int
    lost: list[Segment]
    gained: list[Segment]
    fresh: list[LedgerRow]
    counted: frozenset[int]
    counting: list[Publication]

    @property
    def is_newly_published(self) -> bool:
        """Whether other publications count than the table shows."""
        return self.counted != {publication.seq for publication in self.counting}


def find_span(build: Build, shown: ServedStamp) -> Span | None:
    """Return the batches between; None if the ledger does not have them all, or there is no batch in common."""
    home, window = build.home, build.definition.window
    earlier = [entry for entry in build.entries if entry.seq <= shown.sequence]
    head = select_head(earlier)
    if head is None or shown.sequence > build.entries[-1].seq:
        return None
    whole_before = path_of(home, head)
    before = path_until(whole_before, shown.batch)
    fork = last_in_common(before, build.path)
    if fork is None or (before[-1].timeline, before[-1].last) != (shown.timeline, shown.batch):
        return None
    rows = read_ledger(home, first_batch=fork)
    after, known = select_on_path(rows, build.path), select_on_path(rows, before)
    if not known or [row.batch for row in after] != list(range(fork, build.last.batch + 1)):
        return None
    publications = publications_of(build.entries)
    semantics_before, semantics = path_semantics(home, whole_before), path_semantics(home, _head_path(build))
    return Span(
        fork=fork,
        fork_ms=window.closed_ms(after[0].batch_watermark_ms),
        shown_ms=window.closed_ms(known[-1].batch_watermark_ms),
        lost=_beyond(before, fork),
        gained=_beyond(build.path, fork),
        fresh=after[1:],
        counted=frozenset(
            entry.seq for entry in publications if entry.seq <= shown.sequence and entry.semantics in semantics_before
        ),
        counting=[entry for entry in publications if entry.semantics in semantics],
    )


def _head_path(build: Build) -> list[Segment]:
    """Return the head's path with segments that have no batch yet: their definitions count too."""
    head = select_head(build.entries)
    return [] if head is None else path_of(build.home, head)


def _beyond(path: Sequence[Segment], batch: int) -> list[Segment]:
    return [Segment(part.timeline, max(part.first, batch + 1), part.last) for part in path if (part.last or 0) > batch]


def find_newly_published(span: Span) -> Ranges | None:
    """Return the window starts whose publication changed; None if one does not count any more. Pure."""
    if span.counted - {publication.seq for publication in span.counting}:
        return None
    # Rows of a backfill that is published twice belong to its newest publication: they leave the windows of the older one.
    backfills = {publication.backfill for publication in span.counting if publication.seq not in span.counted}
    return merged(
        pair for publication in span.counting if publication.backfill in backfills for pair in publication.ranges
    )


# The changes of the served table since its stamp, read from what changed alone: rows that go, and rows that come.
#
# Three things change what a closed window serves, and each names its rows:
#
# - **Batches.** Those that the path gained or lost since the stamp. A row that is emitted once is emitted when its window is
#   closed, so it comes and goes with its batch. With `emit: updates` a window's newest rows may change until it is closed:
#   the open ones are in `provisional`, and after a head move all windows that were open at the fork are chosen again.
# - **Publications.** The windows of new publications are chosen again, from the corrections of those that cover them.
# - **The watermark.** A covered window that closes serves its publication's rows from then on.
#
# A change that is not of these has no increment, and the table is built whole: publications of sessions and head moves after such
# (a session covers by its key, and may reach from any past window), and publications that no longer count (a head that left an
# upgraded path).

MOST_RANGES = 50
"""Ranges of one condition: more cost too much (`storage.sql.is_within`); then the gaps between some are written again too."""
SERVED_FILE_BYTES = 1_000_000
"""Rows lie in the order of their windows, in files of about this size: a publication writes only those again that have its windows."""
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class ServedChange:
    """What one commit does to the served table.

    Attributes:
        where: condition of the rows that go; every added row matches it. None: rows only come.
        published: how many of them come from publications.
        still_open: all rows of `provisional`; None for a pipeline that emits rows once.
    """

    where: str | None
    added: pa.Table
    published: int
    still_open: pa.Table | None


def find_change(build: Build, shown: ServedStamp, shown_open: ServedStamp | None) -> ServedChange | None:
    """Return what changes since the stamps of both tables; None: only a whole build can say.

    Raises:
        TableDamageError: the changelog lost rows of the batches that are read, or the corrections those of a publication.
    """
    span = find_span(build, shown)
    if span is None or build.served is None:
        return None
    ranges = find_newly_published(span)
    has_claims = build.definition.session_keys is not None and bool(span.counting)
    if ranges is None or (has_claims and (span.is_newly_published or span.lost)):
        return None
    emitted = _read_emitted(build, span)
    if emitted is None:
        return None
    closed_ms = build.closed_ms
    if build.definition.has_updates:
        since_ms = _first_change_ms(build, span, shown, emitted)
        newest = _newest_since(build, span, emitted, since_ms, has_open=shown_open == shown)
        if newest is None:
            return None
        still_open, stream = open_rows(newest, build.definition, build.last.batch_watermark_ms), newest
    elif open_rows(emitted, build.definition, build.last.batch_watermark_ms).num_rows:
        return None
    else:
        still_open, stream, since_ms = None, emitted, min(span.shown_ms, closed_ms)
    window, claims = build.definition.window, None
    if has_claims:
        corrections, claims = _read_claims(build, span, emitted, since_ms)
    else:
        corrections = _read_published(build, span, ranges, since_ms)
    added = select_served(
        stream,
        corrections,
        span.counting,
        semantics=frozenset(publication.semantics for publication in span.counting),
        closed_ms=closed_ms,
        start_column=window.start_column,
        end_column=window.end_column,
        session_keys=build.definition.session_keys,
        claims=claims,
    )
    published = added.num_rows - added["_backfill"].null_count
    if build.served.schema.names != added.schema.names:
        return None
    covers = joined(ranges, MOST_RANGES)
    where = _condition(build, span, covers, since_ms)
    if where is not None and covers != ranges:
        added = pa.concat_tables([added, _kept_in_gaps(build, span, covers, ranges, since_ms).cast(added.schema)])
    return ServedChange(where, added, published, still_open)


def _read_emitted(build: Build, span: Span) -> pa.Table | None:
    """Return what the gained batches emitted, all of it."""
    rows = Table(build.home.tables.changelog).read(matching=Where("_batch").is_between(span.fork + 1, build.last.batch))
    if rows is None:
        return None
    emitted = rows.filter(is_on_path(span.gained))
    check_stream_rows(build.home, CommittedBatches.of(span.fresh), emitted)
    return emitted


def _first_change_ms(build: Build, span: Span, shown: ServedStamp, emitted: pa.Table) -> int:
    """Return the window end up to which the newest rows are what they were (emit: updates).

    A batch emits no row of a window that was closed before it. That is checked: the rows of gained and lost batches say it too.
    """
    end_column = build.definition.window.end_column
    since = [span.shown_ms, build.closed_ms, *_least_end(emitted, end_column)]
    if span.lost:
        lost = Table(build.home.tables.changelog).read(
            columns=["_timeline", "_batch", end_column],
            matching=Where("_batch").is_between(span.fork + 1, shown.batch),
        )
        since += [span.fork_ms, *([] if lost is None else _least_end(lost.filter(is_on_path(span.lost)), end_column))]
    return min(since)


def _least_end(rows: pa.Table, end_column: str) -> list[int]:
    return [int(to_epoch_ms(rows[end_column]).min()) - 1] if rows.num_rows else []


def _newest_since(build: Build, span: Span, emitted: pa.Table, since_ms: int, *, has_open: bool) -> pa.Table | None:
    """Return the newest rows of the windows that end after an instant: from `provisional` and the gained batches, if those are all."""
    definition = build.definition
    rows: pa.Table | None
    if has_open and build.provisional is not None and not span.lost and since_ms >= span.shown_ms:
        shown_rows = build.provisional.read()
        rows = None if shown_rows is None else pa.concat_tables([shown_rows.select(emitted.schema.names), emitted])
    else:
        rows = Table(build.home.tables.changelog).read(matching=Where(definition.window.end_column).is_after(since_ms))
        if rows is not None:
            rows = rows.filter(is_on_path(build.path))
            first = min(build.last.batch, pc.min(rows["_batch"]).as_py() or 0) if rows.num_rows else build.last.batch
            wanted = select_on_path(read_ledger(build.home, first_batch=first), build.path)
            require_batches(build.home, CommittedBatches.of(wanted))
    return None if rows is None else newest_rows(rows, definition)


def _read_published(build: Build, span: Span, ranges: Ranges, since_ms: int) -> pa.Table | None:
    """Return the corrections of newly published windows and of those that close, of the publications that have any."""
    home, window = build.home, build.definition.window
    length, step = window.length // _MS, window.step // _MS
    closing = (since_ms - length + 1, build.closed_ms - length + 1)  # starts of the windows that close
    chosen = [
        publication
        for publication in select_serving(span.counting, frozenset(each.semantics for each in span.counting))
        if overlaps(publication.ranges, ranges) or has_start(publication.ranges, closing, step)
    ]
    rows = read_corrections(home, chosen)
    check_corrections(home.root.name, chosen, rows)
    if rows is None:
        return None
    changes = is_inside(to_epoch_ms(rows[window.start_column]), ranges)
    return rows.filter(pa.array(changes | (to_epoch_ms(rows[window.end_column]) > since_ms)))


def _read_claims(build: Build, span: Span, emitted: pa.Table, since_ms: int) -> tuple[pa.Table | None, pa.Table | None]:
    """Return the published sessions that close, and all published sessions that may cover these or newly emitted ones.

    A session covers only those that it overlaps, so claims outside the time of all these rows cover none of them.
    """
    home, window = build.home, build.definition.window
    place, ours = (
        home.tables.corrections,
        Where("_backfill").is_among(sorted({each.backfill for each in span.counting})),
    )
    counts = {str(name): count for (name,), count in Table(place).rows_by(("_backfill",)).items()}
    check_correction_counts(home.root.name, span.counting, counts)
    later = Table(place).read(matching=Where.all([ours, Where(window.end_column).is_after(since_ms)]))
    if later is None:
        return None, None
    closing = later.filter(pa.array(to_epoch_ms(later[window.end_column]) <= build.closed_ms))
    starts = [to_epoch_ms(rows[window.start_column]) for rows in (emitted, closing)]
    ends = [to_epoch_ms(rows[window.end_column]) for rows in (emitted, closing)]
    if not emitted.num_rows and not closing.num_rows:
        return None, None
    first, last = int(np.concatenate(starts).min()), int(np.concatenate(ends).max()) + 1
    overlapping = Where.all(
        [ours, Where(window.end_column).is_after(first - 1), Where(window.start_column).is_before(last)]
    )
    return closing, Table(place).read(matching=overlapping)


def _condition(build: Build, span: Span, covers: Ranges, since_ms: int) -> str | None:
    """Return the condition of all rows that go, which those that come match too; None if none goes. Pure.

    It is never null: of a published row, `_timeline` and `_batch` are, but its status decides before.
    """
    window = build.definition.window
    goes = [Where(window.start_column).is_within(covers)] if covers else []
    goes += [_is_of(segment) for segment in span.lost]
    if since_ms < span.shown_ms:
        goes.append(Where(window.end_column).is_after(since_ms))
    if not goes:
        return None
    comes = [_is_of(segment) for segment in span.gained]
    if since_ms < build.closed_ms:
        comes.append(Where(window.end_column).is_after(since_ms))
    return Where.any([*goes, *comes])


def _is_of(segment: Segment) -> str:
    assert segment.last is not None, "the path has an end"
    return Where.all(
        [
            Where("_status").equals("stream"),
            Where("_timeline").equals(segment.timeline),
            Where("_batch").is_between(segment.first, segment.last),
        ]
    )


def _kept_in_gaps(build: Build, span: Span, covers: Ranges, ranges: Ranges, since_ms: int) -> pa.Table:
    """Return the rows that the condition takes away only because gaps between ranges are covered too."""
    window = build.definition.window
    assert build.served is not None, "the table is there"
    rows = build.served.read(matching=Where(window.start_column).is_within(covers))
    kept = ~is_inside(to_epoch_ms(rows[window.start_column]), ranges)
    if since_ms < span.shown_ms:
        kept &= to_epoch_ms(rows[window.end_column]) <= since_ms
    rows = rows.filter(pa.array(kept))
    is_lost = np.array([_contains(span.lost, *key) for key in _batches_of(rows)], dtype=bool)
    return rows.filter(pa.array(~is_lost))


def _batches_of(rows: pa.Table) -> list[tuple[str | None, int | None]]:
    return list(zip(rows["_timeline"].to_pylist(), rows["_batch"].to_pylist(), strict=True))


def _contains(segments: Sequence[Segment], timeline: str | None, batch: int | None) -> bool:
    return timeline is not None and batch is not None and any(part.contains(timeline, batch) for part in segments)


_RACES = 5
POLL_SECONDS = 0.2


class Way(StrEnum):
    """How a build was made."""

    NOTHING = "nothing"
    APPENDED = "appended"
    REPLACED = "replaced"
    WHOLE = "whole"


@dataclass(frozen=True)
class ServedReport:
    """What a rebuild did.

    Attributes:
        stamp: what the table shows now; None if there is nothing to serve yet.
        way: `nothing`: it showed that already; `appended`: rows were added; `replaced`: rows of windows that changed were
            replaced, and rows added; `whole`: all rows were written.
        rows: rows written.
        published: how many of them come from publications.
    """

    stamp: ServedStamp | None
    way: Way
    rows: int = 0
    published: int = 0

    @property
    def rebuilt(self) -> bool:
        """Whether the table was written."""
        return self.way is not Way.NOTHING


def rebuild_served(home: PipelineHome, definition: Definition, *, force: bool = False) -> ServedReport:
    """Make the served table show the newest sequence and the last committed batch, in one commit; not if rows are gone.

    1. Read sequence, path and the newest batch. 2. Stop if the table has that stamp already. 3. Find what changed since its
    stamp; if that cannot be said, or a table is damaged, choose all rows. 4. Write what changed, or all, with the stamp in the commit. A crash before
    a commit or after it does no harm. 5. For a pipeline that emits updates, overwrite `provisional`: a window that has just
    closed is in both for a moment, never in none.

    The handles that write were opened before step 1: a commit in between, of another host or an erasure, is never hidden.
    With `force` all rows are chosen, whatever the stamp is: rows that a repair wrote again have the stamps of old batches.

    Raises:
        TableDamageError: the changelog lost rows that are read, or the corrections those of a publication.
        LostRaceError: others committed to the table each time; the next caller tries again.
    """
    # A race is lost to another host, an erasure or upkeep: what was read may be old.
    return retry(LostRaceError, tries=_RACES)(_rebuild, home, definition, force=force)


def _rebuild(home: PipelineHome, definition: Definition, *, force: bool) -> ServedReport:
    with serving_lock(home.root):
        # Step 1.
        if not home.is_first_version:
            follow_stamp(home)  # another host may have switched
        tables = home.tables
        served, provisional = (Table(table).open() for table in (tables.served, tables.provisional))
        entries = read_sequence(home)
        head = select_head(entries)
        path = [] if head is None else path_of(home, head)
        last = newest_batch(home, path) if path else None
        if last is None:
            return ServedReport(None, Way.NOTHING)
        build = Build(home, definition, entries, path_until(path, last.batch), last, tables.served, served, provisional)
        # Step 2.
        wanted = [tables.served, tables.provisional] if definition.has_updates else [tables.served]
        shown, *shown_open = [stamp_of(table) for table in wanted]
        _require_own(home, shown, build.stamp.version)
        if not force and all(stamp == build.stamp for stamp in (shown, *shown_open)):
            return ServedReport(build.stamp, Way.NOTHING)
        # Steps 3 to 5.
        Table(tables.changelog).require_whole()
        Table(tables.corrections).require_whole()
        is_kept = not force and shown is not None and all(_is_undamaged(table) for table in wanted)
        change = find_change(build, shown, *shown_open or [None]) if is_kept and shown is not None else None
        return _write_whole(build) if change is None else _write(build, change)


def _require_own(home: PipelineHome, shown: ServedStamp | None, mark: str) -> None:
    """Check that the table is this version's to write.

    Raises:
        LostRaceError: another version serves now; this host knows it from now on.
    """
    if not is_own(shown, mark):
        message = f"{follow_stamp(home)} serves now, so {home.root.name} keeps its rows for itself; nothing was written"
        raise LostRaceError(message)


def _is_undamaged(table: Place) -> bool:
    """Say whether a table holds what its commits wrote: what a power loss took from it is not kept on, but built again."""
    is_torn = isinstance(table, Path) and bool(TableCare(table).find_torn())
    return not is_torn and not Table(table).broken_files()


def _write(build: Build, change: ServedChange) -> ServedReport:
    assert build.served is not None, "the table has a stamp"
    table, metadata = build.table, {SERVED_KEY: build.stamp.plain()}
    if change.where is None:
        Table(table).append_rows(change.added, metadata=metadata, at=build.served)
    else:
        Table(table).replace_rows(change.added, where=change.where, metadata=metadata, at=build.served)
    if change.still_open is not None:
        Table(build.home.tables.provisional).overwrite(change.still_open, metadata=metadata, at=build.provisional)
    way = Way.APPENDED if change.where is None else Way.REPLACED
    return ServedReport(build.stamp, way, change.added.num_rows, change.published)


def _write_whole(build: Build) -> ServedReport:
    home, definition = build.home, build.definition
    emitted = path_rows(home, build.path)
    if emitted is None:
        message = (
            f"the ledger of {home.root.name} has batch {build.last.batch} of {build.last.timeline}, but there is no changelog; "
            f"its rows are lost; what is served stays as it is; `rivertwice admin repair {home.root.name}` says what can be done"
        )
        raise LedgerError(message)
    check_stream_rows(home, committed_batches(home, build.path), emitted)
    stream = newest_rows(emitted, definition)
    publications, head = publications_of(build.entries), select_head(build.entries)
    assert head is not None, "there is a path"
    semantics = path_semantics(home, path_of(home, head))
    corrections = read_corrections(home, publications)
    check_corrections(home.root.name, select_serving(publications, semantics), corrections)
    served = select_served(
        stream,
        corrections,
        publications,
        semantics=semantics,
        closed_ms=build.closed_ms,
        start_column=definition.window.start_column,
        end_column=definition.window.end_column,
        session_keys=definition.session_keys,
    )
    metadata = {SERVED_KEY: build.stamp.plain()}
    table = Table(build.table, file_bytes=SERVED_FILE_BYTES)
    table.overwrite(served, metadata=metadata, at=build.served, new=build.served is None)
    if definition.has_updates:
        still_open = open_rows(stream, definition, build.last.batch_watermark_ms)
        Table(home.tables.provisional).overwrite(still_open, metadata=metadata, at=build.provisional)
    return ServedReport(build.stamp, Way.WHOLE, served.num_rows, served.num_rows - served["_backfill"].null_count)


def serving_lock(root: Path) -> AbstractContextManager[None]:
    """Let one process of this host at a time write what a pipeline serves: what was read earlier never overwrites what was read later."""
    return lock(root / "served.lock")


def read_served(home: PipelineHome) -> pa.Table | None:
    """Return the served rows, or None if the table was never built."""
    return Table(home.tables.served).read()


def wait_served(home: PipelineHome, sequence: int, timeout: float, batch: tuple[str, int] | None = None) -> ServedStamp:
    """Wait until the served table shows at least `sequence`, and at least this batch of a timeline, unless the head moved since.

    Raises:
        ServiceError: it does not show it within `timeout` seconds.
    """
    stamp = None
    for _ in Deadline.after(timeout).polls(POLL_SECONDS):
        stamp = read_served_stamp(home)
        if stamp is None or stamp.sequence < sequence:
            continue
        if batch is None or stamp.timeline != batch[0] or stamp.batch >= batch[1]:
            return stamp
    wanted, shows = f"{sequence}", "" if stamp is None else f"sequence {stamp.sequence}"
    if batch is not None and stamp is not None:
        wanted, shows = f"{sequence} and {batch[1]}", f"{shows} and batch {stamp.batch}"
    shown = "was never built" if stamp is None else f"shows {shows}"
    message = (
        f"the served table of {home.root.name} {shown}, not {wanted}, after {timeout:g} s; the agent rebuilds it: "
        "look at `rivertwice status` and the agent's log"
    )
    raise ServiceError(message)


def export_sha256(home: PipelineHome) -> str:
    """Return the SHA-256 of the served table's rows as `rivertwice show NAME --write FILE.jsonl` writes them.

    The stamp is in the commit, not in the rows: a head move that changes no served row does not change the hash.

    Raises:
        ServiceError: the table was never built.
    """
    table = Table(home.tables.served).open()
    if table is None:
        message = f"the served table of {home.root.name} was never built; the agent builds it after the first batch"
        raise ServiceError(message)
    files = TableFiles(table)
    schema = pa.schema([field for field in files.schema if field.name not in OWN_COLUMNS])
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="rivertwice-") as scratch:
        batches = files.batches(schema.names)
        for rows in sorted_rows(batches, schema, schema.names[0], Path(scratch)):
            digest.update(b"".join(line + b"\n" for line in json_lines(rows)))
    return digest.hexdigest()
