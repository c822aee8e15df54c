"""The values of an explanation. Instants are aware UTC; offset ranges are half-open; lists of records are cut at `MOST_LISTED`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from rivertwice.log import Part
from rivertwice.timeline import Verdict, json_value

ExplanationJson = dict[str, Any]
"""An explanation as JSON can hold it: values of a user's columns, instants as ISO 8601, decimals as text, no digit lost."""
MOST_LISTED = 100
"""So many late records and dead letters are listed; the others are counted."""


class State(StrEnum):
    """What a number was from an instant on."""

    PROVISIONAL = "provisional"
    """The stream emitted it while the window was open."""
    FINAL = "final"
    """The stream emitted it, or the window closed over it."""
    CORRECTED = "corrected"
    """A publication serves it."""
    WITHDRAWN = "withdrawn"
    """A publication covers the window and has no such row."""
    LEFT = "left"
    """A timeline emitted it that the head has left."""
    UNUSED = "unused"
    """A publication of another definition, which does not serve."""


@dataclass(frozen=True)
class Address:
    """Which row is explained.

    Attributes:
        pipeline: the version whose rows these are, `NAME` or `NAME@v2`.
        key: key column to value.
    """

    pipeline: str
    start: datetime
    end: datetime
    key: Mapping[str, Any]


@dataclass(frozen=True)
class ColumnValues:
    """A value column, side by side. None where there is no such row, or where it is not known: see `Explanation`.

    Attributes:
        differs: whether two of the rows that are known differ in it, by the definition's tolerance.
    """

    name: str
    served: Any
    stream: Any
    truth: Any
    differs: bool


@dataclass(frozen=True)
class Emitted:
    """The batch of the stream that emitted the row.

    Attributes:
        timeline, batch, epoch: of the ledger; at: when it was committed.
    """

    timeline: str
    batch: int
    epoch: int
    at: datetime


@dataclass(frozen=True)
class Published:
    """The publication that serves the window.

    Attributes:
        backfill: whose rows they are; sequence: number of the publication; at: when it was published.
        reason: why the backfill was asked for; None: its plan is gone.
        as_of: the records below these offsets were counted.
    """

    backfill: str
    sequence: int
    at: datetime
    reason: str | None
    as_of: Mapping[str, Mapping[int, int]]

    def counts(self, part: Part, offset: int) -> bool:
        """Say whether a record was there for it to count."""
        return offset < self.as_of.get(part.topic, {}).get(part.partition, 0)


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of one partition."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class LakePart:
    """Offsets of a partition that are rows of a file in a lake.

    Attributes:
        first_row: the row at `start`; the file's first is 0.
        snapshot: which snapshot of which table the file belongs to.
    """

    topic: str
    partition: int
    start: int
    end: int
    file: str
    first_row: int
    snapshot: str


@dataclass(frozen=True)
class Reads:
    """The batches of the head's path that may have read a record of the window, by their event times in the ledger.

    Attributes:
        batches: how many; first, last: the first and the last of them as TIMELINE/BATCH; None: none.
        records: offsets in them.
        lake: which of the offsets are rows of a history in a lake. proof: what is known of a window with such records; empty for others.
    """

    batches: int = 0
    first: str | None = None
    last: str | None = None
    ranges: tuple[OffsetRange, ...] = ()
    lake: tuple[LakePart, ...] = ()
    proof: str = ""

    @property
    def records(self) -> int:
        """How many offsets the ranges have."""
        return sum(part.end - part.start for part in self.ranges)

    def has(self, part: Part, offset: int) -> bool:
        """Say whether a record is in them."""
        return any(
            (own.topic, own.partition) == (part.topic, part.partition) and own.start <= offset < own.end
            for own in self.ranges
        )


@dataclass(frozen=True)
class LateRecord:
    """A record of the row that came after its window had closed.

    Attributes:
        place: TOPIC/PARTITION@OFFSET.
        event_time: of the record. watermark: by which its batch judged it: that of the batch before.
        late_s: seconds from the end of its window to that watermark: how much earlier it had to be read.
        batch: that read it, TIMELINE/BATCH; read_at: when that was committed. None: not on the head's path.
        is_served: whether the publication that serves the window could count it.
    """

    place: str
    event_time: datetime
    watermark: datetime
    late_s: float
    batch: str | None
    read_at: datetime | None
    is_served: bool


