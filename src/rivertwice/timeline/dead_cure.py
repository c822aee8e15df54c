"""The Spark side: decode amended values by the definition, for the check before and for the truth afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.definition import Definition
from rivertwice.engine import RAW_SCHEMA, accepted, decode_view
from rivertwice.timeline.dead_letters import Cure, DeadLetter, cure_applies


def raw_record(letter: DeadLetter, value: bytes | None) -> tuple[object, ...]:
    """Return a letter as a record with Kafka's columns and another value; key, headers and timestamp stay the same."""
    headers = None if letter.headers is None else [tuple(header) for header in letter.headers]
    key, address = letter.key, letter.address
    return (key, value, headers, letter.topic, address.partition, address.offset, letter.record_time)


def problem_with(spark: SparkSession, definition: Definition, letter: DeadLetter, value: bytes) -> str | None:
    """Return why the definition rejects a letter's new value; None if it accepts it."""
    view, _ = definition.by_topic[letter.topic]
    raw = spark.createDataFrame([raw_record(letter, value)], RAW_SCHEMA)
    (row,) = decode_view(definition, view, raw).select("_reason", "_detail").toArrow().to_pylist()
    return None if row["_reason"] is None else f"{row['_reason']}: {row['_detail']}"


def amended_rows(spark: SparkSession, definition: Definition, cures: Sequence[Cure]) -> dict[str, DataFrame]:
    """Return view to the accepted rows that cures give, with their own addresses, for views that have any.

    `_from` and `_until` are the decisions from which on, and up to which, each held (`_until` is null if it still holds).
    """
    rows_by_view = {}
    for topic, (view, _) in definition.by_topic.items():
        topic_cures = [cure for cure in cures if cure.letter.topic == topic and cure_applies(definition, topic)]
        if topic_cures:
            rows_by_view[view] = _decoded(spark, definition, view, topic_cures)
    return rows_by_view


def _decoded(spark: SparkSession, definition: Definition, view: str, cures: Sequence[Cure]) -> DataFrame:
    """Decode each cure with a separate number as its offset, because an address may have had several."""
    raw = [
        (*raw_record(cure.letter, cure.value)[:4], 0, number, cure.letter.record_time)
        for number, cure in enumerate(cures)
    ]
    places = [
        (number, cure.letter.address.partition, cure.letter.address.offset, cure.first_seq, cure.until_seq)
        for number, cure in enumerate(cures)
    ]
    known = spark.createDataFrame(places, "_number bigint, _part int, _place bigint, _from bigint, _until bigint")
    decoded = decode_view(definition, view, spark.createDataFrame(raw, RAW_SCHEMA))
    rows = accepted(decoded, definition.sources[view])
    return (
        rows.join(F.broadcast(known), rows["_offset"] == known["_number"])
        .drop("_partition", "_offset", "_number")
        .withColumnsRenamed({"_part": "_partition", "_place": "_offset"})
    )


def with_cures(rows: DataFrame, cures: DataFrame | None) -> DataFrame:
    """Return rows with cures at their addresses; a cure replaces any row of `rows` at its address."""
    if cures is None:
        return rows
    addresses = F.broadcast(cures.select("_partition", "_offset").distinct())
    return rows.join(addresses, ["_partition", "_offset"], "left_anti").unionByName(
        cures.drop("_from", "_until"), allowMissingColumns=True
    )
