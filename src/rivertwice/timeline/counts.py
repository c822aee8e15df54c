"""Counts of a batch for one topic, or for all: records read, accepted and rejected, and the span of event times."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchCounts:
    """Records of one batch.

    Attributes:
        read: records in the range; bad: dead letters among them; accepted: rows under the watermark.
        min_event_ms, max_event_ms: event times of the accepted rows, epoch ms, both inclusive; None without any.
    """

    read: int = 0
    bad: int = 0
    accepted: int = 0
    min_event_ms: int | None = None
    max_event_ms: int | None = None

    def plus(self, other: BatchCounts) -> BatchCounts:
        """Return the sum of both counts."""
        lows = [ms for ms in (self.min_event_ms, other.min_event_ms) if ms is not None]
        highs = [ms for ms in (self.max_event_ms, other.max_event_ms) if ms is not None]
        return BatchCounts(
            self.read + other.read,
            self.bad + other.bad,
            self.accepted + other.accepted,
            min(lows, default=None),
            max(highs, default=None),
        )


def total_of(counts: Iterable[BatchCounts]) -> BatchCounts:
    """Return the sum of all counts."""
    return functools.reduce(BatchCounts.plus, counts, BatchCounts())