@dataclass(frozen=True)
class DeadRecord:
    """A record that was refused.

    Attributes:
        place: TOPIC/PARTITION@OFFSET.
        reason, detail: why; batch: that read it, TIMELINE/BATCH.
        state: `open`, `amended` or `discarded`; amendment: number of that decision, decided_at and why: of it.
        is_of_row: whether it belongs to the row; None: not known, because a refused record has no event time and no key.
    """

    place: str
    reason: str
    detail: str | None
    batch: str
    state: str
    amendment: int | None
    decided_at: datetime | None
    why: str | None
    is_of_row: bool | None


@dataclass(frozen=True)
class NumberChange:
    """What the number was from an instant on.

    Attributes:
        state: provisional, final, corrected and so on.
        by: batch, publication or head move.
        why: the reason of a backfill or of a head move.
        values: value column to value; None: no row.
        changed: columns that differ from the change before.
    """

    at: datetime
    state: State
    by: str
    why: str | None
    values: Mapping[str, Any] | None
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExplainedVerdict:
    """What the newest reconcile says of the row.

    Attributes:
        pair: `served` or `stream`, each against the truth.
        verdict, reason: as stored. run: the reconcile for which it holds; at: when it ran; age_s: seconds since.
        stale: why it says nothing of the row that is served now; None: it does.
    """

    pair: str
    verdict: str
    reason: str
    run: str
    at: datetime
    age_s: float
    stale: str | None = None


@dataclass(frozen=True)
class Truth:
    """What a batch over the log says of the row.

    Attributes:
        values: value column to value; None: no such row.
        records: records of the window that were counted, with the amended ones.
        has_key: whether `records` are those of the key alone.
        amended: places of the amended dead letters of the row.
    """

    values: Mapping[str, Any] | None
    records: int
    has_key: bool
    late: tuple[LateRecord, ...] = ()
    late_total: int = 0
    amended: tuple[str, ...] = ()


@dataclass(frozen=True)
class Act:
    """What to do next: a command, and what it cures."""

    command: str
    why: str


@dataclass(frozen=True)
class Explanation:
    """One number, explained.

    Attributes:
        windows: the definition's windows in words.
        is_closed: whether the head's watermark closed the window; closed_at: when, closed_by: the batch, TIMELINE/BATCH.
        has_served, has_stream: whether there is such a row. has_truth: the same, None: the truth was not computed.
        late, late_total: late records. dead, dead_total: refused ones among what the batches read.
        acts: what to do next; empty: nothing.
    """

    address: Address
    windows: str
    is_closed: bool
    closed_at: datetime | None
    closed_by: str | None
    has_served: bool
    has_stream: bool
    has_truth: bool | None
    columns: tuple[ColumnValues, ...]
    emitted: Emitted | None
    published: Published | None
    reads: Reads
    late: tuple[LateRecord, ...]
    late_total: int
    dead: tuple[DeadRecord, ...]
    dead_total: int
    history: tuple[NumberChange, ...]
    verdicts: tuple[ExplainedVerdict, ...]
    truth: Truth | None
    unknown: tuple[str, ...] = ()
    acts: tuple[Act, ...] = field(default=())

    def to_json(self) -> ExplanationJson:
        """Return it for programs."""
        plain: ExplanationJson = json_value(asdict(self))
        plain["reads"]["records"] = self.reads.records
        return plain


# How a number changed, from the rows that were ever emitted or published for its address. Pure.

Values = Mapping[str, Any]
Differs = Callable[[Values, Values], tuple[str, ...]]
"""Gives the columns in which two rows differ."""


@dataclass(frozen=True)
class EmittedRow:
    """A row of the changelog.

    Attributes:
        timeline, batch: who emitted it. at: when that was committed.
        is_final: whether the window was closed by then.
    """

    timeline: str
    batch: int
    at: datetime
    is_on_path: bool
    is_final: bool
    values: Values


