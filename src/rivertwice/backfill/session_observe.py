"""What a plan of sessions reads from the tables: sessions served now, and those that the newest reconcile found stale."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill.model import Component, Seed, Span, gather_components
from rivertwice.backfill.ranges import HalfOpenRange, coalesce, merge
from rivertwice.core.homes import PipelineHome
from rivertwice.definition.definition import Definition
from rivertwice.timeline.digest import key_texts
from rivertwice.timeline.served_rows import read_corrections
from rivertwice.timeline.serving import Publication

# Look up the sessions of a request: read around it, and further if a session was not read whole. Pure but for `read`.
#
# The start of a session is known once the gap before it was read, and its end once the gap after its last record was read. So a
# range is read with a margin. It is read again with a wider margin around the sessions that reach beyond what was read, until
# there are none. A chain of records may be long, but it ends, or its session is open and not part of this request.

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
class Asked:
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
    asked: Asked, read_served: ReadServed, read_truth: ReadTruth, *, closed_ms: int, gap_ms: int
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


Micros = npt.NDArray[np.int64]


def spans_of(rows: pa.Table, definition: Definition) -> list[Span]:
    """Return result rows, of the served table or of corrections, as sessions; their count column gives the records."""
    assert definition.count_column is not None, "the definition was checked"
    window = definition.window
    starts, ends = (epoch_micros(rows[name]).tolist() for name in (window.start_column, window.end_column))
    counts = rows[definition.count_column].to_pylist()
    backfills = rows["_backfill"].to_pylist() if "_backfill" in rows.schema.names else [None] * rows.num_rows
    keys = key_texts(rows, definition.keys)
    sessions = zip(keys, starts, ends, counts, backfills, strict=True)
    return [Span(key, start, end, count or 0, backfill) for key, start, end, count, backfill in sessions]


def overlapping(rows: pa.Table, definition: Definition, zone: Zone) -> pa.Table:
    """Return the rows whose stretch overlaps a range of the zone (epoch milliseconds)."""
    window = definition.window
    starts, ends = epoch_micros(rows[window.start_column]), epoch_micros(rows[window.end_column])
    inside = np.zeros(rows.num_rows, dtype=bool)
    for low, high in zone:
        inside |= (starts < high * 1000) & (low * 1000 < ends)
    return rows.filter(pa.array(inside))


def epoch_micros(column: pa.ChunkedArray) -> Micros:
    """Return a timestamp column as epoch microseconds; no value may be null."""
    micros: Micros = pc.cast(pc.cast(column, pa.timestamp("us", "UTC")), pa.int64()).to_numpy().astype(np.int64)
    return micros


def without_published(
    home: PipelineHome, definition: Definition, seeds: Sequence[Seed], publications: Sequence[Publication]
) -> tuple[Seed, ...]:
    """Return the sessions that no session of the same key in the publications overlaps."""
    corrections = read_corrections(home, publications) if seeds else None
    if corrections is None:
        return tuple(seeds)
    zone = tuple((seed.start_ms, max(seed.end_ms, seed.start_ms + 1)) for seed in seeds)
    by_key: dict[str, list[Span]] = {}
    for span in spans_of(overlapping(corrections, definition, zone), definition):
        by_key.setdefault(span.key, []).append(span)
    return tuple(
        seed
        for seed in seeds
        if not any(
            span.start_us < seed.end_ms * 1000 and seed.start_ms * 1000 < span.end_us
            for span in by_key.get(seed.key, ())
        )
    )
