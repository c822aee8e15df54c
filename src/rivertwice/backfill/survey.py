"""Look sessions up that a request is about: read around it, and further where a session is not seen whole. Pure but for `read`.

Where a session begins is known once the gap before it was read, and where it ends once the gap behind its last record was. So a
range is read with a margin, and again with a wider one around those sessions that reach out of what was read, until none
does. A chain of records may be long, but it ends, or its session is open and none of this request's business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rivertwice.backfill.components import Component, Span, gather_components
from rivertwice.backfill.ranges import HalfOpenRange, coalesce, merge

MOST_RANGES = 50
"""Ranges of event time that are read at once; more are made fewer by reading what lies between them."""
WIDER = 4
"""By so much each margin is wider than the one before."""

Zone = tuple[HalfOpenRange, ...]
"""Ranges of event time, in epoch milliseconds."""
ReadServed = Callable[[Zone], Sequence[Span]]
"""Gives the served sessions that overlap a zone."""
ReadTruth = Callable[[Zone, Collection[str] | None], Sequence[Span]]
"""Gives the sessions that the records of a zone make, of some keys (their texts) or of all."""


@dataclass(frozen=True)
class Asked:
    """Which sessions a request means.

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
        """Say whether a component lies within what was asked."""
        low, high = component.stretch_ms
        ranges = (*self.times, *self.by_key.get(component.key, ()))
        return any(start <= low and high <= end for start, end in ranges)


def _holds(component: Component, ranges: Sequence[HalfOpenRange]) -> bool:
    return any(component.start_us < end * 1000 and start * 1000 < component.end_us for start, end in ranges)


def survey_sessions(
    asked: Asked, read_served: ReadServed, read_truth: ReadTruth, *, closed_ms: int, gap_ms: int
) -> tuple[Component, ...]:
    """Return the components that are meant, each whole; of one that is not settled only that it is not.

    Args:
        asked: what is meant.
        read_served: what is served now.
        read_truth: what all records make.
        closed_ms: watermark of the last committed batch.
        gap_ms: the gap.
    """
    margin = 2 * gap_ms
    known = [(span.start_us // 1000, -(-span.end_us // 1000)) for span in read_served(asked.zone)]
    zone = _widened([*asked.zone, *known], margin)
    while True:
        truth = read_truth(zone, asked.keys)
        wanted = [one for one in gather_components(read_served(zone), truth) if asked.means(one)]
        cut_off = [one for one in wanted if one.is_settled(closed_ms, gap_ms) and not one.is_within(zone, gap_ms)]
        if not cut_off:
            return tuple(wanted)
        margin *= WIDER
        zone = _few([*zone, *_widened([one.stretch_ms for one in cut_off], margin)], gap_ms)


def _widened(ranges: Sequence[HalfOpenRange], margin: int) -> Zone:
    return _few([(start - margin, end + margin) for start, end in ranges], margin)


def _few(ranges: Sequence[HalfOpenRange], gap: int) -> Zone:
    return coalesce(ranges, gap, MOST_RANGES)
