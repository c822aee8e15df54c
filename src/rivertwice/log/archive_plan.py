"""Which offsets the archive job reads next, and when a planned chunk no longer fits. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rivertwice.errors import LogGapError, LostRaceError, RequestError
from rivertwice.log.addresses import OffsetRanges, drop_empty


def plan_extension(archived: OffsetRanges, retained: OffsetRanges, upto: Mapping[int, int] | None) -> OffsetRanges:
    """Return the ranges to archive next, one for every partition; empty if it has no new record.

    Args:
        archived: the ranges in the archive; empty for a new topic, which then begins where Kafka begins.
        retained: the ranges in Kafka, for every partition.
        upto: ends to stop at; None: Kafka's ends.

    Raises:
        LogGapError: Kafka has already deleted records that the archive does not have.
        RequestError: `upto` is beyond Kafka's end.
    """
    planned: OffsetRanges = {}
    gaps: list[str] = []
    for partition, (begin, end) in sorted(retained.items()):
        start = archived.get(partition, (begin, begin))[1]
        target = end if upto is None else upto.get(partition, start)
        if target > end:
            message = (
                f"partition {partition} should be archived up to offset {target}, but Kafka's ends at {end}; the record "
                "was never written, so ask for at most the end"
            )
            raise RequestError(message)
        if start < begin:
            gaps.append(f"partition {partition} [{start}, {begin})")
        planned[partition] = (start, max(start, target))
    if gaps:
        message = (
            f"Kafka has deleted {', '.join(gaps)} before it was archived, so the log has a hole that cannot be filled; "
            "raise the topic's retention, then `rivertwice archive NAME --accept-hole` continues after it: records in the "
            "hole stay NOT_COMPARABLE for ever"
        )
        raise LogGapError(message)
    return planned


def behind_hole(archived: OffsetRanges, begin: Mapping[int, int]) -> OffsetRanges | None:
    """Return the begin of a new segment (empty ranges), if Kafka begins beyond the archive's end; else None. Pure."""
    ends = {p: archived.get(p, (first, first))[1] for p, first in begin.items()}
    if all(end >= begin[p] for p, end in ends.items()):
        return None
    return {p: (max(end, begin[p]), max(end, begin[p])) for p, end in ends.items()}


def check_unmoved(archived: OffsetRanges, planned_from: OffsetRanges, topic: str) -> None:
    """Refuse a chunk if the archive has changed since it was planned.

    Raises:
        LostRaceError: another job extended the archive meanwhile.
    """
    if archived and drop_empty(archived) != drop_empty(planned_from):  # a partition may have been added since
        message = (
            f"the archive of {topic} was extended by another job while this chunk was read; nothing was written; "
            "run the archive job again"
        )
        raise LostRaceError(message)


def check_turn(turn: int, planned_at: int, topic: str) -> None:
    """Refuse a chunk that was planned before another job's last commit, to any segment.

    Raises:
        LostRaceError: the archive has another number of commits than the chunk was planned from.
    """
    if turn != planned_at:
        message = (
            f"the archive of {topic} has {turn} commits and this chunk was planned from {planned_at}: another job extended it "
            "while the chunk was read; nothing was written; run the archive job again"
        )
        raise LostRaceError(message)
