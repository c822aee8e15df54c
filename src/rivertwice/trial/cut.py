"""From records of the log to a case: its events, its micro-batches, and what the definition gives for it today. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import yaml

from rivertwice.errors import RequestError
from rivertwice.instants import to_iso
from rivertwice.log.addresses import Part
from rivertwice.pipeline.case_diff import diff_names, diff_rows
from rivertwice.pipeline.case_files import Case
from rivertwice.pipeline.decode import SCHEMA_ID_HEADER
from rivertwice.pipeline.definition import Definition

MOST_RECORDS = 500
"""A case of more records is refused: nobody could read it, and a test should be small."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
_ADDRESS = re.compile(r"(?:(?P<topic>[A-Za-z0-9._-]+)/)?(?P<partition>[0-9]{1,6})[@/](?P<offset>[0-9]{1,18})")


@dataclass(frozen=True)
class RawRecord:
    """A record of the log, byte by byte."""

    part: Part
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]


@dataclass(frozen=True)
class Results:
    """What a case gave when it was run."""

    batch: Sequence[Mapping[str, Any]]
    stream: Sequence[Mapping[str, Any]]
    late: Sequence[str]
    dead: Mapping[str, str]


def parse_address(text: str, topics: Sequence[str]) -> tuple[Part, int]:
    """Return the address of a record: TOPIC/PARTITION@OFFSET, or PARTITION@OFFSET if there is one topic; `/` stands for `@` too.

    Raises:
        RequestError: it is no address, or its topic is none of the topics.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or (match["topic"] is None and len(topics) > 1):
        message = f"{text!r} is no address of a record; write TOPIC/PARTITION@OFFSET, for instance {topics[0]}/0@118"
        raise RequestError(message)
    topic = match["topic"] or topics[0]
    if topic not in topics:
        message = f"{text!r} names the topic {topic}, but the pipeline reads {', '.join(topics)}; correct the address"
        raise RequestError(message)
    return Part(topic, int(match["partition"])), int(match["offset"])


def require_case_name(name: str) -> str:
    """Return the name of a case, if it can be a file's.

    Raises:
        RequestError: it cannot.
    """
    if not _NAME.fullmatch(name):
        message = f"{name!r} cannot be the name of a case; use at most 100 of a-z, 0-9, _ and -, the first no _ or -"
        raise RequestError(message)
    return name


def require_few(count: int, pipeline: str) -> None:
    """Refuse to cut nothing, or too much.

    Raises:
        RequestError: there is no record, or there are too many.
    """
    if count == 0:
        message = f"the log of {pipeline} holds no accepted record that is asked for, so there is no case to cut; ask for another window or key"
        raise RequestError(message)
    if count > MOST_RECORDS:
        message = f"more than {MOST_RECORDS} records are asked for, too many for a case; name a key with --key, or single records with --record"
        raise RequestError(message)


def group_by_batch(
    records: Sequence[RawRecord], batches: Sequence[Mapping[Part, tuple[int, int]]]
) -> list[list[RawRecord]]:
    """Return the records by the micro-batch that read them, in the order of the path; those that none has read yet come last.

    Args:
        records: in any order.
        batches: half-open offset ranges of each batch of the path.
    """
    remaining = sorted(records, key=lambda record: (record.part, record.offset))
    groups = []
    for ranges in batches:
        read = [
            record
            for record in remaining
            if record.part in ranges and ranges[record.part][0] <= record.offset < ranges[record.part][1]
        ]
        if read:
            groups.append(read)
            remaining = [record for record in remaining if record not in read]
    return [*groups, remaining] if remaining else groups


def make_events(definition: Definition, groups: Sequence[Sequence[RawRecord]]) -> list[list[dict[str, Any]]]:
    """Return the micro-batches of a case: each record as text if its value is text, else as hexadecimal digits."""
    return [[_event(definition, record) for record in group] for group in groups]


def _event(definition: Definition, record: RawRecord) -> dict[str, Any]:
    view, source = definition.by_topic[record.part.topic]
    number = list(definition.sources).index(view)
    prefix = f"s{number}-" if definition.has_several_sources else ""
    event: dict[str, Any] = {
        "id": f"{prefix}{record.part.partition}-{record.offset}",
        "at": to_iso(record.timestamp),
    }
    if definition.has_several_sources:
        event["source"] = view
    key = None if record.key is None else _text(record.key)
    if key is not None:
        event["key"] = key
    if source.schema_ids and source.framing == "none":
        schema_id = _text(record.headers.get(SCHEMA_ID_HEADER, b""))
        event["headers"] = {SCHEMA_ID_HEADER: schema_id} if schema_id else {}
    if record.value is None:
        return {**event, "tombstone": True}
    text = _text(record.value)
    return {**event, "hex": record.value.hex()} if text is None else {**event, "raw": text}


def _text(data: bytes) -> str | None:
    """Return bytes as text if a person can read it; else None."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", "").replace("\t", "").isprintable() else None


def expect(definition: Definition, results: Results) -> dict[str, Any]:
    """Return what a case expects so that it passes with these results.

    Raises:
        RequestError: the results cannot be written so that they compare as equal.
    """
    expected: dict[str, Any] = {
        "batch": [_row(row) for row in results.batch],
        "stream": [_row(row) for row in results.stream],
        "late": list(results.late),
        "dead": dict(results.dead),
    }
    wrong = [
        *diff_rows(definition, "batch", expected["batch"], [dict(row) for row in results.batch]),
        *diff_rows(definition, "stream", expected["stream"], [dict(row) for row in results.stream]),
        *diff_names("dead", expected["dead"], dict(results.dead)),
    ]
    if wrong:
        message = f"the results cannot be written as a case expects them: {wrong[0]}; nothing was written"
        raise RequestError(message)
    return expected


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in row.items() if _can_be_written(value)}


def _can_be_written(value: Any) -> bool:
    """Say whether YAML gives the value back as it is: not so for decimals of many digits. A column that is left out is not compared."""
    return not isinstance(value, Decimal) or Decimal(str(_plain(value))) == value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_iso(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def case_text(title: str, head: Sequence[str], batches: Sequence[Sequence[Mapping[str, Any]]], expected: Any) -> str:
    """Return the text of a case's file; `head` are the lines of the comment at its beginning."""
    body = {"description": title, "batches": [list(batch) for batch in batches], "expect": expected}
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=None)
    return "".join(f"# {line}\n" for line in head) + text


def parse_case(name: str, batches: Sequence[Sequence[Mapping[str, Any]]]) -> Case:
    """Return a case that expects nothing yet, to be run."""
    nothing: dict[str, Any] = {"batch": [], "stream": []}
    value = {"name": name, "description": name, "batches": [list(batch) for batch in batches], "expect": nothing}
    return Case.model_validate(value)
