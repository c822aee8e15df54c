"""Fixed windows: a start identifies a window, so what is late is found by starts."""

from __future__ import annotations

from rivertwice.backfill.kinds.planner import LateWindows, Repairs, newest_late, window_ms
from rivertwice.backfill.ranges import align_outwards, merge, reach, subtract
from rivertwice.core.homes import PipelineHome
from rivertwice.definition.definition import Definition
from rivertwice.timeline.serving import to_epoch_ms


class WindowPlanner:
    """Looks for late windows of one length: tumbling, hopping, intervals."""

    def find_late(self, home: PipelineHome, definition: Definition, repairs: Repairs) -> LateWindows:
        """Return the windows that the newest reconcile found LATE and that are in no range published since."""
        newest = newest_late(home, ("window_start",), repairs.verdicts)
        if newest is None:
            return LateWindows(())
        verdicts, sequence = newest
        size, step = window_ms(definition)
        late = align_outwards(((start, start + 1) for start in to_epoch_ms(verdicts["window_start"]).tolist()), step)
        windows = subtract(late, merge(pair for publication in repairs.after(sequence) for pair in publication.ranges))
        return LateWindows(tuple(reach(windows, size, step)), windows)
