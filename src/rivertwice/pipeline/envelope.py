"""Change events (Debezium's envelope) and tombstones that delete: from their columns to those of a plain record. JVM expressions only.

A change event is `{"before": ..., "after": ..., "op": "c|u|d|r", "ts_ms": N}`, plain or as `payload` of an object with its schema. Its
fields are those of `after`, of a delete those of `before`. Where the event time is no field of them, it is `ts_ms`: when the
connector wrote the event. A tombstone has nothing but its Kafka key and the record's own timestamp.
"""

from __future__ import annotations

import functools
import operator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rivertwice.pipeline.envelope_model import DELETED, OP, TS_MS
from rivertwice.pipeline.framing import Case
from rivertwice.pipeline.source_model import Source

_OPS = ("c", "u", "d", "r")
_LAST_MS = 253_370_764_800_000  # 9999-01-01: no year that a window's end could carry out of 9999
_INTEGER = r"\A-?[0-9]{1,19}\z"


def envelope_schema(fields: str) -> str:
    """Return the DDL of what a change event holds, for images with these fields."""
    body = f"before: struct<{fields}>, after: struct<{fields}>, {OP[1:]}: string, {TS_MS}: bigint"
    return f"{body}, payload: struct<{body}>"


def open_envelope(parsed: DataFrame) -> DataFrame:
    """Return parsed change events as parsed plain records, with `_op` and `_ts_ms`."""
    record = F.col("_parsed._record")
    inner = record["payload"]
    found = {
        name: F.when(inner.isNotNull(), inner[name]).otherwise(record[name])
        for name in ("before", "after", "op", TS_MS)
    }
    image = F.when(found["op"] == "d", found["before"]).otherwise(found["after"])
    plain = F.struct(image.alias("_record"), F.col("_parsed._end"), F.col("_parsed._corrupt"))
    return parsed.select(
        *(name for name in parsed.columns if name != "_parsed"),
        plain.alias("_parsed"),
        found["op"].alias(OP),
        found[TS_MS].alias("_ts_ms"),
    )


def change_time(found: Column, source: Source) -> Column:
    """Return the event time of a change event: `found`, its own field's, or when the connector wrote it.

    Of a table's delete the latter: its image is the row as it was, with the time of the change before.
    """
    unsaid = F.col("_parsed._record").getField(source.event_time).isNull()
    if not source.is_table:
        return F.when(unsaid, written_at()).otherwise(found)
    return F.when(unsaid | (F.col(OP) == "d"), F.coalesce(written_at(), found)).otherwise(found)


def written_at() -> Column:
    """Return when the connector wrote a change event; null without a time from 1970 to 9998."""
    ms = F.col("_ts_ms")
    return F.when((ms >= 0) & (ms < _LAST_MS), F.timestamp_millis(ms))


def envelope_cases() -> list[Case]:
    """Return what makes a JSON object no change event."""
    unknown = ~F.coalesce(F.col(OP).isin(*_OPS), F.lit(False))
    empty = F.col("_parsed._record").isNull()
    side = F.when(F.col(OP) == "d", F.lit("before")).otherwise(F.lit("after"))
    return [
        (unknown, "envelope", F.concat(F.lit("op is "), F.coalesce(F.substring(OP, 1, 20), F.lit("absent")))),
        (empty, "envelope", F.concat(side, F.lit(" is absent"))),
    ]


def field_text(name: str) -> Column:
    """Return the text of a field in a change event, wherever it stands."""
    places = (f"$.{outer}{side}.{name}" for outer in ("payload.", "") for side in ("after", "before"))
    return F.coalesce(*(F.get_json_object("_text", place) for place in places))


def with_deletes(typed: DataFrame, source: Source) -> DataFrame:
    """Return the records with `_deleted`; of a tombstone the key's fields and, as event time, the record's timestamp are filled in."""
    gone = F.col("_value").isNull()
    moment = F.when(F.unix_millis("_record_time") < _LAST_MS, F.col("_record_time"))
    filled = {name: _key_value(source, name) for name in source.key_fields} | {source.event_time: moment}
    others = [F.col(name) for name in typed.columns if name not in filled]
    columns = [F.when(gone, value).otherwise(F.col(name)).alias(name) for name, value in filled.items()]
    return typed.select(*others, *columns, gone.alias(DELETED))


def _key_value(source: Source, name: str) -> Column:
    """Return a field that a Kafka key names: its whole text, or, always of several fields, in the JSON that a converter made of it."""
    text = F.try_validate_utf8(F.col("_key").cast("string"))
    inner = F.coalesce(F.get_json_object(text, f"$.payload.{name}"), F.get_json_object(text, f"$.{name}"))
    found = F.when(text.startswith("{"), inner)
    if len(source.key_fields) == 1:
        found = found.otherwise(text)
    kind = source.schema_[name]
    return found if kind == "string" else F.when(found.rlike(_INTEGER), found.try_cast(kind))


def is_delete(source: Source) -> Column:
    """Return whether a record is a tombstone that names its key, and has a time."""
    known = (F.col(name).isNotNull() for name in (*source.key_fields, source.event_time))
    return functools.reduce(operator.and_, known, F.col("_value").isNull())


def is_gone(source: Source) -> Column:
    """Return whether an accepted row says that its key is gone: a change event of op d, or a tombstone."""
    said = {OP: F.coalesce(F.col(OP) == "d", F.lit(False)), DELETED: F.col(DELETED)}
    return functools.reduce(operator.or_, (said[name] for name in source.marks), F.lit(False))
