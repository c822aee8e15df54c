"""Read a sample of a topic, and with the schema registry what its records are."""

from __future__ import annotations

from collections.abc import Sequence

from rivertwice.core import RequestError, RivertwiceError, Settings, from_ms
from rivertwice.definition import URL_ENV, SchemaVersion, decode_avro, field_types, file_name, open_registry, parse_avro
from rivertwice.local.guess import view_name
from rivertwice.local.sample import (
    FRAME_BYTES,
    Encoding,
    RawRecord,
    RecordSample,
    SampleRecord,
    frame_ids,
    parse_json_records,
    with_value,
)
from rivertwice.log import TopicSample, sample_topic


def sample_from_topic(settings: Settings, topic: str, most: int) -> RecordSample:
    """Return a sample of at most about `most` records of a topic.

    Raises:
        RequestError: there is no such topic, it has no record, or its records cannot be read; the message says what is needed.
        ServiceError: Kafka or the registry does not answer.
    """
    sampled = sample_topic(settings, topic, most)
    raw = raw_records(sampled)
    ids = frame_ids(raw)
    if not ids:
        parsed, skipped = parse_json_records(raw, topic, framed=False)
        return RecordSample(f"topic {topic}", topic, sampled.partitions, parsed, skipped, sampled.held)
    versions = {each: _version(settings, topic, each) for each in sorted(ids)}
    if all(each.kind == "json" for each in versions.values()):
        parsed, skipped = parse_json_records(raw, topic, framed=True)
        encoding = Encoding("json", framed=True)
        return RecordSample(f"topic {topic}", topic, sampled.partitions, parsed, skipped, sampled.held, encoding)
    return _avro_sample(topic, sampled, raw, versions)


def raw_records(sampled: TopicSample) -> list[RawRecord]:
    """Return the records of all stretches, stretch by stretch."""
    return [
        RawRecord(
            partition=stretch.partition,
            offset=int(message.offset() or 0),
            stretch=int(stretch.newest),
            stamped=from_ms(int(message.timestamp()[1])),
            key=message.key(),
            value=message.value(),
        )
        for stretch, messages in sampled.records.items()
        for message in messages
    ]


def _version(settings: Settings, topic: str, schema_id: int) -> SchemaVersion:
    registry = open_registry(settings.project)
    try:
        return registry.by_id(schema_id)
    except RivertwiceError as error:
        message = (
            f"records of topic {topic} begin with Confluent's prefix and the schema id {schema_id}, which {registry.place} does not give "
            f"({error}), so their fields are not known; set {URL_ENV}=https://HOST:PORT (Avro or JSON schemas), or pin a Protobuf "
            "message as `rivertwice docs howto-schemas` shows"
        )
        raise RequestError(message) from None


def _avro_sample(
    topic: str, sampled: TopicSample, raw: Sequence[RawRecord], versions: dict[int, SchemaVersion]
) -> RecordSample:
    """Return the sample of Avro records, decoded each by its writer's schema; the newest version's fields are declared."""
    strange = [each for each, version in versions.items() if version.kind != "avro"]
    if strange:
        message = f"topic {topic} has records of Avro and of JSON schemas (ids {sorted(versions)}), which no definition reads; separate them"
        raise RequestError(message)
    writers = {each: parse_avro(version.text, f"schema {each}") for each, version in versions.items()}
    newest = versions[max(versions)]
    view = view_name(topic)
    records: list[SampleRecord] = []
    skipped: dict[str, int] = {}
    for record in raw:
        if record.value is None:
            skipped["no value (a tombstone)"] = skipped.get("no value (a tombstone)", 0) + 1
            continue
        schema = writers[int.from_bytes(record.value[1:FRAME_BYTES], "big")]
        value = decode_avro(schema, record.value[FRAME_BYTES:])
        if value is None:
            skipped["no record of its schema"] = skipped.get("no record of its schema", 0) + 1
            continue
        records.append(with_value(record, value))
    if not records:
        message = f"no record of topic {topic} can be decoded by its schema ({skipped}), so no definition can be guessed; check the registry"
        raise RequestError(message)
    files = {
        file_name(view, None): newest.text,
        **{file_name(view, each): version.text for each, version in versions.items()},
    }
    encoding = Encoding(
        "avro",
        framed=True,
        types=field_types(writers[newest.id]),
        files=files,
        subject=newest.subject or f"{topic}-value",
    )
    return RecordSample(f"topic {topic}", topic, sampled.partitions, records, skipped, sampled.held, encoding)
