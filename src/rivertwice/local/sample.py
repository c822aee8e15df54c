"""Sample records, from a topic or a file, as JSON objects; times in them; generated orders. Pure."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from rivertwice.core import EPOCH, RequestError, Row, parse_iso, to_iso
from rivertwice.definition import MICROS, TIMESTAMP

MOST_RECORDS = 1_000
"""The default number of records of a sample."""
FRAME_BYTES = 5
"""Confluent's prefix: a zero byte and a schema id of four."""
CLOUD_EVENTS = "CloudEvents"
"""The envelope of records that are CloudEvents."""


@dataclass(frozen=True)
class RawRecord:
    """A record as its topic has it.

    Attributes:
        stretch: number of the stretch of successive offsets that it was read in; records of two are not neighbours.
        stamped: the record's own timestamp.
    """

    partition: int
    offset: int
    stretch: int
    stamped: datetime
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class SampleRecord:
    """A record whose value is an object.

    Attributes:
        partition, offset: its address; for a file, partition 0 and the number of the record.
        stretch: number of the stretch of successive offsets that it was read in.
        stamped: the record's own timestamp; None: it comes from a file.
        key: the Kafka key as text; None: it has none, or no text.
        value: field to JSON value; numbers with a fraction are `Decimal`, as exact as they were written.
        sent: the object as the topic has it, where its fields are read by paths; None: it is `value`.
    """

    partition: int
    offset: int
    stretch: int
    stamped: datetime | None
    key: str | None
    value: Mapping[str, Any]
    sent: Mapping[str, Any] | None = None

    @property
    def as_sent(self) -> Mapping[str, Any]:
        """The record's JSON object."""
        return self.value if self.sent is None else self.sent


@dataclass(frozen=True)
class Encoding:
    """How the records of a topic are written.

    Attributes:
        format: `json` or `avro`.
        framed: a schema id comes before each value.
        types: field to the SQL type that the schema gives it; empty for JSON.
        files: schemas to pin: path in the pipeline's folder to text.
        subject: in the registry; None: not known.
    """

    format: str = "json"
    framed: bool = False
    types: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    subject: str | None = None


@dataclass(frozen=True)
class RecordSample:
    """What a definition is guessed from.

    Attributes:
        origin: where it comes from, in words: `topic trips`, `file trips.csv`.
        partitions: of the topic; for a file, those that it is to be made with.
        records: at least one.
        skipped: reason to number of records that are not in it.
        held: how many records the topic or file has; None: not known.
        renamed: column of a file to the field that it becomes, where the two differ.
        paths: field to the path where the records have it, if that is not its name.
        is_file: whether it comes from a file, whose records somebody has still to send.
        read_as: how the file is written, and what is not certain of it; the first line is certain.
        said: the options of a command line with which the file is read like this.
        envelope: what the records are, around the fields that were taken; None: the fields are those of the records.
        event_time: the field with the time that the envelope gives; None: it gives none.
    """

    origin: str
    topic: str
    partitions: int
    records: Sequence[SampleRecord]
    skipped: Mapping[str, int] = field(default_factory=dict)
    held: int | None = None
    encoding: Encoding = field(default_factory=Encoding)
    renamed: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    is_file: bool = False
    read_as: Sequence[str] = ()
    said: Sequence[str] = ()
    envelope: str | None = None
    event_time: str | None = None