@dataclass(frozen=True)
class PublishedRow:
    """A publication that covers the window.

    Attributes:
        sequence, backfill, at: of the publication. reason: of the backfill.
        serves: whether its definition is one of the head's path.
        values: its row; None: it has none for the address.
    """

    sequence: int
    backfill: str
    at: datetime
    reason: str | None
    serves: bool
    values: Values | None


@dataclass(frozen=True)
class HeadMove:
    """A move of the head: the entry's number, when it was, to which timeline, and why."""

    sequence: int
    at: datetime
    timeline: str
    reason: str


@dataclass(frozen=True)
class Closing:
    """The batch whose watermark closed the window."""

    timeline: str
    batch: int
    at: datetime


def tell_history(
    emitted: Sequence[EmittedRow],
    published: Sequence[PublishedRow],
    moves: Sequence[HeadMove],
    closing: Closing | None,
    differs: Differs,
) -> tuple[NumberChange, ...]:
    """Return how the number changed, oldest first.

    A batch that the head left comes as `left`, with the move that left it. A window that closed over a row emitted before becomes
    `final` with the batch that closed it.

    Args:
        emitted: the rows of the address, of all timelines.
        closing: None while the window is open.
    """
    changes = [_of_batch(row, moves) for row in emitted]
    own = [row for row in emitted if row.is_on_path]
    if own and closing is not None:
        newest = max(own, key=lambda row: row.batch)
        if not newest.is_final:
            by = f"batch {closing.timeline}/{closing.batch} closed the window"
            changes.append(NumberChange(closing.at, State.FINAL, by, None, newest.values))
    changes += [_of_publication(row) for row in published]
    return _compared(sorted(changes, key=lambda change: change.at), differs)


def _of_batch(row: EmittedRow, moves: Sequence[HeadMove]) -> NumberChange:
    by = f"batch {row.timeline}/{row.batch}"
    if row.is_on_path:
        return NumberChange(row.at, State.FINAL if row.is_final else State.PROVISIONAL, by, None, row.values)
    left = next((move for move in moves if move.at > row.at and move.timeline != row.timeline), None)
    why = None if left is None else f"the head moved to {left.timeline} ({left.reason}), sequence {left.sequence}"
    return NumberChange(row.at, State.LEFT, by, why, row.values)


def _of_publication(row: PublishedRow) -> NumberChange:
    by = f"backfill {row.backfill}, sequence {row.sequence}"
    if not row.serves:
        return NumberChange(row.at, State.UNUSED, by, "its definition is none of the head's path", row.values)
    return NumberChange(row.at, State.WITHDRAWN if row.values is None else State.CORRECTED, by, row.reason, row.values)


def _compared(changes: Sequence[NumberChange], differs: Differs) -> tuple[NumberChange, ...]:
    compared: list[NumberChange] = []
    before: Values | None = None
    is_first = True
    for change in changes:
        if change.state is State.UNUSED:
            compared.append(change)
            continue
        changed: tuple[str, ...] = ()
        if not is_first and before is not None and change.values is not None:
            changed = differs(before, change.values)
        elif not is_first and before is not change.values:
            changed = tuple(before or change.values or ())
        compared.append(replace(change, changed=changed))
        before, is_first = change.values, False
    return tuple(compared)


# Whether a verdict still says something of the row that is served now. Pure.


def judge_age(
    pair: str,
    verdict: str,
    *,
    sequence: int,
    batch: int,
    left_by: int | None,
    published: int | None,
    last_read: int | None,
    is_closed: bool,
) -> str | None:
    """Return why a verdict is out of date; None: it holds.

    Args:
        pair: `served` or `stream`.
        sequence: the newest entry of the sequence that the reconcile saw.
        batch: the last batch that it saw.
        left_by: number of the head move that left that batch; None: the head's path has it.
        published: number of the publication that serves the window; None: none does.
        last_read: the last batch that may have read a record of the window.
    """
    if left_by is not None:
        return f"the head moved after it (sequence {left_by})"
    if pair == "served" and published is not None and published > sequence:
        return f"the window was published after it (sequence {published})"
    if last_read is not None and last_read > batch:
        return f"batch {last_read} may have read records of the window after it"
    if verdict == Verdict.OPEN and is_closed:
        return "the window was open then, and is closed now"
    return None
