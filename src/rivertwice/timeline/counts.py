"""Counts of a batch for one topic, or for all: records read, accepted and rejected, the span of event times, and a digest."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class BatchCounts:
    """Records of one batch.

    Attributes:
        read: records in the range; bad: dead letters among them; accepted: rows under the watermark.
        min_event_ms, max_event_ms: event times of the accepted rows, epoch ms, both inclusive; None without any.
        digest: exclusive-or of a hash of each record read (`pipeline.decode.HASH`), which does not depend on their order; None without
            any, or if it is not known. No two records of a log have one address, so none cancels another. It is not a count, so it
            does not make two counts differ.
    """

    read: int = 0
    bad: int = 0
    accepted: int = 0
    min_event_ms: int | None = None
    max_event_ms: int | None = None
    digest: int | None = field(default=None, compare=False)

    @property
    def known_digest(self) -> int | None:
        """The digest, 0 for no records; None if it is not known."""
        return self.digest if self.read else 0

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
            _both(self.known_digest, other.known_digest),
        )


def _both(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first ^ second


def total_of(counts: Iterable[BatchCounts]) -> BatchCounts:
    """Return the sum of all counts."""
    return functools.reduce(BatchCounts.plus, counts, BatchCounts())
