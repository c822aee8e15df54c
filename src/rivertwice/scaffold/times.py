"""Which fields hold a time, judged by their values and their name. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from rivertwice.errors import RequestError
from rivertwice.instants import EPOCH, parse_iso, to_iso
from rivertwice.pipeline.times import MICROS, TIMESTAMP

ISO = "ISO 8601 with a zone"
LOCAL = "a time without a zone"
FINE = "more than six decimals of a second"
OTHER_TEXT = "a time in another form"
NANOS = "ns"
_TIMESTAMP = re.compile(TIMESTAMP.replace(r"\z", r"\Z"))
_LOCAL = re.compile(r"\A\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?\Z")
_FINE = re.compile(r"\A\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{7,}(Z|[+-]\d{2}:\d{2})\Z")
_OTHER = re.compile(r"\A\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)? ?(Z|UTC|[+-]\d{2}:?\d{2})\Z")
_EPOCHS = ((500_000_000, "s"), (500_000_000_000, "ms"), (500_000_000_000_000, "us"), (500_000_000_000_000_000, NANOS))
"""Smallest number of each unit that is taken for a time (1985); the largest is ten times it (2128)."""
_WORDS = {"time", "timestamp", "ts", "at", "date", "datetime", "when", "epoch", "instant"}
_NAMES = (
    (100, {"event"}),
    (90, {"occurred", "happened", "observed", "measured", "recorded", "reading", "sampled"}),
    (75, {"started", "start", "begin", "began"}),
    (70, {"created", "ordered", "placed", "clicked", "posted"}),
    (50, {"ended", "end", "finished", "completed", "stopped", "closed"}),
    (20, {"updated", "modified", "processed", "received", "ingested", "inserted", "loaded", "sent", "handled", "stored"}),
    (10, {"birth", "expires", "expiry", "expiration", "valid", "due", "planned", "scheduled", "until", "eta"}),
)  # fmt: skip


def words_of(name: str) -> set[str]:
    """Return the words of a field's name, in small letters."""
    return set(re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().replace("-", "_").split("_"))


def is_time_name(name: str) -> bool:
    """Say whether a name is that of a time."""
    words = words_of(name)
    return bool(words & _WORDS) or any(words & group for _, group in _NAMES)


def name_score(name: str) -> int:
    """Return how well a name fits the time at which an event happened; larger is better."""
    words = words_of(name)
    for score, group in _NAMES:
        if words & group:
            return score
    if words <= _WORDS | {"ms", "us", "s", "utc"}:
        return 80
    return 60 if words & _WORDS else 40


def text_form(values: Sequence[Any]) -> str | None:
    """Return the one form of time that all texts have; None if they have none."""
    forms = (
        (ISO, lambda text: bool(_TIMESTAMP.match(text)) and _is_instant(text)),
        (LOCAL, _LOCAL.match),
        (FINE, _FINE.match),
        (OTHER_TEXT, _OTHER.match),
    )
    for name, fits in forms:
        if values and all(isinstance(value, str) and fits(value) for value in values):
            return name
    return None


def _is_instant(text: str) -> bool:
    try:
        parse_iso(text)
    except (RequestError, OverflowError):  # an offset can carry the first or last day of the calendar out of it
        return False
    return True


def epoch_unit(name: str, values: Sequence[Any]) -> str | None:
    """Return the unit of whole numbers that are times since 1970: s, ms, us, or ns; None if they are none.

    Seconds are taken only if the name is that of a time: other numbers of ten digits are common.
    """
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    if not numbers or len(numbers) != len(values):
        return None
    for smallest, unit in _EPOCHS:
        if all(smallest <= number < 10 * smallest for number in numbers):
            return unit if is_time_name(name) or (unit != "s" and len(set(numbers)) > 1) else None
    return None


def is_fractional_epoch(name: str, values: Sequence[Any]) -> bool:
    """Say whether numbers with a fraction are seconds since 1970."""
    return (
        bool(values)
        and is_time_name(name)
        and all(isinstance(value, Decimal) and 500_000_000 <= value < 5_000_000_000 for value in values)
    )


def with_zone(value: Any, zone: ZoneInfo) -> Any:
    """Return a time without a zone as ISO 8601 in UTC, read as local time of a zone; any other value unchanged.

    A local time that comes twice, when clocks are set back, is the first of the two.
    """
    if not isinstance(value, str) or not _LOCAL.match(value):
        return value
    try:
        return to_iso(datetime.fromisoformat(value).replace(tzinfo=zone))
    except ValueError:
        return value


def as_instant(value: Any, unit: str | None) -> datetime | None:
    """Return the instant of a field's value, as a definition reads it; None if it is none.

    Args:
        value: as JSON has it.
        unit: of a number since 1970; None: the value is a text.
    """
    if unit is None:
        return parse_iso(value) if isinstance(value, str) and _TIMESTAMP.match(value) and _is_instant(value) else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    try:
        return EPOCH + timedelta(microseconds=value * MICROS[unit])
    except OverflowError:
        return None
