"""Look up the sessions of a request: read around it, and further if a session was not read whole. Pure but for `read`.

The start of a session is known once the gap before it was read, and its end once the gap after its last record was read. So a
range is read with a margin. It is read again with a wider margin around the sessions that reach beyond what was read, until
there are none. A chain of records may be long, but it ends, or its session is open and not part of this request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rivertwice.backfill.model import Component, Span, gather_components
from rivertwice.backfill.ranges import HalfOpenRange, coalesce, merge

MOST_RANGES = 50
"""Ranges of event time that are read at once; if there are more, what is between some of them is read too."""
WIDER = 4
"""Each margin is so many times as wide as the one before."""

Zone = tuple[HalfOpenRange, ...]
"""Ranges of event time, in epoch milliseconds."""
ReadServed = Callable[[Zone], Sequence[Span]]
"""Gives the served sessions that overlap a zone."""
ReadTruth = Callable[[Zone, Collection[str] | None], Sequence[Span]]
"""Gives the sessions that the records of a zone make, of some keys (their texts) or of all."""


@dataclass(frozen=True)
class BackfillScope:
    """Which sessions a request asks for.

    Attributes:
        times: sessions of any key that hold a time of these ranges (epoch milliseconds).
        by_key: key's text to ranges: sessions of that key that hold a time of them.
    """

    times: Zone = ()
    by_key: Mapping[str, Zone] = field(default_factory=dict)

    @property
    def zone(self) -> Zone:
        """All ranges together."""
        return merge([*self.times, *(pair for ranges in self.by_key.values() for pair in ranges)])

    @property
    def keys(self) -> frozenset[str] | None:
        """The keys that are meant; None: all."""
        return None if self.times else frozenset(self.by_key)

    def means(self, component: Component) -> bool:
        """Say whether a component holds a time that was asked."""
        return _holds(component, self.times) or _holds(component, self.by_key.get(component.key, ()))

    def covers(self, component: Component) -> bool:
        """Say whether a component is within what was asked."""
        low, high = component.stretch_ms
        ranges = (*self.times, *self.by_key.get(component.key, ()))
        return any(start <= low and high <= end for start, end in ranges)


def _holds(component: Component, ranges: Sequence[HalfOpenRange]) -> bool:
    return any(component.start_us < end * 1000 and start * 1000 < component.end_us for start, end in ranges)


def survey_sessions(
    asked: BackfillScope, read_served: ReadServed, read_truth: ReadTruth, *, closed_ms: int, gap_ms: int
) -> tuple[Component, ...]:
    """Return the components that are meant. Each is whole, unless it is not settled.

    Args:
        asked: what is meant.
        read_served: reads what is served now.
        read_truth: reads the sessions that all records make.
        closed_ms: watermark of the last committed batch.
        gap_ms: the gap.
    """
    margin = 2 * gap_ms
    known = [(span.start_us // 1000, -(-span.end_us // 1000)) for span in read_served(asked.zone)]
    zone = _widened([*asked.zone, *known], margin)
    while True:
        truth = read_truth(zone, asked.keys)
        wanted = [component for component in gather_components(read_served(zone), truth) if asked.means(component)]
        cut_off = [
            component
            for component in wanted
            if component.is_settled(closed_ms, gap_ms) and not component.is_within(zone, gap_ms)
        ]
        if not cut_off:
            return tuple(wanted)
        margin *= WIDER
        zone = _few([*zone, *_widened([component.stretch_ms for component in cut_off], margin)], gap_ms)


def _widened(ranges: Sequence[HalfOpenRange], margin: int) -> Zone:
    return _few([(start - margin, end + margin) for start, end in ranges], margin)


def _few(ranges: Sequence[HalfOpenRange], gap: int) -> Zone:
    return coalesce(ranges, gap, MOST_RANGES)
