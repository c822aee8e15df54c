"""One SQL text over named frames, and the column that identifies their records."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.core import SparkVersion
from rivertwice.definition import PARTITION_SHIFT, RECORD, Definition

# A temp view lives from its creation to the analysis of one statement; two threads of one session must not mix.
_VIEW = threading.Lock()


def run_views(spark: SparkSession, sql: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """Return the result of `sql` over `views`, each under its name; other statements do not see them."""
    if SparkVersion.is_connect(spark):
        from rivertwice.engine.remote import sql_over

        return sql_over(spark, sql, views)
    with _VIEW:
        for view, rows in views.items():
            rows.createOrReplaceTempView(view)
        try:
            return spark.sql(sql)
        finally:
            for view in views:
                spark.catalog.dropTempView(view)


def record_column(partition: Column, offset: Column) -> Column:
    """Return a record's place in its topic as one number, in the order of partition and offset."""
    return F.shiftleft(partition.cast("long"), PARTITION_SHIFT).bitwiseOR(offset).alias(RECORD)


# The rows of `fast.sql`, in a stream and in a batch: the same expressions over the same decoded records.

_JSON = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def fast_rows(spark: SparkSession, definition: Definition, rows: DataFrame) -> DataFrame:
    """Return the result of `fast.sql` over accepted rows: it sees the source's fields, and `record`."""
    assert definition.fast_sql is not None, "the definition was checked"
    view, source = definition.source
    visible_rows = rows.select(*source.schema_, record_column(F.col("_partition"), F.col("_offset")))
    return run_views(spark, definition.fast_sql, {view: visible_rows})


def fast_plan(spark: SparkSession, definition: Definition) -> DataFrame:
    """Return `fast.sql` over no rows: it reads one relation, with the source's fields and `record`."""
    assert definition.fast_sql is not None, "the definition was checked"
    view, source = definition.source
    fields = [f"`{name}` {kind}" for name, kind in source.schema_.items()]
    empty = spark.createDataFrame([], ", ".join([*fields, f"{RECORD} bigint"]))
    return run_views(spark, definition.fast_sql, {view: empty})


def fast_records(definition: Definition, result: DataFrame) -> DataFrame:
    """Return the rows as records to send: `key`, and `value`, JSON whose `record` is the source's topic, partition and offset."""
    assert definition.fast is not None, "the definition was checked"
    _, source = definition.source
    others = [F.col(name) for name in result.columns if name != RECORD]
    place = F.struct(F.lit(source.topic).alias("topic"), partition_of(F.col(RECORD)), offset_of(F.col(RECORD))).alias(
        RECORD
    )
    value = F.to_json(F.struct(*others, place), _JSON)
    return result.select(F.col(definition.fast.key).cast("string").cast("binary").alias("key"), value.alias("value"))


def partition_of(record: Column) -> Column:
    """Return the partition from a record's number."""
    return F.shiftright(record, PARTITION_SHIFT).cast("int").alias("partition")


def offset_of(record: Column) -> Column:
    """Return the offset from a record's number."""
    return record.bitwiseAND(F.lit((1 << PARTITION_SHIFT) - 1)).alias("offset")
