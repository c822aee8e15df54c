"""Change events (Debezium's envelope) and tombstones that delete: turn their columns into those of a plain record. JVM expressions only.

A change event is `{"before": ..., "after": ..., "op": "c|u|d|r", "ts_ms": N}`, plain or as `payload` of an object with its schema. Its
fields are those of `after`, or for a delete those of `before`. If they do not contain the event time, it is `ts_ms`: when the
connector wrote the event. A tombstone has only its Kafka key and the record's own timestamp.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rivertwice.definition import DELETED, OP, TS_MS, Source

# Confluent's prefix before a value: byte 0 and the schema's id in four bytes. None of these expressions can throw.

Case = tuple[Column, str, Column]
"""Condition, reason and detail of a refusal."""
PREFIX_BYTES = 5
_MOST = 2**31 - 1


def payload(source: Source) -> Column:
    """Return the value without its prefix; NULL if a required prefix is missing."""
    value = F.col("_value")
    if source.framing == "none":
        return value
    inner = F.when(_is_prefixed(), F.substring(value, PREFIX_BYTES + 1, _MOST))
    return inner.otherwise(value) if source.schema_id_optional else inner


def carries(schema_id: int) -> Column:
    """Say whether a value's prefix names this schema."""
    return F.substring("_value", 1, PREFIX_BYTES) == F.lit(bytearray(b"\x00" + schema_id.to_bytes(4, "big")))


def framing_cases(source: Source, ids: Collection[int]) -> list[Case]:
    """Return the refusals that depend on the prefix; without `ids` every id is accepted."""
    if source.framing == "none":
        return []
    absent: Case = (~_is_prefixed(), "framing", F.lit("the value does not begin with byte 0 and a 4-byte schema id"))
    cases = [] if source.schema_id_optional else [absent]
    if ids:
        number = F.conv(F.hex(F.substring("_value", 2, 4)), 16, 10)
        known = F.substring("_value", 1, PREFIX_BYTES).isin([b"\x00" + each.to_bytes(4, "big") for each in ids])
        cases.append((_is_prefixed() & ~known, "schema_id", F.concat(F.lit("schema id "), number)))
    return cases


def _is_prefixed() -> Column:
    return (F.octet_length("_value") >= PREFIX_BYTES) & (F.substring("_value", 1, 1) == F.lit(bytearray(b"\x00")))


_OPS = ("c", "u", "d", "r")
_LAST_MS = 253_370_764_800_000  # 9999-01-01: no year that a window's end could carry out of 9999
_INTEGER = r"\A-?[0-9]{1,19}\z"


def envelope_schema(fields: str) -> str:
    """Return the DDL of a change event whose images have these fields."""
    body = f"before: struct<{fields}>, after: struct<{fields}>, {OP[1:]}: string, {TS_MS}: bigint"
    return f"{body}, payload: struct<{body}>"


def open_envelope(parsed: DataFrame) -> DataFrame:
    """Return parsed change events with `_record` (the image that counts), `_op` and `_ts_ms`."""
    record = F.col("_parsed")
    inner = record["payload"]
    values = {
        name: F.when(inner.isNotNull(), inner[name]).otherwise(record[name])
        for name in ("before", "after", "op", TS_MS)
    }
    chosen = F.when(values["op"] == "d", values["before"]).otherwise(values["after"])
    return parsed.select("*", chosen.alias("_record"), values["op"].alias(OP), values[TS_MS].alias("_ts_ms"))


def image(source: Source) -> Column:
    """Return the struct of a parsed record's fields: of a change event the image that counts, else the record."""
    return F.col("_record") if source.envelope == "debezium" else F.col("_parsed")


def change_time(own_time: Column, source: Source) -> Column:
    """Return the event time of a change event: `own_time`, from its own field, or the time when the connector wrote it.

    For a table's delete it is the latter: the image is the row before the delete, with the time of the previous change.
    """
    is_absent = image(source).getField(source.event_time).isNull()
    if not source.is_table:
        return F.when(is_absent, written_at()).otherwise(own_time)
    return F.when(is_absent | (F.col(OP) == "d"), F.coalesce(written_at(), own_time)).otherwise(own_time)


def written_at() -> Column:
    """Return when the connector wrote a change event; null without a time from 1970 to 9998."""
    ms = F.col("_ts_ms")
    return F.when((ms >= 0) & (ms < _LAST_MS), F.timestamp_millis(ms))


def envelope_cases() -> list[Case]:
    """Return the reasons why a JSON object is not a change event."""
    unknown = ~F.coalesce(F.col(OP).isin(*_OPS), F.lit(False))
    empty = F.col("_record").isNull()
    side = F.when(F.col(OP) == "d", F.lit("before")).otherwise(F.lit("after"))
    return [
        (unknown, "envelope", F.concat(F.lit("op is "), F.coalesce(F.substring(OP, 1, 20), F.lit("absent")))),
        (empty, "envelope", F.concat(side, F.lit(" is absent"))),
    ]


def field_text(name: str) -> Column:
    """Return the text of a field in a change event, in whichever image it is."""
    places = (f"$.{outer}{side}.{name}" for outer in ("payload.", "") for side in ("after", "before"))
    return F.coalesce(*(F.get_json_object("_text", place) for place in places))


def with_deletes(typed: DataFrame, source: Source) -> DataFrame:
    """Return the records with `_deleted`; a tombstone gets the key's fields and, as event time, the record's timestamp."""
    is_tombstone = F.col("_value").isNull()
    moment = F.when(F.unix_millis("_record_time") < _LAST_MS, F.col("_record_time"))
    filled = {name: _key_value(source, name) for name in source.key_fields} | {source.event_time: moment}
    others = [F.col(name) for name in typed.columns if name not in filled]
    columns = [F.when(is_tombstone, value).otherwise(F.col(name)).alias(name) for name, value in filled.items()]
    return typed.select(*others, *columns, is_tombstone.alias(DELETED))


def _key_value(source: Source, name: str) -> Column:
    """Return a field from the Kafka key: the whole text, or a field of the converter's JSON (always, for several fields)."""
    text = F.try_validate_utf8(F.col("_key").cast("string"))
    inner = F.coalesce(F.get_json_object(text, f"$.payload.{name}"), F.get_json_object(text, f"$.{name}"))
    value = F.when(text.startswith("{"), inner)
    if len(source.key_fields) == 1:
        value = value.otherwise(text)
    kind = source.schema_[name]
    return value if kind == "string" else F.when(value.rlike(_INTEGER), value.try_cast(kind))


def is_delete(source: Source) -> Column:
    """Return whether a record is a tombstone that names its key, and has a time."""
    known = (F.col(name).isNotNull() for name in (*source.key_fields, source.event_time))
    return functools.reduce(operator.and_, known, F.col("_value").isNull())


def is_gone(source: Source) -> Column:
    """Return whether an accepted row deletes its key: a change event of op d, or a tombstone."""
    conditions = {OP: F.coalesce(F.col(OP) == "d", F.lit(False)), DELETED: F.col(DELETED)}
    return functools.reduce(operator.or_, (conditions[name] for name in source.marks), F.lit(False))
