"""The log of a running stream: whether its topics are still those that the timeline began with, and where it has holes."""

from __future__ import annotations

from rivertwice.config import Settings
from rivertwice.errors import LedgerError, LogGapError
from rivertwice.log import kafka
from rivertwice.log.addresses import OffsetRanges
from rivertwice.log.holes import absent_runs, count_runs, explain_holes
from rivertwice.stream.begin import check_topics
from rivertwice.stream.context import DriverContext


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
