"""Avro values to typed columns: each record by its own writer's schema, resolved into the pinned reader's.

Spark's `from_avro` gives NULL for bytes it cannot read. But it ignores bytes after a record, and may read a record that was
cut off together with the bytes that follow. So every value is read inside a frame: the record, then its length in eight
bytes. Only a record that ends exactly at the end of the value is followed by its own length.
"""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from rivertwice.pipeline.framing import Case, carries, framing_cases, payload
from rivertwice.pipeline.source_model import Source
from rivertwice.schemas.avro_schema import AvroSchema, wide_decimals

_END = {"type": "fixed", "name": "rivertwice_end", "size": 8}
_FRAME = "rivertwice_frame"
# The same years that a timestamp in JSON may have: no offset can carry one out of 0001 to 9999.
_FIRST, _LAST = "0002-01-01T00:00:00Z", "9999-01-01T00:00:00Z"


def avro_columns(records: DataFrame, source: Source, fits: Column) -> DataFrame:
    """Return `records` with the source's fields, NULL where a record cannot be read, and `_end`."""
    inner = records.withColumn("_inner", F.when(fits, payload(source)))
    parsed = inner.withColumn("_parsed", _parsed(source))
    fields = source.schema_.items()
    return parsed.select(
        *records.columns,
        F.octet_length("_inner").alias("_inner_bytes"),
        F.col("_parsed.end").alias("_end"),
        _named({name: ~F.is_valid_utf8(_raw(name)) for name, kind in fields if kind == "string"}).alias("_no_text"),
        _named({name: _beyond(_raw(name), kind) for name, kind in fields}).alias("_beyond"),
        *(_typed(name, kind) for name, kind in fields),
    )


def avro_cases(source: Source) -> list[Case]:
    """Return the reasons that only Avro records have, in the order they are judged."""
    whole = F.coalesce(F.col("_end") == _length(F.col("_inner_bytes")), F.lit(False))
    return [
        *framing_cases(source, source.pins.writers),
        (~whole, "avro", F.lit("the value is not one record of its schema")),
        (F.col("_no_text") != "", "utf8", F.concat(F.col("_no_text"), F.lit(" is not UTF-8"))),
        (F.col("_beyond") != "", "schema", F.concat(F.col("_beyond"), F.lit(" is beyond what its type can hold"))),
    ]


def _raw(name: str) -> Column:
    return F.col("_parsed.value").getField(name)


def _typed(name: str, kind: str) -> Column:
    # Avro accepts any bytes as text; bytes that are not UTF-8 must not reach Arrow, not even in a refused row.
    return (F.try_validate_utf8(_raw(name)) if kind == "string" else _raw(name).try_cast(kind)).alias(name)


def _beyond(value: Column, kind: str) -> Column:
    if kind == "double":
        return F.isnan(value) | (F.abs(value) == float("inf"))
    if kind == "timestamp":
        return (value < F.lit(_FIRST).cast("timestamp")) | (value >= F.lit(_LAST).cast("timestamp"))
    return value.isNotNull() & value.try_cast(kind).isNull() if kind.startswith("decimal") else F.lit(False)


def _parsed(source: Source) -> Column:
    pins = source.pins
    reader = wide_decimals(pins.reader)
    framed = F.concat(F.col("_inner"), _length(F.octet_length("_inner")))
    if not pins.writers:
        return _resolved(framed, pins.writer, reader)
    cases = F
    for schema_id, writer in sorted(pins.writers.items()):
        cases = cases.when(carries(schema_id), _resolved(framed, writer, reader))  # type: ignore[assignment]
    return cases  # type: ignore[return-value]


def _resolved(data: Column, writer: AvroSchema, reader: AvroSchema) -> Column:
    return from_avro(
        data, _frame(writer), {"avroSchema": _frame(reader), "mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
    )


def _frame(schema: AvroSchema) -> str:
    fields = [{"name": "value", "type": json.loads(schema.text)}, {"name": "end", "type": _END}]
    return json.dumps({"type": "record", "name": _FRAME, "fields": fields})


def _length(count: Column) -> Column:
    return F.unhex(F.lpad(F.hex(count.cast("bigint")), 16, "0"))


def _named(conditions: dict[str, Column]) -> Column:
    """Return the names whose condition holds, as text; a condition that is NULL does not hold."""
    return F.concat_ws(", ", *(F.when(condition, F.lit(name)) for name, condition in conditions.items()))
