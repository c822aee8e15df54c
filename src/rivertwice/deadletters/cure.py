"""The Spark side: decode amended values by the definition, for the check before and for the truth afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.deadletters.model import Cure, DeadLetter
from rivertwice.pipeline.cases import RAW_SCHEMA
from rivertwice.pipeline.decode import decode
from rivertwice.pipeline.definition import Definition, Source
from rivertwice.pipeline.relations import accepted


def raw_record(letter: DeadLetter, value: bytes | None) -> tuple[object, ...]:
    """Return a letter as a record of Kafka's columns, with another value. Key, headers and timestamp stay its own."""
    headers = None if letter.headers is None else [tuple(header) for header in letter.headers]
    key, address = letter.key, letter.address
    return (key, value, headers, letter.topic, address.partition, address.offset, letter.record_time)


def problem_with(spark: SparkSession, definition: Definition, letter: DeadLetter, value: bytes) -> str | None:
    """Return why the definition rejects a letter's new value; None if it accepts it."""
    _, source = definition.by_topic[letter.topic]
    raw = spark.createDataFrame([raw_record(letter, value)], RAW_SCHEMA)
    (row,) = decode(raw, source).select("_reason", "_detail").toArrow().to_pylist()
    return None if row["_reason"] is None else f"{row['_reason']}: {row['_detail']}"


def cure_applies(definition: Definition, topic: str) -> bool:
    """Say whether a cure of a record of `topic` is applied: of streams under windows, sessions and intervals.

    A fold is changed from there on, and so is a table: no rule explains those yet.
    """
    found = definition.by_topic.get(topic)
    return found is not None and definition.window.kind.takes_cures and not found[1].is_table


def amended_rows(spark: SparkSession, definition: Definition, cures: Sequence[Cure]) -> dict[str, DataFrame]:
    """Return view to the accepted rows that cures give, with their own addresses; of views that have any.

    `_from` and `_until` say from which decision on, and up to which, each held (`_until` is null of one that does).
    """
    found = {}
    for topic, (view, source) in definition.by_topic.items():
        mine = [one for one in cures if one.letter.topic == topic and cure_applies(definition, topic)]
        if mine:
            found[view] = _decoded(spark, source, mine)
    return found


def _decoded(spark: SparkSession, source: Source, cures: Sequence[Cure]) -> DataFrame:
    """Decode each cure under a number of its own as its offset, for an address may have had several."""
    raw = [
        (*raw_record(one.letter, one.value)[:4], 0, number, one.letter.record_time) for number, one in enumerate(cures)
    ]
    places = [
        (number, one.letter.address.partition, one.letter.address.offset, one.first_seq, one.until_seq)
        for number, one in enumerate(cures)
    ]
    known = spark.createDataFrame(places, "_number bigint, _part int, _place bigint, _from bigint, _until bigint")
    rows = accepted(decode(spark.createDataFrame(raw, RAW_SCHEMA), source), source)
    return (
        rows.join(F.broadcast(known), rows["_offset"] == known["_number"])
        .drop("_partition", "_offset", "_number")
        .withColumnsRenamed({"_part": "_partition", "_place": "_offset"})
    )


def with_cures(rows: DataFrame, cures: DataFrame | None) -> DataFrame:
    """Return rows with cures at their addresses, in place of whatever of `rows` lies there."""
    if cures is None:
        return rows
    addresses = F.broadcast(cures.select("_partition", "_offset").distinct())
    return rows.join(addresses, ["_partition", "_offset"], "left_anti").unionByName(
        cures.drop("_from", "_until"), allowMissingColumns=True
    )
