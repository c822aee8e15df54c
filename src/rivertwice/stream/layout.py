"""In how many partitions a stream keeps its state: frozen by a timeline's first batch, changed by an upgrade alone."""

from __future__ import annotations

from rivertwice.config import PipelineHome
from rivertwice.stream.checkpoint import partitions_of
from rivertwice.timeline.committed import committed_batches, newest_batches
from rivertwice.timeline.lineage import Timeline, path_of


def running_partitions(home: PipelineHome, line: Timeline) -> int | None:
    """Return the number of partitions of a timeline's state; None before its first batch, which takes the definition's."""
    if line.shuffle_partitions:
        return line.shuffle_partitions
    path = path_of(home, line.timeline)
    newest = newest_batches(home, committed_batches(home, path), path, 1)
    return partitions_of(newest[-1].offsets_text) if newest else None
