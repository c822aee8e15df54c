"""What became of the served table since its stamp, read from what changed alone: rows that go, and rows that come.

Three things change what a closed window serves, and each names its rows:

- **Batches.** Those that the path gained or lost since the stamp. A row that is emitted once is emitted when its window is
  closed, so it comes and goes with its batch. With `emit: updates` a window's newest rows may change until it is closed:
  the open ones are in `provisional`, and after a head move all windows that were open at the fork are chosen again.
- **Publications.** The windows of new publications are chosen again, from the corrections of those that cover them.
- **The watermark.** A covered window that closes serves its publication's rows from then on.

A change that is not of these has no increment, and the table is built whole: publications of sessions and head moves after such
(a session covers by its key, and may reach from any past window), and publications that no longer count (a head that left an
upgraded path).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.store import delta
from rivertwice.store.delta_counts import rows_by
from rivertwice.store.sql import all_of, any_of, equals, is_after, is_among, is_before, is_between, is_within
from rivertwice.timeline.committed import CommittedBatches
from rivertwice.timeline.intact import check_correction_counts, check_corrections, check_stream_rows, require_batches
from rivertwice.timeline.ledger import read_ledger
from rivertwice.timeline.lineage import (
    Segment,
    select_on_path,
)
from rivertwice.timeline.served_ranges import Ranges, has_start, is_inside, joined, overlaps
from rivertwice.timeline.served_rows import is_on_path, newest_rows, open_rows, read_corrections
from rivertwice.timeline.served_span import Build, Span, find_newly_published, find_span
from rivertwice.timeline.served_stamp import ServedStamp
from rivertwice.timeline.serving import select_served, select_serving, to_epoch_ms

MOST_RANGES = 50
"""Ranges of one condition: more cost too much (`store.sql.is_within`); then the gaps between some are written again too."""
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Change:
    """What one commit does to the served table.

    Attributes:
        where: condition of the rows that go; every added row matches it. None: rows only come.
        added: the rows that come.
        published: how many of them come from publications.
        still_open: all rows of `provisional`; None for a pipeline that emits rows once.
    """

    where: str | None
    added: pa.Table
    published: int
    still_open: pa.Table | None


def find_change(build: Build, shown: ServedStamp, shown_open: ServedStamp | None) -> Change | None:
    """Return what changes since the stamps of both tables; None: only a whole build can say.

    Args:
        build: what is to be shown.
        shown: what the served table shows.
        shown_open: what `provisional` shows.

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
    if pa.schema(build.served.schema().to_arrow()).names != added.schema.names:
        return None
    covers = joined(ranges, MOST_RANGES)
    where = _condition(build, span, covers, since_ms)
    if where is not None and covers != ranges:
        added = pa.concat_tables([added, _kept_in_gaps(build, span, covers, ranges, since_ms).cast(added.schema)])
    return Change(where, added, published, still_open)


def _read_emitted(build: Build, span: Span) -> pa.Table | None:
    """Return what the gained batches emitted, all of it."""
    rows = delta.read(build.home.tables.changelog, between=("_batch", span.fork + 1, build.last.batch))
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
        lost = delta.read(
            build.home.tables.changelog,
            columns=["_timeline", "_batch", end_column],
            between=("_batch", span.fork + 1, shown.batch),
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
        shown_rows = delta.read(build.home.tables.provisional, at=build.provisional)
        rows = None if shown_rows is None else pa.concat_tables([shown_rows.select(emitted.schema.names), emitted])
    else:
        rows = delta.read(build.home.tables.changelog, matching=is_after(definition.window.end_column, since_ms))
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
    place, ours = home.tables.corrections, is_among("_backfill", sorted({each.backfill for each in span.counting}))
    counts = {str(name): count for (name,), count in rows_by(place, ("_backfill",)).items()}
    check_correction_counts(home.root.name, span.counting, counts)
    later = delta.read(place, matching=all_of([ours, is_after(window.end_column, since_ms)]))
    if later is None:
        return None, None
    closing = later.filter(pa.array(to_epoch_ms(later[window.end_column]) <= build.closed_ms))
    starts = [to_epoch_ms(rows[window.start_column]) for rows in (emitted, closing)]
    ends = [to_epoch_ms(rows[window.end_column]) for rows in (emitted, closing)]
    if not emitted.num_rows and not closing.num_rows:
        return None, None
    first, last = int(np.concatenate(starts).min()), int(np.concatenate(ends).max()) + 1
    overlapping = all_of([ours, is_after(window.end_column, first - 1), is_before(window.start_column, last)])
    return closing, delta.read(place, matching=overlapping)


def _condition(build: Build, span: Span, covers: Ranges, since_ms: int) -> str | None:
    """Return the condition of all rows that go, which those that come match too; None if none goes. Pure.

    It is never null: of a published row, `_timeline` and `_batch` are, but its status decides before.
    """
    window = build.definition.window
    goes = [is_within(window.start_column, covers)] if covers else []
    goes += [_is_of(segment) for segment in span.lost]
    if since_ms < span.shown_ms:
        goes.append(is_after(window.end_column, since_ms))
    if not goes:
        return None
    comes = [_is_of(segment) for segment in span.gained]
    if since_ms < build.closed_ms:
        comes.append(is_after(window.end_column, since_ms))
    return any_of([*goes, *comes])


def _is_of(segment: Segment) -> str:
    assert segment.last is not None, "the path has an end"
    return all_of(
        [
            equals("_status", "stream"),
            equals("_timeline", segment.timeline),
            is_between("_batch", segment.first, segment.last),
        ]
    )


def _kept_in_gaps(build: Build, span: Span, covers: Ranges, ranges: Ranges, since_ms: int) -> pa.Table:
    """Return the rows that the condition takes away only because gaps between ranges are covered too."""
    window = build.definition.window
    rows = delta.read(build.table, matching=is_within(window.start_column, covers), at=build.served)
    assert rows is not None, "the table is there"
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