def parse_object(data: bytes | str) -> Row | str:
    """Return a JSON object, or why the text is none."""
    try:
        value = json.loads(data, parse_int=_whole, parse_float=_fraction, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        return "not UTF-8 text"
    except OverflowError:
        return "a number larger than a double can hold"
    except (ValueError, RecursionError):
        return "not valid JSON"
    return value if isinstance(value, dict) else f"JSON, but not an object: {type(value).__name__}"


def number_of(text: str) -> int | Decimal:
    """Return the number that a text of digits is, as exact as it was written; one that a double takes for 0 is 0.

    Raises:
        OverflowError: it is larger than a double can hold, so a record with it is a dead letter, or a text.
    """
    nearest = float(text)
    if math.isinf(nearest):
        message = f"{text[:40]} is larger than a double can hold"
        raise OverflowError(message)
    if text.lstrip("+-").isdigit():
        return int(text)
    return Decimal(text) if nearest else Decimal(0)


def _whole(text: str) -> int:
    return int(number_of(text))


def _fraction(text: str) -> Decimal:
    return Decimal(number_of(text))


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def parse_json_records(
    records: Sequence[RawRecord], topic: str, *, framed: bool
) -> tuple[list[SampleRecord], dict[str, int]]:
    """Return the records whose value is a JSON object, and reason to number of the others.

    Raises:
        RequestError: none of them is one.
    """
    parsed, skipped = [], dict[str, int]()
    for record in records:
        value: dict[str, Any] | str = "no value (a tombstone)"
        if record.value is not None:
            value = parse_object(record.value[FRAME_BYTES:] if framed else record.value)
        if isinstance(value, str):
            skipped[value] = skipped.get(value, 0) + 1
            continue
        parsed.append(with_value(record, value))
    if not parsed:
        first = records[0]
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        message = (
            f"none of {len(records)} records of topic {topic} is a JSON object ({reasons}; the first, {topic}/{first.partition}"
            f"@{first.offset}, begins with {(first.value or b'')[:40]!r}), so no definition can be guessed; name a topic of JSON "
            "objects, or of Avro records with Confluent's prefix"
        )
        raise RequestError(message)
    return parsed, skipped


def with_value(record: RawRecord, value: Mapping[str, Any]) -> SampleRecord:
    """Return a topic's record with its value."""
    key = None if record.key is None else _text(record.key)
    return SampleRecord(record.partition, record.offset, record.stretch, record.stamped, key, value)


def _text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def frame_ids(records: Sequence[RawRecord]) -> set[int]:
    """Return the schema ids before the values; empty if not all values begin with Confluent's prefix. No JSON begins with a zero byte."""
    values = [record.value for record in records if record.value]
    if not values or any(value[0] != 0 or len(value) <= FRAME_BYTES for value in values):
        return set()
    return {int.from_bytes(value[1:FRAME_BYTES], "big") for value in values}


# Which fields hold a time, judged by their values and their name. Pure.

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


# A small generated stream: two thousand orders of three shops, 19 of which come hours too late. Pure, and the same every time.
#
# `rivertwice init --sample`, `rivertwice demo` and the tutorial use it.

TOPIC = "orders"
SHOPS = ("berlin", "lagos", "quito")
ORDERS = 2_000
BATCH = 200
"""Records of a micro-batch. A record is late by the watermark of the batch before its own, so late records need several batches."""
FIRST = datetime(2026, 1, 5, 8, tzinfo=UTC)
EVERY = timedelta(seconds=18)
LONGEST_TRIP = timedelta(seconds=90)
OUTAGE = ("lagos", FIRST.replace(hour=9, minute=10), FIRST.replace(hour=9, minute=25))
"""A shop whose line is down, and from when until when; its orders of that time arrive at `LINE_BACK`."""
LINE_BACK = FIRST.replace(hour=15)
FORGOTTEN = {700: FIRST.replace(hour=16, minute=10), 900: FIRST.replace(hour=16, minute=20)}
"""Single orders by number, and when they arrive."""


def make_orders() -> list[Row]:
    """Return the orders in the order in which they arrive; `placed_at` is when each was placed."""
    draw = random.Random(1)  # noqa: S311
    arriving = []
    for number in range(ORDERS):
        placed = FIRST + number * EVERY
        order = {
            "order_id": number,
            "shop": draw.choice(SHOPS),
            "amount": round(draw.uniform(3, 80), 2),
            "placed_at": placed.isoformat(),
        }
        arrives = placed + timedelta(seconds=draw.randrange(round(LONGEST_TRIP.total_seconds())))
        if order["shop"] == OUTAGE[0] and OUTAGE[1] <= placed < OUTAGE[2]:
            arrives = LINE_BACK
        arriving.append((FORGOTTEN.get(number, arrives), order))
    arriving.sort(key=lambda pair: pair[0])
    return [order for _, order in arriving]


def orders_text() -> str:
    """Return the orders as JSON lines."""
    return "".join(json.dumps(order) + "\n" for order in make_orders())


def orders_sample(text: str) -> RecordSample:
    """Return the sample that the pipeline is guessed from: the first orders, before the late ones arrive."""
    values = [parse_object(line) for line in text.splitlines()[:MOST_RECORDS]]
    records = [
        SampleRecord(0, number, 0, None, None, value) for number, value in enumerate(values) if isinstance(value, dict)
    ]
    return RecordSample("generated orders", TOPIC, 1, records, held=ORDERS, is_file=True)
