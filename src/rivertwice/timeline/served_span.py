"""The batches and publications between what the served table shows and what it is to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rivertwice.config import PipelineHome, Place
from rivertwice.pipeline.definition import Definition
from rivertwice.store import delta
from rivertwice.timeline.ledger import LedgerRow, read_ledger
from rivertwice.timeline.lineage import Segment, last_in_common, path_of, path_semantics, path_until, select_on_path
from rivertwice.timeline.sequence import Entry, select_head
from rivertwice.timeline.served_ranges import Ranges, merged
from rivertwice.timeline.served_rows import publications_of
from rivertwice.timeline.served_stamp import ServedStamp, mark_of
from rivertwice.timeline.serving import Publication


@dataclass(frozen=True)
class Build:
    """What a build is to show.

    Attributes:
        home: the pipeline's.
        definition: what the head runs.
        entries: the sequence.
        path: the head's, up to the last batch (`lineage.path_until`).
        last: the last committed batch on it.
        table: the served table: the one that consumers read, or the version's own.
        served, provisional: handles that were opened before all that; None: the table does not exist.
    """

    home: PipelineHome
    definition: Definition
    entries: list[Entry]
    path: list[Segment]
    last: LedgerRow
    table: Place
    served: delta.Table | None
    provisional: delta.Table | None

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
