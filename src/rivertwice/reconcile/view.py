"""What a reconcile looks at, observed once and in an order that leaves no gap: served, then sequence and ledger, then rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from rivertwice.config import PipelineHome
from rivertwice.deadletters.desk import read_cures
from rivertwice.deadletters.model import Cure
from rivertwice.errors import LedgerError
from rivertwice.log.addresses import Part
from rivertwice.log.gaps import accepted_gaps
from rivertwice.pipeline.bundle import load_bundle_definition
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.fingerprint import fingerprint_of
from rivertwice.reconcile.gaps import Jump
from rivertwice.reconcile.model import Shape
from rivertwice.reconcile.rederive import offsets_of
from rivertwice.store import delta
from rivertwice.timeline.ledger import LedgerRow, read_ledger
from rivertwice.timeline.lineage import load_timeline, path_of, path_semantics, select_on_path
from rivertwice.timeline.sequence import read_sequence, select_head
from rivertwice.timeline.served import (
    ServedStamp,
    publications_of,
    read_corrections,
    read_served,
    served_stamp,
    stream_rows,
)
from rivertwice.timeline.serving import Publication


@dataclass(frozen=True)
class Meaning:
    """One definition of the path, told apart by the hashes that decide about results."""

    definition: Definition
    semantics: str
    decode: str


@dataclass(frozen=True)
class HeadView:
    """The head's path as it was at one moment.

    Attributes:
        rows: committed batches on the path, in order.
        groups: per batch, the number of its meaning.
        meanings: definitions that ran on the path, distinct by semantics and decode.
        semantics: of the head's path; publications of these serve.
        genesis: first offsets of the path's root, in all topics.
        sequence: newest head move or publication.
        stream: changelog rows on the path.
        dead, late: dead letters and kept late rows of all batches, or None.
        cures: what dead letters on the path should have been, as it was decided; ended ones too.
        served, served_stamp: the served table and what it shows, or None.
        jumps: accepted gaps on the path, by the batch that begins behind each.
        corrections: of sessions the addresses that publications published; None: there are none, or windows do not move.
    """

    home: PipelineHome
    rows: Sequence[LedgerRow]
    groups: Sequence[int]
    meanings: Sequence[Meaning]
    semantics: frozenset[str]
    genesis: Mapping[Part, int]
    sequence: int
    publications: Sequence[Publication]
    stream: pa.Table | None
    dead: pa.Table | None
    late: pa.Table | None
    served: pa.Table | None
    served_stamp: ServedStamp | None
    jumps: Sequence[Jump] = ()
    cures: Sequence[Cure] = ()
    corrections: pa.Table | None = None

    @property
    def last(self) -> LedgerRow:
        """The last committed batch."""
        return self.rows[-1]

    @property
    def newest(self) -> Meaning:
        """The definition of the last committed batch."""
        return self.meanings[self.groups[-1]]

    @property
    def older(self) -> dict[int, Definition]:
        """The definitions that ran before the newest one, by their number; of a fold none, for its states have no rule then."""
        if self.newest.definition.window.is_fold:
            return {}
        return {number: one.definition for number, one in enumerate(self.meanings) if number != self.groups[-1]}

    @property
    def topics(self) -> list[str]:
        """The topics of the newest definition's sources."""
        return self.newest.definition.topics

    @property
    def index(self) -> dict[tuple[str, int], int]:
        """(timeline, batch) to path index."""
        return {(row.timeline, row.batch): number for number, row in enumerate(self.rows)}


def observe_head(home: PipelineHome) -> HeadView:
    """Return what the head's path holds now.

    The served table is read before the ledger, so it never shows a batch the ledger here lacks; changelog rows of
    batches committed in between are left out by the caller, who knows the last batch.

    Raises:
        LedgerError: nothing is committed yet.
    """
    stamp, served = _read_served(home)
    entries = read_sequence(home)
    head = select_head(entries)
    path = [] if head is None else path_of(home, head)
    rows = select_on_path(read_ledger(home), path)
    if not rows:
        message = (
            f"no batch of {home.root.name} is committed yet, so there is nothing to reconcile; start the stream first"
        )
        raise LedgerError(message)
    stream = stream_rows(home)
    groups, meanings = _meanings(home, rows)
    newest = meanings[groups[-1]].definition
    topics = newest.topics
    publications = publications_of(entries)
    return HeadView(
        home=home,
        rows=rows,
        groups=groups,
        meanings=meanings,
        semantics=path_semantics(home, path),
        genesis=offsets_of(load_timeline(home, path[0].timeline).genesis, topics),
        sequence=entries[-1].seq if entries else 0,
        publications=publications,
        stream=stream,
        dead=delta.read(
            home.tables.dead_letters, columns=["_timeline", "_batch", "topic", "partition", "offset", "reason"]
        ),
        late=delta.read(
            home.tables.late_rows,
            columns=["_timeline", "_batch", "window_start", "window_end", "topic", "partition", "offset"],
        ),
        served=served,
        served_stamp=stamp,
        cures=read_cures(home, rows),
        jumps=_jumps(home, [segment.timeline for segment in path], rows, topics),
        corrections=read_corrections(home, publications) if newest.window.is_session else None,
    )


def _jumps(home: PipelineHome, path: Sequence[str], rows: Sequence[LedgerRow], topics: Sequence[str]) -> list[Jump]:
    """Return the accepted gaps that the path went past; a start that no acceptance explains stays a defect.

    A timeline may have met the next gap before its first batch: then both lie before the first batch behind them.
    """
    gaps = accepted_gaps(home)
    found = []
    for place, name in enumerate(path):
        behind = [index for index, row in enumerate(rows) if row.timeline in path[place:]]
        if name in gaps and behind:
            found.append(Jump(behind[0], gaps[name], offsets_of(load_timeline(home, name).genesis, topics)))
    return found


def _read_served(home: PipelineHome) -> tuple[ServedStamp | None, pa.Table | None]:
    """Return the served table with the stamp of the very build that was read; (None, None) if it never stood still."""
    for _ in range(5):
        stamp = served_stamp(home)
        served = read_served(home)
        if served_stamp(home) == stamp:
            return stamp, served
    return None, None


def _meanings(home: PipelineHome, rows: Sequence[LedgerRow]) -> tuple[list[int], list[Meaning]]:
    """Return the number of each batch's meaning, and the meanings; of bundles that mean the same the newest one's words stand."""
    by_bundle: dict[str, int] = {}
    meanings: list[Meaning] = []
    definitions = {bundle: load_bundle_definition(home.bundles, bundle) for bundle in {row.bundle for row in rows}}
    for bundle in dict.fromkeys(row.bundle for row in rows):
        fingerprint = fingerprint_of(definitions[bundle])
        found = Meaning(definitions[bundle], fingerprint.semantics, fingerprint.decode)
        same = [
            number
            for number, known in enumerate(meanings)
            if (known.semantics, known.decode) == (found.semantics, found.decode)
        ]
        if not same:
            meanings.append(found)
        by_bundle[bundle] = same[0] if same else len(meanings) - 1
    newest = {by_bundle[row.bundle]: definitions[row.bundle] for row in rows}
    return [by_bundle[row.bundle] for row in rows], [
        replace(one, definition=newest[number]) for number, one in enumerate(meanings)
    ]


def shape_of(definition: Definition) -> Shape:
    """Return how result rows of a definition are addressed and compared."""
    return Shape(
        keys=tuple(definition.row_keys),
        columns=tuple(definition.columns),
        tolerances={
            name: column.tolerance for name, column in definition.columns.items() if column.tolerance is not None
        },
        count_column=definition.count_column,
    )
