"""Windows that lost records may belong to: what is known of them, and why they are never AGREES. Pure.

Four kinds of records are missing.

- A **jump**: the stream continued after an accepted gap and never read them. Those that the archive has are read for the
  truth, so their windows are known. For those that are lost for ever, not even the event times are known: they may be in
  any window that was open at the gap, up to the gap's upper bound, if it has one. In a window closed before the gap they
  would have been late; such a window keeps its verdict, with the caveat.
- **Loaded**: a first load by batch left them out. All are read for the truth; their windows are served from backfills, so of the
  stream nothing is expected of them but what it makes of the records that it read.
- **Unreadable**: the stream read and committed them, but neither Kafka nor the archive has them any more. The ledger still
  has the event times between which their batches were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rivertwice.log import (
    REPAIRABLE,
    Fork,
    Gap,
    Part,
    Parts,
    StoredOffsets,
    count,
    describe_parts,
    drop_empty,
    intersect,
    parts_of,
)
from rivertwice.reconcile.rederive import BatchCounts, Chain, Ranges
from rivertwice.timeline import FirstLoad, LedgerRow, total_of

FORKED = "fork: "
"""Start of a verdict's reason if the log has other records now than the stream read."""
GAP_INDEX = -1
"""Path index of records that no batch read."""
AMENDED_INDEX = -2
"""Path index of what dead letters should have been: no batch accepted them either."""
LOADED_INDEX = -3
"""Path index of records that a first load by batch left out: no batch read them, and none had to."""
Missing = tuple[Part, int, int]
"""(part, start, end) of offsets that neither Kafka nor the archive has."""


@dataclass(frozen=True)
class SkippedRange:
    """The batch at a path index begins after records that the stream skipped, at `start`: the offsets of all topics.

    They are an accepted gap, or those before a stream that a first load by batch left to backfills.
    """

    index: int
    skipped: Gap | FirstLoad
    start: Mapping[Part, int]

    @property
    def is_load(self) -> bool:
        """Whether a first load by batch left them out."""
        return isinstance(self.skipped, FirstLoad)

    @property
    def parts(self) -> Parts:
        """The offsets that the stream skipped."""
        return parts_of(self.skipped.topic, self.skipped.ranges)

    @property
    def text(self) -> str:
        """The gap or the load by its id and what the stream skipped."""
        return f"{self.skipped.id}, {describe_parts(self.parts)}"


@dataclass(frozen=True)
class LostRecordsDoubt:
    """Windows that end after `after_ms` and start at or before `until_ms` (None: all later ones), and why.

    Attributes:
        unread: the stream's own input cannot be read again, so that not even what it had to emit is known.
        known: all records exist after all (in the archive), so that the truth is whole.
    """

    after_ms: int
    until_ms: int | None
    reason: str
    unread: bool = False
    known: bool = False

    def covers(self, start_ms: int, end_ms: int) -> bool:
        """Say whether a lost record may belong to the window."""
        return end_ms > self.after_ms and (self.until_ms is None or start_ms <= self.until_ms)


@dataclass(frozen=True)
class LostRecordEffects:
    """All doubts of a reconcile.

    Attributes:
        filled: window start to reason, for windows of records that the stream skipped and the archive has.
    """

    doubts: Sequence[LostRecordsDoubt] = ()
    filled: Mapping[int, str] = field(default_factory=dict)

    def of(self, start_ms: int, end_ms: int) -> LostRecordsDoubt | None:
        """Return the gravest doubt about a window, or None."""
        covering = [doubt for doubt in self.doubts if doubt.covers(start_ms, end_ms)]
        if not covering and start_ms in self.filled:
            return LostRecordsDoubt(start_ms, start_ms, self.filled[start_ms], known=True)
        return min(covering, key=lambda doubt: not doubt.unread, default=None)

    def caveat(self, start_ms: int) -> str:
        """Return what to add to the verdict of a window that was closed before a gap; empty if there is nothing to add."""
        lost = [
            doubt
            for doubt in self.doubts
            if not doubt.unread and (doubt.until_ms is None or start_ms <= doubt.until_ms)
        ]
        return f"except for late records that may be among the lost: {lost[0].reason}" if lost else ""


