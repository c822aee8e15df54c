"""The Spark side: decode amended values by the definition, for the check before and for the truth afterwards."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession

from rivertwice.deadletters.model import AMENDED, DeadLetter
from rivertwice.pipeline.cases import RAW_SCHEMA
from rivertwice.pipeline.compile import accepted
from rivertwice.pipeline.decode import decode
from rivertwice.pipeline.definition import Definition


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


def amended_rows(spark: SparkSession, definition: Definition, letters: Iterable[DeadLetter]) -> dict[str, DataFrame]:
    """Return view to the accepted rows that the amended ones among `letters` give, with their own addresses."""
    cured: dict[str, list[tuple[object, ...]]] = {topic: [] for topic in definition.topics}
    for one in letters:
        if one.state == AMENDED and one.amendment is not None and one.topic in cured:
            cured[one.topic].append(raw_record(one, one.amendment.value))
    return {
        view: accepted(decode(spark.createDataFrame(cured[source.topic], RAW_SCHEMA), source), source)
        for view, source in definition.sources.items()
    }
