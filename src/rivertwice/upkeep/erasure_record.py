"""The register of erasures: requests and outcomes are kept for ever; the value itself is kept only until the erasure is done.

The files are in `HOME/erasures/ID/`, format 1, and each is written once: `request.json`, `subject.json` (the value; removed with
the last step), `plan.json` (the plan from before the first change, because a later plan contains less), `done.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rivertwice.core import Place, RequestError, Settings, below, parse_iso, to_iso
from rivertwice.definition import AvroRecords, AvroSchema, Definition, ProtoRecords, Records, Source
from rivertwice.storage import RecordStore
from rivertwice.upkeep.redact import Redactor, Value

FORMAT = 1
REQUEST, SUBJECT, PLAN, DONE = "request.json", "subject.json", "plan.json", "done.json"
_ID = re.compile(r"^er-[0-9a-f]{12}\Z")


@dataclass(frozen=True)
class Erasure:
    """One request.

    Attributes:
        id: `er-` and 12 random hex digits; they do not depend on the value.
        pipeline: the pipeline of the request; pipelines that share topics with it are included.
        fields: fields of records that contain the value. columns: columns of results that contain it, including the fields.
        why, by: the reason for the request, and who asked.
        remake_state: make the state of every pipeline again, and not of folds alone; absent in records of 0.1.
    """

    id: str
    pipeline: str
    fields: Sequence[str]
    columns: Sequence[str]
    pseudonym: Value
    why: str
    by: str
    asked_at: datetime
    remake_state: bool = False

    def remakes(self, definition: Definition, has_records: bool) -> bool:
        """Say whether a pipeline's state is made again: if it is asked for, and for a fold that read one of the records."""
        return self.remake_state or (definition.window.kind.keeps_every_key and has_records)

    def redactor(self, value: Value, definitions: Iterable[Definition]) -> Redactor:
        """Return the redactor that replaces the value in the stored data of pipelines with these definitions."""
        known = tuple(definitions)
        sources = [source for definition in known for source in definition.sources.values()]
        in_records = {source.parts_of(name)[-1] for source in sources for name in self.fields if name in source.paths}
        return Redactor(value, self.pseudonym, frozenset({*self.fields, *self.columns, *in_records}), binary_of(known))


def binary_of(definitions: Iterable[Definition]) -> tuple[Records, ...]:
    """Return the record formats of the sources that are not JSON; sources that share a topic share its schemas."""
    by_topic: dict[str, dict[int | None, AvroSchema]] = {}
    messages: dict[tuple[str, str], Source] = {}
    for definition in definitions:
        for source in definition.sources.values():
            if source.format == "avro":
                topic_schemas = by_topic.setdefault(source.topic, {})
                for schema_id, schema in source.pins.writers.items() or ((None, source.pins.writer),):
                    topic_schemas[schema_id] = schema
            if source.format == "protobuf":
                messages[source.message_type.text, source.framing] = source
    proto = (
        ProtoRecords(message_source.message_type, message_source.framing == "confluent")
        for message_source in messages.values()
    )
    return (*(AvroRecords(writers) for writers in by_topic.values()), *proto)


def register(settings: Settings) -> Place:
    """Return the place where erasures are recorded; with a shared store it outlives a host."""
    return below(settings.home if settings.shared is None else settings.shared, "erasures")


def record_request(settings: Settings, asked: Erasure, value: Value) -> None:
    """Record the request before anything is changed; the value is written first, so that no request exists without it."""
    place = register(settings)
    RecordStore(place).put_if_absent(f"{asked.id}/{SUBJECT}", {"format": FORMAT, "value": value})
    RecordStore(place).put_if_absent(
        f"{asked.id}/{REQUEST}", {"format": FORMAT, **asdict(asked), "asked_at": to_iso(asked.asked_at)}
    )


def keep_plan(settings: Settings, erasure_id: str, plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Record the plan from before the first change, and return the plan of the first try."""
    place = register(settings)
    RecordStore(place).put_if_absent(f"{erasure_id}/{PLAN}", {"format": FORMAT, **plan})
    return RecordStore(place).read(f"{erasure_id}/{PLAN}") or plan


def record_done(settings: Settings, erasure_id: str, outcome: Mapping[str, Any], now: datetime) -> None:
    """Record what was done, then forget the value; after a crash between the two the next call forgets it."""
    place = register(settings)
    RecordStore(place).put_if_absent(f"{erasure_id}/{DONE}", {"format": FORMAT, "done_at": to_iso(now), **outcome})
    RecordStore(place).delete(f"{erasure_id}/{SUBJECT}")


def read_erasures(settings: Settings) -> list[tuple[Erasure, Mapping[str, Any] | None]]:
    """Return every request with its outcome (None if it is not done yet), oldest first."""
    erasures = [load_erasure(settings, name) for name in RecordStore(register(settings)).folders_with(REQUEST)]
    return sorted(erasures, key=lambda erasure: (erasure[0].asked_at, erasure[0].id))


def erased_topics(settings: Settings) -> dict[str, list[str]]:
    """Return topic to the erasures that replaced records of its archive, or may have begun to."""
    place, erasures = register(settings), dict[str, list[str]]()
    for name in RecordStore(place).folders_with(REQUEST):
        plan = RecordStore(place).read(f"{name}/{PLAN}") or {}
        for topic, count in plan.get("records", {}).items():
            if count:
                erasures.setdefault(topic, []).append(name)
    return erasures


def load_erasure(settings: Settings, erasure_id: str) -> tuple[Erasure, Mapping[str, Any] | None]:
    """Return one request and its outcome, None while it is not done.

    Raises:
        RequestError: there is none, or it has another format.
    """
    place = register(settings)
    data = RecordStore(place).read(f"{erasure_id}/{REQUEST}") if _ID.match(erasure_id) else None
    if data is None or data.pop("format") != FORMAT:
        known = ", ".join(RecordStore(place).folders_with(REQUEST)) or "none"
        message = f"no erasure {erasure_id[:40]!r} of format {FORMAT}; there are: {known}"
        raise RequestError(message)
    return Erasure(**{**data, "asked_at": parse_iso(data["asked_at"])}), RecordStore(place).read(f"{erasure_id}/{DONE}")


def read_value(settings: Settings, erasure_id: str) -> Value | None:
    """Return the value of an erasure that is not done; None once it is done."""
    data = RecordStore(register(settings)).read(f"{erasure_id}/{SUBJECT}")
    return None if data is None else data["value"]
