"""Sample records, from a topic or a file, as JSON objects. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from rivertwice.errors import RequestError

MOST_RECORDS = 1_000
"""Records of a sample, if nobody asks for another number."""
FRAME_BYTES = 5
"""Confluent's prefix: a zero byte and a schema id of four."""


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
class Sample:
    """What a definition is guessed from.

    Attributes:
        origin: where it comes from, in words: `topic trips`, `file trips.csv`.
        topic: the topic that the pipeline reads.
        partitions: of the topic; for a file, those that it is to be made with.
        records: at least one.
        skipped: reason to number of records that are not in it.
        held: how many records the topic or file has; None: not known.
        encoding: how the records are written.
        renamed: column of a file to the field that it becomes, where the two differ.
        paths: field to the path where the records have it, if that is not its name.
        is_file: whether it comes from a file, whose records somebody has still to send.
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


def parse_object(data: bytes | str) -> dict[str, Any] | str:
    """Return a JSON object, or why the text is none."""
    try:
        value = json.loads(data, parse_int=_whole, parse_float=_fraction, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        return "no UTF-8 text"
    except OverflowError:
        return "a number larger than a double can hold"
    except (ValueError, RecursionError):
        return "no JSON"
    return value if isinstance(value, dict) else f"JSON, but no object: {type(value).__name__}"


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
