"""What the pipelines of a schedule share: clocks, the log in Kafka, and its archive."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from lab.model.judge_log import LogJudge
from lab.model.stream import TOPIC, Address, Record
from rivertwice.core.errors import LogGapError
from rivertwice.log.addresses import OffsetRanges

START = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = (0, 1)


class Outside:
    """The log and the clocks."""

    def _begin_outside(self, records: list[list[Record]]) -> None:
        """Begin what pipelines share: clocks, the log and its archive, and numbers of processes."""
        self.now = START
        self.forward_s = 0.0  # a clock that nobody can set
        self.topic_id = "topic-1"
        self.logs = {self.topic_id: records}
        self.produced = [0 for _ in PARTITIONS]
        self.begin = [0 for _ in PARTITIONS]
        self.archive: list[tuple[int, int, int]] = []  # partition, first, end of each chunk
        self.archived: OffsetRanges = {}
        self.pids = 0
        self.log_judge = LogJudge()

    def ends(self) -> list[int]:
        """Return Kafka's ends."""
        return list(self.produced)

    def offsets(self, values: list[int]) -> dict[str, dict[str, int]]:
        """Return offsets as checkpoints and ledger write them."""
        return {TOPIC: {str(partition): value for partition, value in enumerate(values)}}

    def read_kafka(self, ranges: Mapping[int, tuple[int, int]]) -> list[tuple[Address, Record]]:
        """Return the records of ranges.

        Raises:
            LogGapError: Kafka has deleted some.
        """
        records: list[tuple[Address, Record]] = []
        for partition, (start, end) in ranges.items():
            if start < end and (start < self.begin[partition] or end > self.produced[partition]):
                message = f"offsets [{start}, {end}) of partition {partition}: Some data may have been lost"
                raise LogGapError(message)
            log = self.logs[self.topic_id][partition]
            records += [((partition, offset), log[offset]) for offset in range(start, end)]
        return records

    def read_archive(self, ranges: Mapping[int, tuple[int, int]]) -> list[tuple[Address, Record]]:
        """Return the records of ranges from the archive, as often as it holds them.

        Raises:
            LogGapError: it does not hold all of them.
        """
        records: list[tuple[Address, Record]] = []
        for partition, (start, end) in ranges.items():
            for held, first, last in self.archive:
                if held == partition:
                    inside = range(max(first, start), min(last, end))
                    records += [((partition, offset), self.logs["topic-1"][partition][offset]) for offset in inside]
        if len(records) < sum(max(0, end - start) for start, end in ranges.values()):
            message = f"the archive does not hold {dict(ranges)}"
            raise LogGapError(message)
        return records

    def extend_archive(self, chunk: OffsetRanges, held: OffsetRanges) -> None:
        """Commit a chunk's records and the ends it brings the archive to."""
        self.log_judge.archived(chunk)
        self.archive += [(partition, start, end) for partition, (start, end) in chunk.items()]
        self.archived = held

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.forward_s += seconds
        self.now += timedelta(seconds=seconds)
