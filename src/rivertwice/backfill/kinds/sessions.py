"""Sessions: key and stretch tell them apart, so what is late is found session by session."""

from __future__ import annotations

from rivertwice.backfill.kinds.planner import LateWindows, Repairs, newest_late
from rivertwice.backfill.model import Seed, SessionsView
from rivertwice.backfill.ranges import merge
from rivertwice.backfill.session_observe import without_published
from rivertwice.config import PipelineHome
from rivertwice.pipeline.definition import Definition
from rivertwice.timeline.serving import to_epoch_ms


class SessionPlanner:
    """Looks for late sessions."""

    def find_late(self, home: PipelineHome, definition: Definition, repairs: Repairs) -> LateWindows:
        """Return the sessions that the newest reconcile found LATE and that no session published since overlaps."""
        found = newest_late(home, ("window_start", "window_end", "key"))
        if found is None:
            return LateWindows((), sessions=SessionsView(()))
        verdicts, sequence = found
        starts, ends = to_epoch_ms(verdicts["window_start"]), to_epoch_ms(verdicts["window_end"])
        stretches = zip(verdicts["key"].to_pylist(), starts, ends, strict=True)
        late = [Seed(key, int(start), int(end)) for key, start, end in stretches]
        seeds = without_published(home, definition, late, repairs.after(sequence))
        return LateWindows(tuple(merge((one.start_ms, one.end_ms) for one in seeds)), sessions=SessionsView(seeds))
