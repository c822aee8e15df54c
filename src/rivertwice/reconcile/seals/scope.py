"""Which windows an incremental run judges, which sealed batches hold their records, and what is read of these. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rivertwice.backfill import coalesce, intersect, subtract
from rivertwice.log import Part, Parts
from rivertwice.timeline import Entry, Increment, Range, is_inside, joined, merged, to_epoch_ms

Column = npt.NDArray[np.int64]
Pieces = Mapping[Part, Sequence[Range]]
"""Part to the runs of its offsets that are read: sorted and apart."""
MOST_RUNS = 16
"""So many separate stretches of a table or of the log are read at most; the nearest ones are joined."""
_MOST_RANGES = 512
_MOST_READ = 64
"""The number of ranges that a condition of SQL names; the rows of windows between two of them are read, and left out."""
_FEW_SPANS = 4
"""So many runs of a partition are read one by one."""
_SCAN_GAP = 250_000
"""Holes up to this many offsets are scanned, where there are more runs: a further scan costs as much (0.3 to 0.9 CPU-seconds, ran)."""
FOREVER_MS = 253_402_300_799_999  # the last instant of the year 9999


@dataclass(frozen=True)
class Scope:
    """The windows that a run judges: those that were not settled at the seal, and ranges of settled ones.

    Attributes:
        settled_ms: windows that end at or before it (epoch ms) are settled.
        ranges: starts of settled windows that are all judged again.
    """

    settled_ms: int
    length_ms: int
    ranges: tuple[Range, ...] = ()

    @property
    def open_ms(self) -> int:
        """The first start at which no window is settled."""
        return self.settled_ms - self.length_ms + 1

    @property
    def starts(self) -> tuple[Range, ...]:
        """The ranges of starts of all windows in scope."""
        return (*self.ranges, (self.open_ms, FOREVER_MS))

    @property
    def cover(self) -> list[Range]:
        """Few ranges that cover `starts`."""
        return [*join_nearest(self.ranges, _MOST_READ), (self.open_ms, FOREVER_MS)]

    @cached_property
    def _merged(self) -> list[Range]:
        return merged(self.starts)

    def contains(self, start_ms: int) -> bool:
        """Say whether a window is judged."""
        at = bisect_right(self._merged, (start_ms, FOREVER_MS + 1)) - 1
        return at >= 0 and start_ms < self._merged[at][1]

    def holds(self, starts_ms: Column) -> npt.NDArray[np.bool_]:
        """Say for each window whether it is judged."""
        return is_inside(starts_ms, self._merged)

    def only(self, rows: pa.Table) -> pa.Table:
        """Return the result rows of windows that are judged."""
        return rows.filter(pa.array(self.holds(to_epoch_ms(rows["window_start"]))))

    def increment(self, base: str) -> Increment:
        """Return what is stored about the run."""
        return Increment(base, self.settled_ms, self.ranges, self.length_ms)


def scope_since(settled_ms: int, length_ms: int, publications: Sequence[Entry]) -> Scope:
    """Return the windows to judge after a seal: those that were not settled, and those that publications serve since.

    Args:
        publications: the entries after the seal.
    """
    ranges = [(int(low), int(high)) for entry in publications for low, high in entry.payload["ranges"]]
    return Scope(settled_ms, length_ms, tuple(join_nearest(merged(ranges), _MOST_RANGES)))


@dataclass(frozen=True)
class Zones:
    """What the ledger says of consecutive batches of a path, in order.

    Attributes:
        watermark_ms: of each batch; never falls along a path.
        min_event_ms, max_event_ms: of the records that it accepted; without records, no event lies between the two.
    """

    timelines: Sequence[str]
    batches: Column
    watermark_ms: Column
    min_event_ms: Column
    max_event_ms: Column

    def __len__(self) -> int:
        """Return how many batches there are."""
        return len(self.batches)

    def late_ms(self, index: int) -> int:
        """Return the watermark by which a batch's records were late: the previous batch's; 0 for the first."""
        return 0 if index == 0 else int(self.watermark_ms[index - 1])


def reaches_back(first_watermark_ms: int, delay_ms: int, scope: Scope) -> bool:
    """Say whether all batches before one with this watermark are too old to hold a record of a window in scope, or to emit one.

    Before a batch of watermark W, no batch accepted an event later than W plus the delay.
    """
    oldest = min(low for low, _ in scope.starts)
    return first_watermark_ms + delay_ms < oldest and first_watermark_ms <= scope.settled_ms


def select_batches(zones: Zones, scope: Scope) -> list[int]:
    """Return the places of the batches that hold records of windows in scope, or emitted rows of them, in order."""
    wanted = _holding(zones, scope.starts, scope.length_ms)
    for low, high in scope.starts:
        first, last = np.searchsorted(zones.watermark_ms, [low + scope.length_ms, high - 1 + scope.length_ms])
        wanted[first : last + 1] = True  # the batch at which the watermark reaches a window's end emits it
    return np.flatnonzero(wanted).tolist()


def _holding(zones: Zones, starts: Sequence[Range], length_ms: int) -> npt.NDArray[np.bool_]:
    """Return for each batch whether it may hold a record of windows that start in some ranges."""
    wanted = np.zeros(len(zones), dtype=bool)
    for low, high in starts:
        wanted |= (zones.max_event_ms >= low) & (zones.min_event_ms < high + length_ms)
    return wanted


@dataclass(frozen=True)
class FoundRecords:
    """Where a backfill found the records of the windows that it published.

    Attributes:
        ranges: the starts of these windows.
        runs: offsets that have all of these records, of those below `as_of`.
    """

    ranges: tuple[Range, ...]
    runs: Pieces
    as_of: Mapping[Part, int]

    def of(self, batch: Parts) -> Pieces:
        """Return which offsets of a batch may have such a record."""
        pieces = {}
        for part, (start, end) in batch.items():
            runs = self.runs.get(part, ())
            near = runs[max(0, bisect_left(runs, (start, start)) - 1) : bisect_left(runs, (end, end))]
            pieces[part] = intersect([*near, (self.as_of.get(part, 0), end)], [(start, end)])
        return pieces


def select_pieces(
    zones: Zones, scope: Scope, found: Sequence[FoundRecords], batches: Mapping[int, Parts]
) -> list[Pieces]:
    """Return which offsets are read of each chosen batch: all, or what a backfill found of its windows, or none.

    A batch that was chosen for its ledger row alone, because it emitted a window, is not read.

    Args:
        batches: place to the offsets of the chosen batches, in order.
    """
    others = subtract(scope.ranges, [pair for each in found for pair in each.ranges])
    is_whole = _holding(zones, [*others, (scope.open_ms, FOREVER_MS)], scope.length_ms)
    holding = [(each, _holding(zones, each.ranges, scope.length_ms)) for each in found]
    pieces: list[Pieces] = []
    for place, batch in batches.items():
        if is_whole[place]:
            pieces.append({part: [pair] for part, pair in batch.items()})
            continue
        own = [each.of(batch) for each, holds in holding if holds[place]]
        pieces.append({part: merged(run for runs in own for run in runs[part]) for part in batch if own})
    return pieces


def has_all(pieces: Pieces, batch: Parts) -> bool:
    """Say whether all offsets of a batch are read."""
    return all(list(pieces.get(part, ())) == [pair] for part, pair in batch.items() if pair[0] < pair[1])


def runs_of(pieces: Sequence[Pieces], topic: str) -> dict[int, list[Range]]:
    """Return partition to the offsets of a topic that are read, sorted and apart. Pure."""
    runs: dict[int, list[Range]] = {}
    for batch in pieces:
        for part, own in batch.items():
            if part.topic == topic:
                runs.setdefault(part.partition, []).extend(own)
    return {partition: merged(own) for partition, own in runs.items()}


def scanned(runs: Mapping[int, Sequence[Range]]) -> dict[int, Sequence[Range]]:
    """Return which offsets are scanned, by partition, to read some runs: small holes too, if there are many runs. Pure."""
    if max(map(len, runs.values()), default=0) <= _FEW_SPANS:
        return dict(runs)
    return {partition: coalesce(own, _SCAN_GAP, MOST_RUNS) for partition, own in runs.items()}


def joined_runs(places: Sequence[int], most: int = MOST_RUNS) -> list[Range]:
    """Return a limited number of half-open runs that cover places: the smallest gaps between runs are filled."""
    runs: list[Range] = []
    for place in sorted(set(places)):
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return join_nearest(runs, most)


def join_nearest(ranges: Sequence[Range], most: int) -> list[Range]:
    """Return half-open ranges, sorted and apart, with the smallest gaps filled until their number is within a limit."""
    return joined(merged(ranges), most)
