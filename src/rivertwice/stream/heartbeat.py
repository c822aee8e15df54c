"""The driver's heartbeat: a thread that reports the stream's state once a second, and watches for the drain marker."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from rivertwice.core import PipelineHome
from rivertwice.log import StoredOffsets
from rivertwice.timeline import Heartbeat, LedgerRow

# How fast a stream reads, how fast the log grows, and when the lag ends. Pure: samples in, estimate out.

SHORTEST = timedelta(seconds=10)
WINDOW = timedelta(seconds=60)
FAIR = timedelta(seconds=45)
"""A lag is said not to shrink from this span on: before, a stream that starts has committed little of what it reads."""


@dataclass(frozen=True)
class PaceSample:
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


def keep_recent(samples: Sequence[PaceSample], newest: PaceSample) -> tuple[PaceSample, ...]:
    """Return the samples of the last minute with the newest at the end.

    A committed sum that became smaller (another timeline, a topic created again) begins a new series.
    """
    if samples and (newest.committed < samples[-1].committed or newest.end < samples[-1].end):
        return (newest,)
    return (*(sample for sample in samples if newest.at - sample.at <= WINDOW), newest)


def measure_pace(samples: Sequence[PaceSample]) -> Pace | None:
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


_log = logging.getLogger(__name__)


_MOST_BATCHES = 100  # batches that are held to find the slowest one

LogEnds = Mapping[str, Mapping[int, int]]
"""Topic to partition to the end of Kafka's log."""


SLOWEST_OF = timedelta(seconds=15)
"""The time of which the heartbeat reports the slowest batch, for readers that look less often than batches come."""


def lag_by_partition(end_offsets: StoredOffsets, log_ends: LogEnds) -> dict[str, dict[str, int]]:
    """Return topic to partition to how many records of the log are after the committed offsets."""
    return {
        topic: {str(p): max(0, end - int(end_offsets.get(topic, {}).get(str(p), 0))) for p, end in ends.items()}
        for topic, ends in log_ends.items()
    }


def lag_of(end_offsets: StoredOffsets, log_ends: LogEnds) -> int:
    """Return how many records of the log are after the committed offsets."""
    return _records(lag_by_partition(end_offsets, log_ends))


def _records(offsets: Mapping[str, Mapping[Any, int]]) -> int:
    return sum(sum(places.values()) for places in offsets.values())


def plain_offsets(offsets: StoredOffsets) -> dict[str, dict[str, int]]:
    """Return offsets as the heartbeat's JSON holds them."""
    return {topic: {p: int(o) for p, o in places.items()} for topic, places in offsets.items()}


