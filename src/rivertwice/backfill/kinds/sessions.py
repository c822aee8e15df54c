"""Sessions: key and stretch identify them, so what is late is found session by session."""

from __future__ import annotations

from rivertwice.backfill.kinds.planner import LateWindows, Repairs, newest_late
from rivertwice.backfill.model import Seed, SessionsView
from rivertwice.backfill.ranges import merge
from rivertwice.backfill.session_observe import without_published
from rivertwice.core.homes import PipelineHome
from rivertwice.definition.definition import Definition
from rivertwice.timeline.serving import to_epoch_ms


class SessionPlanner:
    """Looks for late sessions."""

    def find_late(self, home: PipelineHome, definition: Definition, repairs: Repairs) -> LateWindows:
        """Return the sessions that the newest reconcile found LATE and that no session published since overlaps."""
        newest = newest_late(home, ("window_start", "window_end", "key"), repairs.verdicts)
        if newest is None:
            return LateWindows((), sessions=SessionsView(()))
        verdicts, sequence = newest
        starts, ends = to_epoch_ms(verdicts["window_start"]), to_epoch_ms(verdicts["window_end"])
        stretches = zip(verdicts["key"].to_pylist(), starts, ends, strict=True)
        late = [Seed(key, int(start), int(end)) for key, start, end in stretches]
        seeds = without_published(home, definition, late, repairs.after(sequence))
        return LateWindows(tuple(merge((seed.start_ms, seed.end_ms) for seed in seeds)), sessions=SessionsView(seeds))
