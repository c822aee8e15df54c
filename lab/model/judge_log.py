"""What must hold of the archive, and of what is read across the seam between it and Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from lab.model.stream import Address, Record
from lab.model.violations import fail
from rivertwice.log.addresses import OffsetRanges


class LogJudge:
    """Every check that is made when records are archived or read."""

    def __init__(self) -> None:
        """Watch an archive from its beginning."""
        self.ends: dict[int, int] = {}

    def archived(self, chunk: OffsetRanges) -> None:
        """Check that the archive grows without gap and overlap."""
        for partition, (start, end) in chunk.items():
            if self.ends.setdefault(partition, start) != start:
                fail("the archive has no gap and no overlap", f"[{start}, {end}) after {self.ends[partition]}")
            self.ends[partition] = end

    def read_once(self, partition: int, run: tuple[int, int], records: Sequence[tuple[Address, Record]]) -> None:
        """Check that a read across the seam gave each offset once."""
        if sorted(address for address, _ in records) != [(partition, offset) for offset in range(*run)]:
            fail("each offset is read once", f"{run} gave {[address for address, _ in records]}")
