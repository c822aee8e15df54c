"""Instants and half-open ranges: aware UTC in code, epoch milliseconds only in stored and sent data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from rivertwice.core.errors import RequestError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def utc_now() -> datetime:
    """Return the present instant; only code with effects calls this, decisions take `now`."""
    return datetime.now(UTC)


def to_ms(instant: datetime) -> int:
    """Return epoch milliseconds, rounded down. A naive datetime is refused."""
    if instant.tzinfo is None:
        message = f"{instant!r} has no time zone, so it names no instant; give it one, for instance a trailing Z"
        raise RequestError(message)
    return (instant - EPOCH) // _MS


def from_ms(epoch_ms: int) -> datetime:
    """Return the aware UTC instant of `epoch_ms`."""
    return EPOCH + epoch_ms * _MS


def to_iso(instant: datetime) -> str:
    """Return ISO 8601 in UTC with a trailing Z."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def iso_of_ms(epoch_ms: int) -> str:
    """Return an epoch in milliseconds as `to_iso` writes it."""
    return to_iso(from_ms(epoch_ms))


def parse_iso(text: str) -> datetime:
    """Parse ISO 8601 with a zone, for instance `2013-06-30T04:00:00Z`.

    Raises:
        RequestError: the text is not a timestamp or has no zone.
    """
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        message = f"{text!r} is not an ISO 8601 timestamp; write it as 2013-06-30T04:00:00Z, or a date as 2013-06-30"
        raise RequestError(message) from None
    if instant.tzinfo is None:
        message = f"{text!r} has no time zone, so it names no instant; write it as {text.strip()}Z or with an offset"
        raise RequestError(message)
    return instant.astimezone(UTC)


def parse_instant(text: str) -> datetime:
    """Parse a person's input: ISO 8601 with a zone, or a date alone, `2013-06-30`, which means midnight UTC.

    Raises:
        RequestError: the text is neither.
    """
    try:
        return datetime.combine(date.fromisoformat(text.strip()), time(), UTC)
    except ValueError:  # it has a time of day, or names no day
        return parse_iso(text)


@dataclass(frozen=True, order=True)
class TimeRange:
    """A half-open range of event time, `[start, end)`."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if to_ms(self.start) >= to_ms(self.end):
            message = (
                f"the range [{to_iso(self.start)}, {to_iso(self.end)}) is empty or reversed; "
                "ranges are half-open, so the end must be later than the start"
            )
            raise RequestError(message)

    @classmethod
    def parse(cls, start: str, end: str) -> TimeRange:
        """Parse a person's input for the two ends of a range (`parse_instant`)."""
        return cls(parse_instant(start), parse_instant(end))

    def contains(self, instant: datetime) -> bool:
        """Say whether `start <= instant < end`."""
        return self.start <= instant < self.end
