"""Send the records of a file to a topic, so that a pipeline has something to read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from rivertwice.core import RequestError, Settings, to_ms, utc_now
from rivertwice.definition import Definition, value_at
from rivertwice.local.read_file import as_fields, file_values
from rivertwice.local.sample import as_instant
from rivertwice.log import end_offsets, send_records

AT_ONCE = 10_000
"""Records that are in memory at the same time."""
ANY_PARTITION = -1
SAMPLE_FILE = "sample.jsonl"
"""File of a pipeline's folder with records that `rivertwice up --sample` sends."""


@dataclass(frozen=True)
class FileRecord:
    """A record of a file, as it is sent. The producer chooses the partition by the key."""

    key: bytes | None
    value: bytes
    timestamp_ms: int
    partition: int = ANY_PARTITION
    headers: tuple[tuple[str, bytes], ...] = ()


def send_file(
    settings: Settings,
    path: Path,
    topic: str,
    *,
    event_time: str | None,
    unit: str | None,
    key: str | None,
    zone: str | None = None,
) -> int:
    """Send all records of a file in its order, and return how many Kafka acknowledged.

    Args:
        settings: the cluster.
        path: a file that `rivertwice init --from-file` reads.
        topic: must exist.
        event_time: the field, or the path to it, whose time becomes the record's timestamp; None, or a record without it: the present time.
        unit: of an event time that is a number since 1970.
        key: the field, or the path to it, whose text becomes the Kafka key; None: no key.
        zone: of times that are written without one.

    Raises:
        RequestError: the file cannot be read.
        ServiceError: not all records were acknowledged.
    """
    skipped: dict[str, int] = {}
    records = _records(path, skipped, event_time, unit, key, None if zone is None else ZoneInfo(zone))
    sent = 0
    while chunk := list(islice(records, AT_ONCE)):
        sent += len(send_records(settings, topic, chunk))
    if skipped:
        reasons = ", ".join(f"{count} lines are {reason}" for reason, count in skipped.items())
        message = f"{sent} records of {path} were sent to {topic}, but {reasons}; correct these lines and send them in a separate file"
        raise RequestError(message)
    return sent


def send_sample(settings: Settings, definition: Definition) -> str | None:
    """Send the records of a pipeline's `sample.jsonl` to its topic, if that is empty; say what was done. None: it has no such file.

    Raises:
        RequestError: the file cannot be read, or the pipeline has several sources.
        ServiceError: not all records were acknowledged.
    """
    path = settings.definitions / definition.name / SAMPLE_FILE
    if not path.is_file():
        return None
    if len(definition.sources) > 1:
        message = (
            f"{path}: {definition.name} has several sources, so the topic of its records is not known; remove the file"
        )
        raise RequestError(message)
    (source,) = definition.sources.values()
    held = sum(end_offsets(settings, source.topic).values())
    if held:
        return f"topic {source.topic} holds {held} records, so its sample is not sent again"
    event_time = source.paths.get(source.event_time, source.event_time)
    key = next((name for name in definition.keys if name in source.schema_), None)
    sent = send_file(
        settings,
        path,
        source.topic,
        event_time=event_time,
        unit=source.epochs.get(source.event_time),
        key=None if key is None else source.paths.get(key, key),
    )
    return f"{sent} records sent to topic {source.topic}"


def _records(
    path: Path,
    skipped: dict[str, int],
    event_time: str | None,
    unit: str | None,
    key: str | None,
    zone: ZoneInfo | None,
) -> Iterator[FileRecord]:
    for value in file_values(path, skipped):
        fields = as_fields(value, zone)
        instant = None if event_time is None else as_instant(value_at(fields, event_time.split(".")), unit)
        key_value = None if key is None else value_at(fields, key.split("."))
        text = None if key_value is None else str(key_value)
        body = json.dumps(fields, default=_number, ensure_ascii=False).encode()
        yield FileRecord(None if text is None else text.encode(), body, to_ms(instant or utc_now()))


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else str(value)