def find_unreadable(ranges: Sequence[Ranges], missing: Sequence[Missing]) -> dict[int, Parts]:
    """Return path index to the part of the batch's range that can no longer be read, for the batches that have one."""
    unreadable: dict[int, Parts] = {}
    for index, batch in enumerate(ranges):
        unreadable_parts: Parts = {}
        for part, start, end in missing:
            shared = intersect({part: batch.get(part, (0, 0))}, {part: (start, end)})
            for where, (low, high) in shared.items():  # two holes of one batch are reported as one
                first, last = unreadable_parts.get(where, (low, high))
                unreadable_parts[where] = (min(first, low), max(last, high))
        if unreadable_parts:
            unreadable[index] = unreadable_parts
    return unreadable


def find_exchanged(
    rows: Sequence[LedgerRow],
    derived: Sequence[Mapping[str, BatchCounts]],
    ranges: Sequence[Ranges],
    unreadable: Mapping[int, Parts],
) -> dict[int, Parts]:
    """Return path index to the ranges of topics that hold other records now than the batch read, by the digest of these.

    Args:
        derived: what the log holds in each batch, by topic.
        unreadable: as `find_unreadable` gave it: what cannot be read completely has another digest.
    """
    exchanged: dict[int, Parts] = {}
    for index, (row, counts) in enumerate(zip(rows, derived, strict=True)):
        for topic, recorded in row.by_topic.items() if index not in unreadable else ():
            before, now = recorded.known_digest, counts.get(topic, BatchCounts()).known_digest
            if before is not None and now is not None and before != now:
                parts = {part: pair for part, pair in ranges[index].items() if part.topic == topic}
                exchanged.setdefault(index, {}).update(drop_empty(parts))
    return exchanged


HoldsOthers = Callable[[Part, tuple[int, int]], bool]
"""Say whether a range of which the digest differs may hold records of another log."""


def other_records(exchanged: Mapping[int, Parts], holds_others: HoldsOthers) -> dict[int, Parts]:
    """Return what `find_exchanged` found, without ranges of an archive whose log did not fork.

    There a value was changed: it is judged as it is, so what the stream made of the old one is a DEFECT.
    """
    kept = {
        index: {part: pair for part, pair in parts.items() if holds_others(part, pair)}
        for index, parts in exchanged.items()
    }
    return {index: parts for index, parts in kept.items() if parts}


def doubts_of_exchanged(
    rows: Sequence[LedgerRow],
    exchanged: Mapping[int, Parts],
    derived: Sequence[Mapping[str, BatchCounts]],
    chain: Chain,
) -> list[LostRecordsDoubt]:
    """Return which windows the records belong to that batches read, or that are at their offsets now; in closed ones they were late."""
    doubts = []
    for index, parts in exchanged.items():
        row, now = rows[index], total_of(derived[index].values())
        lows = [ms for ms in (row.min_event_ms, now.min_event_ms) if ms is not None]
        highs = [ms for ms in (row.max_event_ms, now.max_event_ms) if ms is not None]
        if lows and highs:
            reason = (
                f"{FORKED}{describe_parts(parts)} hold other records now than batch {row.batch} of {row.timeline} read, so what the window "
                "holds cannot be checked"
            )
            doubts.append(LostRecordsDoubt(max(min(lows), chain.late[index]), max(highs), reason, unread=True))
    return doubts


def doubt_after_fork(rows: Sequence[LedgerRow], index: int, chain: Chain, forks: Sequence[Fork]) -> LostRecordsDoubt:
    """Return the doubt about every window that was open when the log forked: the records that are there now were not read.

    Args:
        index: of the first batch that read a record that the log has not any more.
    """
    reason = (
        f"{FORKED}{', '.join(map(str, forks))}: Kafka lost records from batch {rows[index].batch} of {rows[index].timeline} on, and gave their "
        "offsets to others, which the stream did not read"
    )
    return LostRecordsDoubt(chain.late[index], None, reason, unread=True)


def trusted_counts(
    derived: Sequence[BatchCounts], rows: Sequence[LedgerRow], unreadable: Mapping[int, Parts]
) -> list[BatchCounts]:
    """Return each batch's counts: derived from the log, or the ledger's own if the batch cannot be read completely."""
    return [
        BatchCounts(row.read, row.bad, row.accepted, row.min_event_ms, row.max_event_ms)
        if index in unreadable
        else counts
        for index, (counts, row) in enumerate(zip(derived, rows, strict=True))
    ]


