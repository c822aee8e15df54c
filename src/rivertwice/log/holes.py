"""Offsets without a record for a reader: markers and aborted records of transactions, or records removed by compaction.

The stream, the archive and every recompute need one record for each offset. A topic with such holes is refused by name.
Records of an open or aborted transaction are never read: readers are `read_committed`.
"""

from __future__ import annotations

from rivertwice.config import Settings
from rivertwice.errors import RivertwiceError
from rivertwice.log.addresses import OffsetRanges
from rivertwice.log.reader import read_exactly

NAMED = 6


def find_holes(settings: Settings, topic: str, ranges: OffsetRanges) -> dict[tuple[int, int], str]:
    """Return (partition, offset) of every hole to its cause: `aborted`, or `marker or compacted`.

    Raises:
        ServiceError: Kafka does not answer.
        LogGapError: the range is gone.
    """
    visible = {(r.partition(), r.offset()) for r in read_exactly(settings, topic, ranges)}
    written = {(r.partition(), r.offset()) for r in read_exactly(settings, topic, ranges, committed=False)}
    addresses = {(p, offset) for p, (start, end) in ranges.items() for offset in range(start, end)}
    return {at: "aborted" if at in written else "marker or compacted" for at in sorted(addresses - visible)}


def explain_holes(settings: Settings, topic: str, ranges: OffsetRanges) -> str:
    """Return the holes of ranges in words, the first few by address; or the error if they cannot be read."""
    try:
        holes = find_holes(settings, topic, ranges)
    except RivertwiceError as error:
        return f"which offsets hold no record is not known: {error}"
    named = ", ".join(f"{topic}/{p}@{offset} ({cause})" for (p, offset), cause in list(holes.items())[:NAMED])
    more = f" and {len(holes) - NAMED} more" if len(holes) > NAMED else ""
    return f"no record at {named}{more}" if holes else "every offset holds a record now"
