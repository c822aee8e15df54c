"""What must hold of a first load, looked up in the log itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lab.model.stream import WINDOW_MS, Address, window_end
from lab.model.violations import fail
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.sequence import EntryKind

if TYPE_CHECKING:
    from lab.model.world import World

ONCE = "a load is recorded once, before the stream begins"
ARCHIVED = "what a load leaves out is archived"
READS_ALL = "the stream reads all of what it serves"
BEGINS = "a stream begins after its load"
PART = "nothing of a part is served"
DONE = "the windows of a load are published in the end"


class LoadJudge:
    """Every check that is made when a load is recorded, a stream begins after it, and something is served."""

    def __init__(self, world: World) -> None:
        """Watch a world from its beginning."""
        self.world = world

    def is_recorded(self, load: FirstLoad) -> None:
        """Check that no stream and no other load began, that what is left out is archived, and that the stream reads its windows whole."""
        world = self.world
        if world.load is not None or world.head() is not None:
            fail(ONCE, f"{load.id}, with {world.load} and head {world.head()}")
        for (partition, offset), end in _left_out(world, load):
            if not any(p == partition and low <= offset < high for p, low, high in world.archive):
                fail(ARCHIVED, f"offset {offset} of partition {partition}")
            if end is not None and end > load.before_ms:
                fail(READS_ALL, f"offset {offset} of partition {partition} is in the window that ends at {end}")

    def begins(self, target: str) -> None:
        """Check that the first head is the timeline of a recorded load, and that the windows to load serve nothing yet."""
        load = self.world.load
        if load is not None and (target != load.timeline or load.cover not in self.world.judge.published):
            fail(BEGINS, f"{target} serves first, {load.id} is of {load.timeline}")

    def serves(self, end: int, sequence: int) -> None:
        """Check that a window that is served up to an entry of the sequence was read whole."""
        if not self._is_whole(end, sequence):
            fail(PART, f"the window that ends at {end}")

    def is_done(self, load: FirstLoad) -> None:
        """Check that all records that were left out are in windows that a backfill published."""
        for _, end in _left_out(self.world, load):
            if end is not None and not self._is_whole(end, self.world.last_seq()):
                fail(DONE, f"the window that ends at {end}")

    def _is_whole(self, end: int, sequence: int) -> bool:
        """Say whether the stream reads all records of a window, or a backfill published it."""
        load = self.world.load
        if load is None or not load.has(end - WINDOW_MS):
            return True
        return any(
            low <= end - WINDOW_MS < high
            for entry in self.world.sequence[:sequence]
            if entry.kind != EntryKind.HEAD and entry.payload["backfill"] != load.cover
            for low, high in entry.payload["ranges"]
        )


def _left_out(world: World, load: FirstLoad) -> Iterator[tuple[Address, int | None]]:
    """Yield the addresses that a load leaves out, each with the end of its record's window, if it has one."""
    log = world.logs[load.topic_id]
    for partition, (start, end) in load.ranges.items():
        for offset in range(start, end):
            record = log[partition][offset]
            yield (partition, offset), window_end(record.event_ms) if record.kind == "ok" else None
