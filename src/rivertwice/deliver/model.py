"""Values of delivery: a sink's position, the content of the tables, the next step, and the records of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from rivertwice.timeline import Publication, Segment

EMIT, CORRECT, WITHDRAW = "emit", "correct", "withdraw"
BATCHES, PUBLISHED, MOVED = "batches", "publication", "move"
BEFORE_ALL = -(1 << 62)
"""Watermark before the first batch: no window is closed."""


@dataclass(frozen=True)
class Position:
    """A sink's position: it has what the path of `timeline` up to `batch` serves with the publications up to `seq`.

    Attributes:
        timeline: the head that was delivered last; `batch` may have been committed by an ancestor.
        seq: newest entry of the sequence that counts.
        born: when that timeline was created; it distinguishes timelines of the same name in two homes.
        number: number of delivered steps; each part of a large step counts.
        version: name of the pipeline's version whose tables these are; empty: the first one.
        part: the step after this position that the sink has a part of; None: it has no part of any.
    """

    timeline: str
    batch: int
    seq: int
    born: str
    number: int
    version: str = ""
    part: StepPart | None = None

    @property
    def whole(self) -> Position | None:
        """The position after the last step that is delivered as a whole; None before the first one."""
        if self.part is None:
            return self
        return None if self.part.is_first else replace(self, part=None)


@dataclass(frozen=True)
class StepPart:
    """The first part of a step, which the sink has.

    Attributes:
        to: the position after the whole step.
        done: number of the step's records that it has.
        keys: SHA-256 of their keys: the step is computed again to deliver the rest, and must be the same.
        is_first: no step was delivered before this one.
    """

    to: Position
    done: int
    keys: str
    is_first: bool = False


@dataclass(frozen=True)
class Committed:
    """A committed batch, as far as delivery needs it; `at`: when it was committed."""

    timeline: str
    batch: int
    closed_ms: int
    rows: int
    at: datetime | None = None


@dataclass(frozen=True)
class Line:
    """A timeline and its path, root first, with the semantics hashes whose publications serve on it.

    Attributes:
        version: name of the pipeline's version that has it; empty: the first one.
    """

    timeline: str
    born: str
    path: tuple[Segment, ...]
    semantics: frozenset[str]
    version: str = ""


@dataclass(frozen=True)
class View:
    """The content of the tables.

    Attributes:
        batches: committed batches on the head's path, in order: all, or those from the position's own batch on.
        publications: all publications, oldest first.
        seq: newest entry of the sequence.
        held: the line of the position's timeline; None without a position.
        held_closed_ms: watermark of the position's batch.
        held_publications: those of the version that the position belongs to, if another one serves now.
    """

    head: Line
    batches: tuple[Committed, ...]
    publications: tuple[Publication, ...]
    seq: int
    held: Line | None = None
    held_closed_ms: int = BEFORE_ALL
    held_publications: tuple[Publication, ...] | None = None
    seq_at: datetime | None = None


@dataclass(frozen=True)
class DeliveryStep:
    """The next step: what is delivered in one transaction.

    Attributes:
        kind: `batches`: rows of these batches, none of them delivered yet. `publication`: the rows that it changes in `ranges`.
            `move`: the head left the position's path, or another version serves; all rows that differ now, in all windows.
        batches: for kind `batches`; in order.
        ranges: for kind `publication`: starts of the windows that it may change, half-open ranges, epoch milliseconds.
        closed_ms: the watermark at `to`.
    """

    kind: str
    to: Position
    closed_ms: int
    batches: tuple[Committed, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class RowOrigin:
    """The origin of a row: a batch, or a backfill."""

    timeline: str | None
    batch: int | None
    backfill: str | None


@dataclass(frozen=True)
class DeliveredRecord:
    """One delivered row.

    Attributes:
        op: `emit`: a batch emitted it; with `rows: newest` it replaces any earlier row of its key. `correct`: it replaces another
            row, or comes from a publication. `withdraw`: the row of this key does not count any more, and has no replacement.
        key: canonical JSON of pipeline, window (not with `rows: newest`) and keys: equal exactly for equal keys.
        values: the result columns in the shape's order; for `withdraw` those of the row that does not count any more.
        address: the origin of the row; None for `withdraw`.
        replaces: the origin of the earlier row of this key; for a newest row that a batch changed it is not determined.
        old: the earlier row's values. Rows with equal values are not delivered again, so it may have been delivered with another
            address.
        columns: of `values` and `old`, where they are not the parcel's: a withdrawn row of a version with other keys.
    """

    op: str
    key: str
    values: tuple[Any, ...]
    address: RowOrigin | None
    replaces: RowOrigin | None = None
    old: tuple[Any, ...] | None = None
    columns: DeliveredColumns | None = None


@dataclass(frozen=True)
class Newest:
    """Delivery of only the newest row of each key of a fold (`rows: newest`).

    Attributes:
        views: the fold's sources in the definition's order; empty if there is only one.
        deleted: the column that marks a deleted key; None: keys are never deleted.
    """

    views: tuple[str, ...] = ()
    deleted: str | None = None


@dataclass(frozen=True)
class DeliveredColumns:
    """Result columns of a pipeline: window start, window end, keys, the others, in this order.

    Attributes:
        newest: for a fold with `rows: newest`: the keys are the fold's own, and the window is not part of a row's identity.
        updates_ms: length of windows in milliseconds, if a batch emits every row that it changed: the newest row of a window and
            keys counts, also while the window is open. None: rows are emitted once, when their window closes.
        version: name of the pipeline's version that has them; empty: the first one.
    """

    pipeline: str
    start: str
    end: str
    keys: tuple[str, ...]
    others: tuple[str, ...]
    sessions: bool = False
    newest: Newest | None = None
    updates_ms: int | None = None
    version: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """All result columns."""
        return (self.start, self.end, *self.keys, *self.others)

    def as_held(self, held: DeliveredColumns) -> DeliveredColumns:
        """Return how rows of another version, which a sink holds, are read: by their own keys and windows.

        If both versions have the same keys, their rows have the same places, and the other columns are the new ones, so that values
        can be compared; else no row has the place of another one.
        """
        if held.keys != self.keys:
            return held
        own = {name: getattr(held, name) for name in ("start", "end", "sessions", "newest", "updates_ms")}
        return replace(self, **own)


@dataclass(frozen=True)
class Holding:
    """What a destination holds of one sink at one moment.

    Attributes:
        rows: yields keys and plain values in the order of the columns, oldest first; None instead of values: the row was taken away.
        lacks: what the destination has removed by its own rules, in words; may be empty.
    """

    position: Position | None
    rows: Callable[[DeliveredColumns, pa.Schema], Iterator[tuple[str, Sequence[Any] | None]]]
    lacks: str = ""


@dataclass(frozen=True)
class DeliveryBatch:
    """The records of one step, and the positions before and after it. A sink takes all of it or nothing.

    Attributes:
        part_of: returns the position after some of the records, from the first on; a sink may take only these. None: it may not.
        schema: types of the result's columns, if the positions are of two versions of the pipeline.
    """

    shape: DeliveredColumns
    sink: str
    records: Sequence[DeliveredRecord]
    before: Position | None
    after: Position
    schema: pa.Schema | None = None
    part_of: Callable[[int], Position] | None = None

    def position_after(self, taken: int) -> Position:
        """Return the position after a number of the records, from the first on."""
        return self.after if self.part_of is None or taken == len(self.records) else self.part_of(taken)
