"""Values of delivery: how far a sink is, what the tables hold, the next step, and the records of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rivertwice.timeline.lineage import Segment
from rivertwice.timeline.serving import Publication

EMIT, CORRECT, WITHDRAW = "emit", "correct", "withdraw"
BATCHES, PUBLISHED, MOVED = "batches", "publication", "move"
BEFORE_ALL = -(1 << 62)
"""Watermark before the first batch: no window is closed."""


@dataclass(frozen=True)
class Position:
    """What a sink holds: what the path of `timeline` up to `batch` serves with the publications up to `seq`.

    Attributes:
        timeline: the head that was delivered last; `batch` may have been committed by an ancestor.
        seq: newest entry of the sequence that counts.
        born: when that timeline was created: tells apart timelines of one name in two homes.
        number: steps delivered; rises by one with each.
    """

    timeline: str
    batch: int
    seq: int
    born: str
    number: int


@dataclass(frozen=True)
class Committed:
    """A committed batch, as far as delivery needs it."""

    timeline: str
    batch: int
    closed_ms: int
    rows: int


@dataclass(frozen=True)
class Line:
    """A timeline and its path, root first, with the semantics hashes whose publications serve on it."""

    timeline: str
    born: str
    path: tuple[Segment, ...]
    semantics: frozenset[str]


@dataclass(frozen=True)
class View:
    """What the tables say.

    Attributes:
        head: the head's line.
        batches: committed batches on the head's path, in order: all, or those from the position's own batch on.
        publications: all of them, oldest first.
        seq: newest entry of the sequence.
        held: the line of the position's timeline; None without a position.
        held_closed_ms: watermark of the position's batch.
    """

    head: Line
    batches: tuple[Committed, ...]
    publications: tuple[Publication, ...]
    seq: int
    held: Line | None = None
    held_closed_ms: int = BEFORE_ALL


@dataclass(frozen=True)
class DeliveryStep:
    """What is delivered next, in one transaction.

    Attributes:
        kind: `batches`: rows of these batches, none of them delivered yet. `publication`: what it changes in `ranges`.
            `move`: the head left the position's path; whatever serves otherwise now, in all windows.
        batches: of kind `batches`; in order.
        ranges: of kind `publication`: where the windows start that it may change, half-open, epoch milliseconds.
        closed_ms: watermark that `to` stands at.
        to: the position behind the step.
    """

    kind: str
    to: Position
    closed_ms: int
    batches: tuple[Committed, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class RowOrigin:
    """Where a row comes from: a batch, or a backfill."""

    timeline: str | None
    batch: int | None
    backfill: str | None


@dataclass(frozen=True)
class DeliveredRecord:
    """One delivered row.

    Attributes:
        op: `emit`: a batch emitted it; of newest rows it takes the place of whatever its key had. `correct`: it takes the place of another, or a publication brought it.
            `withdraw`: the row of this key counts no more, and no other takes its place.
        key: canonical JSON of pipeline, window (but of newest rows) and keys: equal exactly for equal keys.
        values: the result columns in the shape's order; for `withdraw` those that count no more.
        address: where the row comes from; None for `withdraw`.
        replaces: where the row of this key came from that counted before; of newest rows that a batch changed it is not looked up.
        old: its values. Rows of equal values are not delivered again, so it may have been delivered with another address.
    """

    op: str
    key: str
    values: tuple[Any, ...]
    address: RowOrigin | None
    replaces: RowOrigin | None = None
    old: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Newest:
    """Of a fold only the newest row of each key is delivered (`rows: newest`).

    Attributes:
        views: the fold's sources in the definition's order; empty where there is one.
        deleted: column that says that the key is gone; None: no key ever goes.
    """

    views: tuple[str, ...] = ()
    deleted: str | None = None


@dataclass(frozen=True)
class DeliveredColumns:
    """Result columns of a pipeline: window start, window end, keys, the others, in this order.

    Attributes:
        sessions: whether windows are sessions.
        newest: of a fold: the keys are its own, and no window tells rows apart.
        updates_ms: a batch emits every row that it changed; the newest of an address counts, also while its window is open. How
            long windows are, in milliseconds; None: rows are emitted once, when their window closes.
    """

    pipeline: str
    start: str
    end: str
    keys: tuple[str, ...]
    others: tuple[str, ...]
    sessions: bool = False
    newest: Newest | None = None
    updates_ms: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them."""
        return (self.start, self.end, *self.keys, *self.others)


@dataclass(frozen=True)
class Parcel:
    """The records of one step, and the positions before and behind it. A sink takes all of it or nothing.

    Attributes:
        asked: somebody asked for these again; the destination has refused each of them before.
    """

    shape: DeliveredColumns
    sink: str
    records: Sequence[DeliveredRecord]
    before: Position | None
    after: Position
    asked: bool = False
