"""Fixed windows: a start tells a window, so what is late is found by starts."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from rivertwice.backfill.intervals import align_outwards, merge, reach, subtract
from rivertwice.backfill.kinds.planner import LateWindows, newest_late, published_since, window_ms
from rivertwice.config import PipelineHome
from rivertwice.pipeline.definition import Definition
from rivertwice.timeline.serving import Publication, to_epoch_ms


class WindowPlanner:
    """Looks for late windows of one length: tumbling, hopping, intervals."""

    def find_late(
        self,
        home: PipelineHome,
        definition: Definition,
        publications: Sequence[Publication],
        semantics: AbstractSet[str],
    ) -> LateWindows:
        """Return the windows that the newest reconcile found LATE and that are in no range published since."""
        found = newest_late(home, ("window_start",))
        if found is None:
            return LateWindows(())
        verdicts, sequence = found
        size, step = window_ms(definition)
        late = align_outwards(((start, start + 1) for start in to_epoch_ms(verdicts["window_start"]).tolist()), step)
        since = published_since(publications, sequence, semantics)
        windows = subtract(late, merge(pair for entry in since for pair in entry.ranges))
        return LateWindows(tuple(reach(windows, size, step)), windows)
