"""The event times that are known of the records which a stream has yet to read. Pure; `event_look` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rivertwice.log.addresses import Part
from rivertwice.stream.event_plan import GLANCE, NOTHING, PartitionIndex


class EventTimes:
    """Event time by record, for some records of each partition; what the stream has read is forgotten."""

    def __init__(self) -> None:
        """Create it without any record."""
        self._times: dict[Part, dict[int, int | None]] = {}
        self._floors: dict[Part, int] = {}

    def add(self, part: Part, offset: int, event_ms: int | None) -> None:
        """Note the event time of the record at an offset, epoch ms; None: the record is not accepted, or there is none."""
        self._times.setdefault(part, {})[offset] = event_ms

    def index(self, starts: Mapping[Part, int], ends: Mapping[Part, int]) -> dict[Part, PartitionIndex]:
        """Return what is known of each partition between `starts` and `ends`; a partition without a start begins at 0."""
        return {
            part: self._part(part, starts.get(part, 0), max(end, starts.get(part, 0))) for part, end in ends.items()
        }

    def _part(self, part: Part, start: int, end: int) -> PartitionIndex:
        times = self._times.get(part, {})
        frontier = self._floors.get(part, NOTHING)
        points = []
        awaited = NOTHING
        offsets = sorted(times)
        for place, offset in enumerate(offsets):
            if offset != (offsets[place - 1] + 1 if place else min(offset, start)):
                # The records before it are not known. The first ones here may be late and say nothing of them; the newest one does.
                awaited = _newest(times, range(offset, offset + GLANCE))
            frontier = max(frontier, _newest(times, (offset,)))
            if offset < start:
                self._floors[part] = frontier
            elif offset < end and frontier >= awaited:
                points.append((offset + 1, frontier))
        self._times[part] = {offset: event_ms for offset, event_ms in times.items() if offset >= start}
        return PartitionIndex(start, end, self._floors.get(part, NOTHING), points)


def _newest(times: Mapping[int, int | None], offsets: Iterable[int]) -> int:
    return max((event_ms for offset in offsets if (event_ms := times.get(offset)) is not None), default=NOTHING)
