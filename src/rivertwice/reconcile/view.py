"""What a reconcile looks at, observed once and in an order that leaves no gap: served, then sequence and ledger, then rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from rivertwice.core import PipelineHome
from rivertwice.definition import Definition
from rivertwice.log import Part, Parts
from rivertwice.reconcile.copies import PublishedCopies
from rivertwice.reconcile.gaps import SkippedRange
from rivertwice.reconcile.model import DefectFinding, LateRow, RowColumns, RowId, ServedRow
from rivertwice.reconcile.seals.scope import Pieces, Scope
from rivertwice.storage import Snapshot
from rivertwice.timeline import Cure, FirstLoad, LedgerRow, Publication, Segment, ServedStamp


@dataclass(frozen=True)
class DefinitionVersion:
    """One definition of the path, identified by the hashes that decide about results."""

    definition: Definition
    semantics: str
    decode: str


@dataclass(frozen=True)
class SealedPrefix:
    """The part of the path that was compared before, of which a view holds only what the windows in scope need.

    Attributes:
        count: how many of the view's first rows are batches of the prefix; the others follow the prefix, without a gap.
        late_ms, batch_ms: their watermarks, as they were proved (epoch ms).
        end_offsets: of the prefix's last batch; all topics.
        last_batch: number of the prefix's last batch; numbers rise along a path.
        pieces: of each of its batches, which offsets are read.
        unread: path indexes of those of which not all are; their ledger rows were proved before.
    """

    scope: Scope
    count: int
    late_ms: tuple[int, ...]
    batch_ms: tuple[int, ...]
    end_offsets: Mapping[Part, int]
    last_batch: int
    pieces: tuple[Pieces, ...]
    unread: frozenset[int]


@dataclass(frozen=True)
class Handles:
    """The tables of one moment, opened and not read; None: there is no such table.

    Attributes:
        path: the head's path up to its last batch; only these rows of the changelog count.
    """

    changelog: Snapshot | None
    served: Snapshot | None
    corrections: Snapshot | None
    dead: Snapshot | None
    late: Snapshot | None
    path: Sequence[Segment]


@dataclass(frozen=True)
class HeadView:
    """The head's path as it was at one moment, from its first batch or from a seal on.

    Attributes:
        rows: committed batches on the path, in order.
        groups: per batch, the number of its definition version.
        versions: definitions that ran on the path, distinct by semantics and decode.
        semantics: of the head's path; publications of these serve.
        genesis: first offsets of the path's root, in all topics.
        sequence: newest head move or publication.
        stream: changelog rows on the path.
        dead, late: dead letters and kept late rows of all batches, or None.
        cures: what dead letters on the path should have been, as it was decided; ended ones too.
        served, served_stamp: the served table and what it shows, or None.
        jumps: what the path skipped, by the batch that begins after each: accepted gaps, and a first load by batch.
        corrections: the rows that publications published; None: there are none.
        contradicted: fields of the ledger that the copies contradict; `rows` are as the commits have them.
        prefix: what of the path was compared before and is left out here; None: everything is here.
        served_total: rows of the whole served table, which `served` may hold only in part; None: not known.
        handles: the tables, if they are too large to be read here; `stream`, `dead`, `late`, `served` and `corrections` are then
            None, or hold the rows of some windows.
    """

    home: PipelineHome
    rows: Sequence[LedgerRow]
    groups: Sequence[int]
    versions: Sequence[DefinitionVersion]
    semantics: frozenset[str]
    genesis: Mapping[Part, int]
    sequence: int
    publications: Sequence[Publication]
    stream: pa.Table | None
    dead: pa.Table | None
    late: pa.Table | None
    served: pa.Table | None
    served_stamp: ServedStamp | None
    jumps: Sequence[SkippedRange] = ()
    cures: Sequence[Cure] = ()
    corrections: pa.Table | None = None
    copies: PublishedCopies = field(default_factory=PublishedCopies)
    contradicted: Sequence[DefectFinding] = ()
    prefix: SealedPrefix | None = None
    served_total: int | None = None
    handles: Handles | None = None

    @property
    def load(self) -> FirstLoad | None:
        """The first load by batch that the path began after, or None."""
        return next((jump.skipped for jump in self.jumps if isinstance(jump.skipped, FirstLoad)), None)

    @property
    def first_new(self) -> int:
        """Path index of the first batch that was not compared before."""
        return 0 if self.prefix is None else self.prefix.count

    @property
    def unread(self) -> frozenset[int]:
        """Path indexes of the batches of which not all records are read: an earlier run compared their ledger rows."""
        return frozenset() if self.prefix is None else self.prefix.unread

    def pieces(self, ranges: Sequence[Parts]) -> list[Pieces] | None:
        """Return which offsets are read of each batch; None: all, and what lies between them.

        Args:
            ranges: offsets of each batch.
        """
        if self.prefix is None:
            return None
        fresh: list[Pieces] = [{part: [pair] for part, pair in batch.items()} for batch in ranges[self.first_new :]]
        return [*self.prefix.pieces, *fresh]

    def read_whole(self) -> HeadView:
        """Return the view that reads all records of its batches."""
        assert self.prefix is not None, "any other view does"
        whole = tuple({part: (pair,) for part, pair in row.parts().items()} for row in self.rows[: self.first_new])
        return replace(self, prefix=replace(self.prefix, pieces=whole, unread=frozenset()))

    def judges(self, start_ms: int) -> bool:
        """Say whether a window is judged."""
        return self.prefix is None or self.prefix.scope.contains(start_ms)

    def is_new(self, batch: int) -> bool:
        """Say whether a batch of the path, by its number, was not compared before."""
        return self.prefix is None or batch > self.prefix.last_batch

    @property
    def last(self) -> LedgerRow:
        """The last committed batch."""
        return self.rows[-1]

    @property
    def newest(self) -> DefinitionVersion:
        """The definition of the last committed batch."""
        return self.versions[self.groups[-1]]

    @property
    def older(self) -> dict[int, Definition]:
        """The definitions before the newest one, by their number; none for a fold, because no rule covers its states then."""
        if self.newest.definition.window.kind.keeps_every_key:
            return {}
        return {number: version.definition for number, version in enumerate(self.versions) if number != self.groups[-1]}

    @property
    def topics(self) -> list[str]:
        """The topics of the newest definition's sources."""
        return self.newest.definition.topics

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Ids of the topics that the offsets belong to, as the head's timeline recorded them."""
        line = self.copies.timelines.get(self.last.timeline)
        return self.last.topic_ids if line is None else line.topic_ids

    @property
    def index(self) -> dict[tuple[str, int], int]:
        """(timeline, batch) to path index."""
        return {(row.timeline, row.batch): number for number, row in enumerate(self.rows)}


@dataclass(frozen=True)
class Served:
    """The served table, with what a judge needs to know of it.

    Attributes:
        closed_ms: windows that end at or before it are served.
    """

    view: HeadView
    rows: Mapping[RowId, Sequence[ServedRow]]
    closed_ms: int
    late: Sequence[LateRow]


def counted_publications(view: HeadView) -> list[Publication]:
    """Return the publications that the served table counts, by its stamp."""
    stamp = view.served_stamp
    return (
        [] if stamp is None else [publication for publication in view.publications if publication.seq <= stamp.sequence]
    )


def shape_of(definition: Definition) -> RowColumns:
    """Return how result rows of a definition are addressed and compared."""
    return RowColumns(
        keys=tuple(definition.row_keys),
        columns=tuple(definition.columns),
        tolerances={
            name: column.tolerance for name, column in definition.columns.items() if column.tolerance is not None
        },
        count_column=definition.count_column,
    )