def find_doubts(
    rows: Sequence[LedgerRow],
    unreadable: Mapping[int, Parts],
    jumps: Iterable[SkippedRange],
    missing: Sequence[Missing],
    chain: Chain,
) -> LostRecordEffects:
    """Return which windows lost records may belong to.

    Args:
        unreadable: as `find_unreadable` gave it.
    """
    doubts: list[LostRecordsDoubt] = []
    for index, unreadable_parts in unreadable.items():
        row = rows[index]
        if row.min_event_ms is None or row.max_event_ms is None:
            continue
        reason = (
            f"gap: {describe_parts(unreadable_parts)}, read by batch {row.batch} of {row.timeline}, is in neither Kafka nor "
            "the archive, so the window cannot be checked"
        )
        doubts.append(LostRecordsDoubt(row.min_event_ms, row.max_event_ms, reason, unread=True))
    for jump in jumps:
        lost = sum(count(intersect(jump.parts, {part: (low, high)})) for part, low, high in missing)
        if lost:
            left_out = (
                "which a first load read instead of it, cannot be read now" if jump.is_load else "are lost for ever"
            )
            reason = f"gap: {jump.text}: the stream continued past it, {lost} records {left_out} and may belong to the window"
            doubts.append(LostRecordsDoubt(chain.late[jump.index], jump.skipped.until_ms, reason))
    return LostRecordEffects(tuple(doubts))


def widened(doubts: LostRecordEffects, gap_ms: int) -> LostRecordEffects:
    """Return the doubts for sessions: a lost record may lengthen a session that begins or ends within the gap around it."""
    wider = [
        replace(
            doubt,
            after_ms=doubt.after_ms - gap_ms,
            until_ms=None if doubt.until_ms is None else doubt.until_ms + gap_ms,
        )
        for doubt in doubts.doubts
    ]
    return replace(doubts, doubts=tuple(wider))


def without_end(doubts: LostRecordEffects) -> LostRecordEffects:
    """Return the doubts for folds: all later rows of a lost record's key depend on it, and the key is not known."""
    wider = [replace(doubt, after_ms=-(1 << 62), until_ms=None) for doubt in doubts.doubts]
    return replace(doubts, doubts=tuple(wider))


def gaps_of(jumps: Iterable[SkippedRange]) -> list[SkippedRange]:
    """Return those that are accepted gaps."""
    return [jump for jump in jumps if not jump.is_load]


def with_filled(doubts: LostRecordEffects, jumps: Sequence[SkippedRange], starts: Iterable[int]) -> LostRecordEffects:
    """Return the doubts with the windows (by start) of records that are in accepted gaps and that the archive has."""
    what = "; ".join(jump.text for jump in jumps)
    reason = f"{REPAIRABLE}: {what}: the stream continued past records of the window, and a backfill over it reads them"
    return replace(doubts, filled=dict.fromkeys(starts, reason))


def count_readable(
    ranges: Sequence[Ranges],
    missing: Sequence[Missing],
    absent: Sequence[StoredOffsets] = (),
    derived: Mapping[tuple[int, Part], int] | None = None,
) -> dict[Part, int]:
    """Return part to the number of records of all batches that can be read, by subtraction of offsets.

    Args:
        absent: of each batch, topic to partition to how many of its offsets the ledger says to hold no record.
        derived: (number of the batch, part) to how many records were read. It counts where both of the above overlap: in a
            range with absent and lost offsets they cannot be told apart.
    """
    read: dict[Part, int] = {}
    for number, batch in enumerate(ranges):
        holes = absent[number] if absent else {}
        for part, (start, end) in batch.items():
            missing_count = sum(
                max(0, min(end, high) - max(start, low)) for where, low, high in missing if where == part
            )
            without = int(holes.get(part.topic, {}).get(str(part.partition), 0))
            left = end - start - missing_count - without
            if missing_count and without:
                left = (derived or {}).get((number, part), 0)
            read[part] = read.get(part, 0) + left
    return read


def is_missing(missing: Sequence[Missing], part: Part, offset: int) -> bool:
    """Say whether an address can no longer be read."""
    return any(where == part and low <= offset < high for where, low, high in missing)
