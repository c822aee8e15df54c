"""Which pairs of record and window the rows of the changelog account for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rivertwice.reconcile.balance import PairCount
from rivertwice.reconcile.evidence.evidence import Evidence
from rivertwice.reconcile.gaps import Doubts


def count_by_rows(evidence: Evidence, unread: Doubts, closed_ms: int) -> int:
    """Return the sum of the rows' own counts; not of windows whose input is gone, nor of updates of open windows."""
    return sum(
        evidence.shape.count(stream_row.values)
        for row, rows in evidence.stream.items()
        if unread.of(row.start_ms, row.end_ms) is None and not (evidence.updates and row.end_ms > closed_ms)
        for stream_row in rows
    )


def closed_pairs(pairs: Sequence[PairCount], closed_ms: int) -> list[PairCount]:
    """Return the pairs in time of closed windows."""
    return [pair for pair in pairs if not pair.late and pair.end_ms <= closed_ms]