class HeartbeatThread(threading.Thread):
    """Writes the heartbeat each second and the lag every few seconds."""

    def __init__(
        self,
        home: PipelineHome,
        beat: Heartbeat,
        log_ends: Callable[[], LogEnds],
        now: Callable[[], datetime],
        interval_s: float = 1.0,
        asked_to_drain: Callable[[], bool] | None = None,
        report: Callable[[StoredOffsets], None] | None = None,
    ) -> None:
        """Create the thread.

        Args:
            interval_s: seconds between two heartbeats.
            asked_to_drain: says whether the stream shall end; None looks for the drain marker.
            report: tells Kafka the committed position, for those who watch the lag there; None: nobody is told.
        """
        super().__init__(name="heartbeat", daemon=True)
        self._home = home
        self._beat = beat
        self._log_ends = log_ends
        self._now = now
        self._interval_s = interval_s
        self._asked_to_drain = asked_to_drain or home.drain.exists
        self._report = report
        self._reported: StoredOffsets = {}
        self._is_refused = False
        self._changed = threading.Lock()
        self._ends: LogEnds = {}
        self._samples: tuple[PaceSample, ...] = ()
        self._batches: deque[tuple[datetime, float]] = deque(maxlen=_MOST_BATCHES)
        self.draining = threading.Event()
        self._stopping = threading.Event()

    @property
    def beat(self) -> Heartbeat:
        """The last heartbeat."""
        return self._beat

    def say(self, state: str) -> None:
        """Change the state that the heartbeat reports."""
        with self._changed:
            self._beat = replace(self._beat, state=state)

    def committed(self, row: LedgerRow) -> None:
        """Report a committed batch."""
        ends = plain_offsets(row.end_offsets)
        elapsed = max((row.committed_at.timestamp() * 1000 - row.batch_timestamp_ms) / 1000, 0.001)
        lag_parts = lag_by_partition(ends, self._ends)
        with self._changed:
            self._batches.append((row.committed_at, round(elapsed, 3)))
            self._beat = replace(
                self._beat,
                read=(self._beat.read or 0) + row.read,
                emitted=(self._beat.emitted or 0) + row.emitted,
                batch_s=round(elapsed, 3),
                batch=row.batch,
                watermark_ms=row.batch_watermark_ms,
                end_offsets=ends,
                rows_per_s=round(row.read / elapsed, 1),
                lag=_records(lag_parts) if self._ends else self._beat.lag,
                lag_parts=lag_parts if self._ends else self._beat.lag_parts,
            )

    def shows(self, ui: str | None) -> None:
        """Report the address of the driver's Spark UI; None: it is off."""
        with self._changed:
            self._beat = replace(self._beat, ui=ui)

    def waits(self, what: str) -> None:
        """Report what the driver waits for before it can compute anything; an empty text: nothing."""
        with self._changed:
            self._beat = replace(self._beat, waits=what)

    def placed(self, until_ms: int | None) -> None:
        """Report up to which event time the next batch reads, epoch ms; None: batches are not placed by event time."""
        with self._changed:
            self._beat = replace(self._beat, placed_until_ms=until_ms)

    def resume(self, end_offsets: StoredOffsets, batch: int | None, watermark_ms: int | None) -> None:
        """Report the timeline's position before this driver's first batch."""
        with self._changed:
            self._beat = replace(
                self._beat, end_offsets=plain_offsets(end_offsets), batch=batch, watermark_ms=watermark_ms
            )

    def caught_up(self) -> bool:
        """Read the log's ends now, and say whether every record in it is committed."""
        self._ends = self._log_ends()
        lag_parts = lag_by_partition(self._beat.end_offsets, self._ends)
        lag = _records(lag_parts)
        committed = _records({topic: self._beat.end_offsets.get(topic, {}) for topic in self._ends})
        with self._changed:
            self._samples = keep_recent(self._samples, PaceSample(self._now(), committed, _records(self._ends)))
            pace = measure_pace(self._samples)
            self._beat = replace(
                self._beat,
                lag=lag,
                lag_parts=lag_parts,
                lag_at=self._now(),
                arriving_per_s=None if pace is None else pace.arriving_per_s,
                catch_up_s=None if pace is None else pace.catch_up_s,
            )
        return lag == 0

    def run(self) -> None:
        """Beat until `finish`."""
        ticks = 0
        while not self._stopping.wait(self._interval_s if ticks else 0.0):
            if self._asked_to_drain():
                self.draining.set()
            if ticks % 5 == 0:
                try:
                    self.caught_up()
                except Exception as error:
                    _log.warning("the lag of %s is not known now: %s", self._home.root.name, error)
                self._report_position()
            try:
                self._write()
            except OSError as error:  # a full disk: the batch fails by itself, and says why
                _log.warning("the heartbeat of %s could not be written: %s", self._home.root.name, error)
            ticks += 1

    def _report_position(self) -> None:
        """Report the position if it has changed. A refusal is said once, and stops nothing: the ledger is the position."""
        position = self._beat.end_offsets
        if self._report is None or not position or position == self._reported:
            return
        try:
            self._report(position)
            self._reported, self._is_refused = position, False
        except Exception as error:
            if not self._is_refused:
                _log.warning(
                    "Kafka does not take the position of %s, so its own lag is old: %s", self._home.root.name, error
                )
            self._is_refused = True

    def finish(self, state: str) -> None:
        """Stop beating; report the last state."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout=5.0)
        if state == "stopped":
            self._report_position()
        self.say(state)
        self._write()

    def _write(self) -> None:
        with self._changed:
            state = (
                "draining" if self.draining.is_set() and self._beat.state in {"running", "idle"} else self._beat.state
            )
            now = self._now()
            slowest = max((took for at, took in self._batches if now - at <= SLOWEST_OF), default=None)
            self._beat = replace(self._beat, at=now, state=state, slowest_s=slowest)
            self._beat.save(self._home)
