"""The register of erasures: what was asked and what was done, kept for ever; the value itself only until it is done.

Under `HOME/erasures/ID/`, format 1, each file written once: `request.json`, `subject.json` (the value; removed with the last
step), `plan.json` (what was found before the first change, for a second try finds less), `done.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rivertwice.config import Place, Settings, below
from rivertwice.errors import RequestError
from rivertwice.instants import parse_iso, to_iso
from rivertwice.pipeline.definition import Definition, Source
from rivertwice.privacy.redact import Redactor, Value
from rivertwice.schemas.avro_schema import AvroSchema
from rivertwice.schemas.proto_swap import ProtoRecords
from rivertwice.schemas.swap import AvroRecords, Records
from rivertwice.store.small_records import delete_record, list_records, put_record_if_absent, read_record

FORMAT = 1
REQUEST, SUBJECT, PLAN, DONE = "request.json", "subject.json", "plan.json", "done.json"
_ID = re.compile(r"^er-[0-9a-f]{12}\Z")


@dataclass(frozen=True)
class Erasure:
    """One request.

    Attributes:
        id: `er-` and 12 hex digits, by chance: nothing of the value is in it.
        pipeline: the one it was asked for; those that share topics with it are part of it.
        fields: fields of records that hold the value. columns: columns of results that hold it, the fields among them.
        pseudonym: what is there afterwards.
        why, by: of who asked.
    """

    id: str
    pipeline: str
    fields: Sequence[str]
    columns: Sequence[str]
    pseudonym: Value
    why: str
    by: str
    asked_at: datetime

    def redactor(self, value: Value, definitions: Iterable[Definition]) -> Redactor:
        """Return what replaces the value in what pipelines of these definitions keep."""
        return Redactor(value, self.pseudonym, frozenset({*self.fields, *self.columns}), binary_of(definitions))


def binary_of(definitions: Iterable[Definition]) -> tuple[Records, ...]:
    """Return how the sources of some definitions are written that are no JSON; those that share a topic share its schemas."""
    by_topic: dict[str, dict[int | None, AvroSchema]] = {}
    messages: dict[tuple[str, str], Source] = {}
    for definition in definitions:
        for source in definition.sources.values():
            if source.format == "avro":
                mine = by_topic.setdefault(source.topic, {})
                for schema_id, schema in source.pins.writers.items() or ((None, source.pins.writer),):
                    mine[schema_id] = schema
            if source.format == "protobuf":
                messages[source.message_type.text, source.framing] = source
    proto = (ProtoRecords(one.message_type, one.framing == "confluent") for one in messages.values())
    return (*(AvroRecords(writers) for writers in by_topic.values()), *proto)


def register(settings: Settings) -> Place:
    """Return where erasures are recorded: it outlives a host."""
    return below(settings.home if settings.shared is None else settings.shared, "erasures")


def record_request(settings: Settings, asked: Erasure, value: Value) -> None:
    """Record what is asked, before anything is changed; the value first, so that no request stands without it."""
    place = register(settings)
    put_record_if_absent(place, f"{asked.id}/{SUBJECT}", {"format": FORMAT, "value": value})
    put_record_if_absent(
        place, f"{asked.id}/{REQUEST}", {"format": FORMAT, **asdict(asked), "asked_at": to_iso(asked.asked_at)}
    )


def keep_plan(settings: Settings, erasure_id: str, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Record what was found before the first change, and return what the first try found."""
    place = register(settings)
    put_record_if_absent(place, f"{erasure_id}/{PLAN}", {"format": FORMAT, **found})
    return read_record(place, f"{erasure_id}/{PLAN}") or found


def record_done(settings: Settings, erasure_id: str, outcome: Mapping[str, Any], now: datetime) -> None:
    """Record what was done, then forget the value; a crash between the two is mended by the next call."""
    place = register(settings)
    put_record_if_absent(place, f"{erasure_id}/{DONE}", {"format": FORMAT, "done_at": to_iso(now), **outcome})
    delete_record(place, f"{erasure_id}/{SUBJECT}")


def read_erasures(settings: Settings) -> list[tuple[Erasure, Mapping[str, Any] | None]]:
    """Return every request with its outcome (None: not done yet), oldest first."""
    found = [load_erasure(settings, name) for name in list_records(register(settings), REQUEST)]
    return sorted(found, key=lambda one: (one[0].asked_at, one[0].id))


def erased_topics(settings: Settings) -> dict[str, list[str]]:
    """Return topic to the erasures that replaced records of its archive, or may have begun to."""
    place, found = register(settings), dict[str, list[str]]()
    for name in list_records(place, REQUEST):
        plan = read_record(place, f"{name}/{PLAN}") or {}
        for topic, count in plan.get("records", {}).items():
            if count:
                found.setdefault(topic, []).append(name)
    return found


def load_erasure(settings: Settings, erasure_id: str) -> tuple[Erasure, Mapping[str, Any] | None]:
    """Return one request and its outcome, None while it is not done.

    Raises:
        RequestError: there is none, or its format is another.
    """
    place = register(settings)
    data = read_record(place, f"{erasure_id}/{REQUEST}") if _ID.match(erasure_id) else None
    if data is None or data.pop("format") != FORMAT:
        known = ", ".join(list_records(place, REQUEST)) or "none"
        message = f"no erasure {erasure_id[:40]!r} of format {FORMAT}; there are: {known}"
        raise RequestError(message)
    return Erasure(**{**data, "asked_at": parse_iso(data["asked_at"])}), read_record(place, f"{erasure_id}/{DONE}")


def read_value(settings: Settings, erasure_id: str) -> Value | None:
    """Return the value of an erasure under way; None once it is done."""
    data = read_record(register(settings), f"{erasure_id}/{SUBJECT}")
    return None if data is None else data["value"]
