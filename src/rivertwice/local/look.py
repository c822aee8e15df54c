"""What the records of a file or a topic are like: disorder, lateness, keys, windows. Pure; it needs neither Spark nor Java."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from rivertwice.definition import round_up
from rivertwice.local.guess import (
    DELAYS,
    Guess,
    TimedRecord,
    event_range,
    largest_disorder,
    stretches,
    timed_records,
    window_start,
)
from rivertwice.local.sample import LOCAL

MOST_KEYS = 5
"""Values of the keys that are shown, the most frequent first."""
SKEWED = 0.5
"""Share of the records from which one key is named as skewed: a window of it is computed by one core."""


@dataclass(frozen=True)
class DelayShare:
    """What a watermark delay would do.

    Attributes:
        late: records that would come after their window has closed.
        share: of the records with an event time.
    """

    delay: timedelta
    late: int
    share: float


@dataclass(frozen=True)
class KeyShare:
    """How frequent a key is."""

    key: str
    records: int
    share: float


@dataclass(frozen=True)
class FieldPresence:
    """A field that not every record has.

    Attributes:
        shares: of the records of the beginning, the middle and the end that have a value; one share if the sample is of one piece.
    """

    field: str
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Look:
    """What a sample shows.

    Attributes:
        origin: where it comes from: `file trips.csv`, `topic trips`.
        read_as: how a file is written, and what is not certain of it.
        envelope: what the records are, around their fields; None: they are plain.
        records: how many were looked at.
        broken: reason to number of those that are none.
        event_time: the field that was taken; None: no field can be it, so nothing below is known up to `keys`.
        first, last: event times.
        disordered: records before which a later one of their partition came.
        widest: how far at most.
        window: length of the windows below.
        delays: none, and each that makes fewer records late than a shorter one, up to the first that makes none late.
        largest_window, usual_window: records in the largest, and in the one in the middle.
        key_values: how many there are.
        most: the most frequent.
        zoneless: fields with times without a zone.
        sparse: fields that come and go.
    """

    origin: str
    read_as: Sequence[str]
    envelope: str | None
    records: int
    broken: dict[str, int]
    event_time: str | None
    first: datetime | None
    last: datetime | None
    disordered: int
    widest: timedelta
    window: timedelta
    delays: tuple[DelayShare, ...]
    windows: int
    largest_window: int
    usual_window: float
    keys: tuple[str, ...]
    key_values: int
    most: tuple[KeyShare, ...]
    zoneless: tuple[str, ...]
    sparse: tuple[FieldPresence, ...]

    @classmethod
    def of(cls, guess: Guess) -> Look:
        """Return what the sample of a guess is like."""
        sample, timed = guess.sample, timed_records(guess.sample, guess.event_time)
        starts = Counter(window_start(each.event, guess.window) for each in timed)
        first, last = event_range(timed) if timed else (None, None)
        disorder = largest_disorder(timed) if timed else (timedelta(0), 0)
        keys = (
            Counter(_key([record.value.get(name) for name in guess.keys]) for record in sample.records)
            if guess.keys
            else Counter[str]()
        )
        return cls(
            origin=sample.origin,
            read_as=sample.read_as,
            envelope=sample.envelope,
            records=len(sample.records),
            broken=dict(sample.skipped),
            event_time=None if guess.event_time is None else guess.event_time.name,
            first=first,
            last=last,
            disordered=disorder[1],
            widest=disorder[0],
            window=guess.window,
            delays=() if guess.table else _delays(timed, guess.window),
            windows=len(starts),
            largest_window=max(starts.values(), default=0),
            usual_window=float(median(starts.values())) if starts else 0.0,
            keys=guess.keys,
            key_values=len(keys),
            most=tuple(KeyShare(key, count, count / len(sample.records)) for key, count in keys.most_common(MOST_KEYS)),
            zoneless=tuple(each.name for each in guess.fields if each.form == LOCAL),
            sparse=_sparse(guess),
        )

    @property
    def widest_rounded(self) -> timedelta:
        """`widest` as people would say it, rounded up."""
        return round_up(self.widest)

    def warnings(self) -> list[str]:
        """Say what would surprise somebody, one sentence each."""
        found = [*self.read_as[1:], *(f"{count} left out: {reason}" for reason, count in self.broken.items())]
        if self.event_time is None:
            found.append(
                "no field can be the event time; name one with --event-time, or say --zone or --time-format of the times of a file"
            )
        if self.zoneless:
            found.append(
                f"{', '.join(self.zoneless)}: times without a zone, which mean nothing until --zone says where"
            )
        if self.most and self.most[0].share > SKEWED and self.key_values > 1:
            found.append(
                f"{self.most[0].key} has {self.most[0].share:.0%} of the records: its windows are computed by one core, whatever the number of partitions"
            )
        found += [
            f"{each.field} comes and goes: {', '.join(f'{share:.0%}' for share in each.shares)} of the records of the {_PIECES[len(each.shares)]} have it"
            for each in self.sparse
        ]
        return found


_PIECES = {1: "sample", 2: "beginning and end", 3: "beginning, middle and end"}


def count_late(timed: Sequence[TimedRecord], window: timedelta, delay: timedelta) -> int:
    """Return how many records come when the watermark has passed the end of their window.

    The watermark is that of the records before, of the same partition, as if each were a micro-batch: a stream with larger
    batches has fewer late records, and one whose other partitions are ahead has more.
    """
    late = 0
    for group in stretches(timed).values():
        newest = group[0].event
        for record in group:
            late += window_start(record.event, window) + window <= newest - delay
            newest = max(newest, record.event)
    return late


def _delays(timed: Sequence[TimedRecord], window: timedelta) -> tuple[DelayShare, ...]:
    found: list[DelayShare] = []
    for delay in (timedelta(0), *DELAYS):
        if not timed or (found and not found[-1].late):
            break
        late = count_late(timed, window, delay)
        if not found or late < found[-1].late:
            found.append(DelayShare(delay, late, late / len(timed)))
    return tuple(found)


def _key(values: Sequence[Any]) -> str:
    return ", ".join("no value" if value is None else str(value) for value in values)


def _sparse(guess: Guess) -> tuple[FieldPresence, ...]:
    records = guess.sample.records
    pieces = [
        [record for record in records if record.stretch == stretch]
        for stretch in sorted({record.stretch for record in records})
    ]
    found = []
    for each in guess.fields:
        if not each.complete:
            ordered = pieces if len(pieces) in _PIECES else [list(records)]
            shares = [
                sum(record.value.get(each.name) is not None for record in piece) / len(piece) for piece in ordered
            ]
            found.append(FieldPresence(each.name, tuple(shares)))
    return tuple(found)
