"""Protobuf values to typed columns. Spark has no expression for them here, so Google's reader runs in a Python worker on Arrow batches.

The same function decodes in a stream and in a recompute. It sees only a record's bytes, so place and time of the run do not matter.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema

from rivertwice.pipeline.framing import Case, framing_cases, payload
from rivertwice.pipeline.source_model import Source
from rivertwice.schemas.proto_read import DETAIL, REASON, ProtoReader

REASONS = ("framing", "protobuf", "utf8", "schema")


def proto_columns(records: DataFrame, source: Source, fits: Column) -> DataFrame:
    """Return `records` with the source's fields, NULL where a record cannot be read, and why it cannot."""
    reader = ProtoReader(source.message_type, source.schema_, source.framing == "confluent")
    kind = from_arrow_schema(pa.schema(list(reader.arrow_type))).simpleString()

    def read(values: pa.Array) -> pa.Array:
        return reader.read(values.to_pylist())

    decoded = arrow_udf(read, kind)  # type: ignore[call-overload]  # its overloads ask for what has a default
    parsed = records.withColumn("_parsed", decoded(F.when(fits, payload(source))))
    fields = [F.col("_parsed").getField(name).alias(name) for name in (*source.schema_, REASON, DETAIL)]
    return parsed.select(*records.columns, *fields)


def proto_cases(source: Source) -> list[Case]:
    """Return the reasons that only Protobuf records have, in the order they are judged."""
    ids = [int(each) for each in source.schema_ids] if source.framing == "confluent" else []
    why = [(F.coalesce(F.col(REASON) == reason, F.lit(False)), reason, F.col(DETAIL)) for reason in REASONS]
    return [*framing_cases(source, ids), *why]
