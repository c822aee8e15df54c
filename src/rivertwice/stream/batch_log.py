"""The log of a running stream: whether its topics and its records are still those that were read, and where it has holes."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future

from rivertwice.config import Settings
from rivertwice.errors import LedgerError, LogForkError, LogGapError, RivertwiceError, ServiceError
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges, Part, Parts
from rivertwice.log.forks import LastRecords, observe_forks
from rivertwice.log.holes import absent_runs, count_runs, explain_holes
from rivertwice.log.marks import Mark, Marks, StoredMarks, marks_to_plain, require_no_fork
from rivertwice.stream.begin import check_topics
from rivertwice.stream.context import DriverContext
from rivertwice.timeline.counts import BatchCounts
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.waits import beside

_log = logging.getLogger(__name__)
CHECK_EVERY_S = 300.0  # a check costs a fifth of a CPU-second


class ReadMarks:
    """The last record that was read of each partition, over all queries of one driver."""

    def __init__(
        self, settings: Settings, pipeline: str, topic_ids: Mapping[str, str] | None = None, marks: Marks | None = None
    ) -> None:
        """Take the ids of the timeline's topics, and the marks of the newest committed batch."""
        self._settings = settings
        self._pipeline = pipeline
        self._topic_ids = dict(topic_ids or {})
        self._marks = dict(marks or {})
        self._last = LastRecords(settings)
        self._reading: Future[dict[Part, Mark]] | None = None
        self._checked_at = time.monotonic()

    def check(self) -> None:
        """Refuse a log that has not these records any more.

        Raises:
            LogForkError: Kafka gave their offsets to other records, or none.
            ServiceError: Kafka does not answer.
        """
        self._checked_at = time.monotonic()
        require_no_fork(observe_forks(self._settings, self._topic_ids, self._marks), self._pipeline)

    def check_when_due(self) -> None:
        """Check every five minutes; if Kafka does not answer, at the next turn.

        Raises:
            LogForkError: as for `check`.
        """
        if time.monotonic() - self._checked_at < CHECK_EVERY_S:
            return
        try:
            self.check()
        except ServiceError as error:
            _log.warning("whether Kafka still has the records that were read is not known yet: %s", error)

    def explain(self) -> str | None:
        """Return that Kafka has not these records any more, or None. It never raises for the log's state: a failure is handled."""
        try:
            self.check()
        except LogForkError as error:
            return str(error)
        except RivertwiceError as error:
            _log.warning("whether Kafka still has the records that were read is not known: %s", error)
        return None

    def begin(self, parts: Parts) -> None:
        """Read the last records of a batch that reads `parts`, beside its work: Kafka's answer takes as long as a small batch's write."""
        self._reading = beside(lambda: self._last.read(parts), "marks")

    def advance(self) -> StoredMarks:
        """Return the marks after the batch that was begun. If a partition has a new leader, those before it are checked first.

        Raises:
            LogForkError: as for `check`.
            ServiceError: Kafka does not answer.
        """
        assert self._reading is not None, "a batch was begun"
        read = self._reading.result()
        if any(part in self._marks and mark.epoch > self._marks[part].epoch for part, mark in read.items()):
            self.check()
        self._marks = {**self._marks, **read}
        return marks_to_plain(self._marks)


def check_same_records(row: LedgerRow, read: Mapping[str, BatchCounts]) -> None:
    """Check that a batch that is computed again read the records that it read before. Pure.

    Raises:
        LogForkError: the digest of a topic's records differs.
    """
    for topic, counts in row.by_topic.items():
        before, now = counts.known_digest, read.get(topic, counts).known_digest
        if before is not None and now is not None and before != now:
            message = (
                f"batch {row.batch} is committed, and its offsets of topic {topic} hold other records now than it read (digest {now:x}, recorded "
                f"{before:x}), so its state cannot be made again; nothing was written; `rivertwice savepoint rewind {row.pipeline}` "
                "goes back to the newest proved savepoint from before that and reads the log again"
            )
            raise LogForkError(message)


class BatchLog:
    """Checks of the log from which batches are read."""

    def __init__(self, settings: Settings, context: DriverContext) -> None:
        self._settings = settings
        self._context = context
        self._askers = {topic: kafka.topic_id_asker(settings, topic) for topic in context.definition.topics}

    def check(self) -> None:
        """Refuse the records that were just read if they may belong to another topic.

        Raises:
            LogGapError: a topic was deleted and created again since the timeline began.
        """
        current = {topic: ask() for topic, ask in self._askers.items()}
        check_topics(self._context.timeline.topic_ids, current, self._context.definition.name)

    def absent(self, topic: str, ranges: OffsetRanges) -> dict[int, int]:
        """Return partition to how many offsets of a topic's ranges hold no record, as a second reader counts them.

        Raises:
            LedgerError: the topic is compacted, or the range is gone: the batch cannot be counted.
        """
        try:
            return count_runs(absent_runs(self._settings, topic, ranges))
        except LogGapError as error:
            message = f"the batch cannot be counted, and nothing was committed: {error}"
            raise LedgerError(message) from error

    def explain_holes(self, topic: str, ranges: OffsetRanges) -> str:
        """Return which offsets of a topic's ranges have no record, for a message."""
        return explain_holes(self._settings, topic, ranges)
