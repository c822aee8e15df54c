"""Figures from ledger rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from rivertwice.deadletters.newest import RECENT
from rivertwice.instants import from_ms
from rivertwice.metrics.model import BatchFigures
from rivertwice.timeline.ledger import LedgerRow

FULL = 0.95
"""A batch counts as full above this share of its cap: the cap is divided over partitions and rounded down."""


def batch_figures(rows: Sequence[LedgerRow]) -> list[BatchFigures]:
    """Return ledger rows, in the path's order, as figures."""
    return [
        BatchFigures(
            begun_at=from_ms(row.batch_timestamp_ms),
            committed_at=row.committed_at,
            read=row.read,
            bad=row.bad,
            accepted=row.accepted,
            emitted=row.emitted,
            watermark_ms=row.batch_watermark_ms,
            max_event_ms=row.max_event_ms,
        )
        for row in rows
    ]


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of all are not above; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def batch_quantiles(batches: Sequence[BatchFigures]) -> tuple[float | None, float | None, float | None]:
    """Return p50, p95 and p99 seconds of the newest hundred batches that read something."""
    seconds = [batch.seconds for batch in batches if batch.read][-RECENT:]
    return quantile(seconds, 0.5), quantile(seconds, 0.95), quantile(seconds, 0.99)


def backpressure_seconds(batches: Sequence[BatchFigures], cap: int) -> float:
    """Return for how long every batch has been full: from the first of the newest full ones to the newest's commit.

    A full batch means that the log had more than the cap when it was planned, so records waited for the stream.
    """
    since: datetime | None = None
    for batch in reversed(batches):
        if batch.read < FULL * cap:
            break
        since = batch.begun_at
    return 0.0 if since is None else (batches[-1].committed_at - since).total_seconds()


def read_per_second(batches: Sequence[BatchFigures], now: datetime, window_s: float = 60.0) -> float:
    """Return records committed per second of the last minute."""
    recent = [batch for batch in batches[-10_000:] if (now - batch.committed_at).total_seconds() <= window_s]
    return sum(batch.read for batch in recent) / window_s


def newest_event_ms(batches: Sequence[BatchFigures]) -> int | None:
    """Return the largest accepted event time of the newest hundred batches, epoch ms."""
    return max((batch.max_event_ms for batch in batches[-RECENT:] if batch.max_event_ms is not None), default=None)
