"""Which windows an incremental run judges, and which sealed batches hold their records. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rivertwice.timeline import Entry, Increment, Range, merged

Column = npt.NDArray[np.int64]
MOST_RUNS = 16
"""So many separate stretches of the log are read at most; the nearest ones are joined."""
_MOST_RANGES = 32
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

    def contains(self, start_ms: int) -> bool:
        """Say whether a window is judged."""
        return start_ms >= self.open_ms or any(low <= start_ms < high for low, high in self.ranges)

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
    wanted = np.zeros(len(zones), dtype=bool)
    for low, high in scope.starts:
        wanted |= (zones.max_event_ms >= low) & (zones.min_event_ms < high + scope.length_ms)
        first, last = np.searchsorted(zones.watermark_ms, [low + scope.length_ms, high - 1 + scope.length_ms])
        wanted[first : last + 1] = True  # the batch at which the watermark reaches a window's end emits it
    return np.flatnonzero(wanted).tolist()


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
    joined = merged(ranges)
    gaps = sorted(range(1, len(joined)), key=lambda at: joined[at][0] - joined[at - 1][1])
    filled = set(gaps[: max(0, len(joined) - most)])
    result: list[Range] = []
    for at, pair in enumerate(joined):
        if at in filled:
            result[-1] = (result[-1][0], pair[1])
        else:
            result.append(pair)
    return result
