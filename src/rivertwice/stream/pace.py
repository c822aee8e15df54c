"""How fast a stream reads, how fast the log grows, and when the lag ends. Pure: samples in, estimate out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

SHORTEST = timedelta(seconds=10)
WINDOW = timedelta(seconds=60)
FAIR = timedelta(seconds=45)
"""A lag is said not to shrink from this span on: before, a stream that starts has committed little of what it reads."""


@dataclass(frozen=True)
class Sample:
    """The positions of stream and log at one instant.

    Attributes:
        committed: sum of the committed end offsets over all partitions.
        end: sum of the log's end offsets over all partitions.
    """

    at: datetime
    committed: int
    end: int


@dataclass(frozen=True)
class Pace:
    """Records per second over the last minute, and the time to catch up that follows from them.

    Attributes:
        read_per_s: records that the stream committed.
        arriving_per_s: records that were added to the log.
        catch_up_s: seconds until no record waits at this pace; 0 if no record waits, None if the lag does not shrink.
    """

    read_per_s: float
    arriving_per_s: float
    catch_up_s: float | None


def keep_recent(samples: Sequence[Sample], newest: Sample) -> tuple[Sample, ...]:
    """Return the samples of the last minute with the newest at the end.

    A committed sum that became smaller (another timeline, a topic created again) begins a new series.
    """
    if samples and (newest.committed < samples[-1].committed or newest.end < samples[-1].end):
        return (newest,)
    return (*(sample for sample in samples if newest.at - sample.at <= WINDOW), newest)


def measure_pace(samples: Sequence[Sample]) -> Pace | None:
    """Return the pace over the samples, or None while they span too little to say: ten seconds, and `FAIR` if the lag does not shrink."""
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    span = last.at - first.at
    if span < SHORTEST:
        return None
    seconds = span.total_seconds()
    read, arriving = (last.committed - first.committed) / seconds, (last.end - first.end) / seconds
    lag = max(0, last.end - last.committed)
    if not lag:
        catch_up: float | None = 0.0
    elif read > arriving:
        catch_up = round(lag / (read - arriving), 1)
    elif span < FAIR:
        return None
    else:
        catch_up = None
    return Pace(round(read, 1), round(arriving, 1), catch_up)
