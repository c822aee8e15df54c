"""Every kind of poison is refused by the decoder for the reason it was made for; its flight is accepted."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from lab.flights.plan import Flight, LogRecord, flight_record
from lab.flights.poison import KINDS, make_poison
from rivertwice.core.instants import from_ms
from rivertwice.definition.definition import load_definition
from rivertwice.engine.decode import decode

pytestmark = pytest.mark.spark

FLIGHT = Flight(date(2013, 7, 1), datetime(2013, 7, 1, 12, 5, tzinfo=UTC), 95, "UA", 1545, None, "EWR", "IAH", 1400)
KAFKA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int,"
    " offset long, timestamp timestamp"
)


def as_row(record: LogRecord, offset: int) -> Row:
    headers = [Row(key=key, value=value) for key, value in record.headers]
    values: list[Any] = [
        record.key,
        record.value,
        headers,
        "flights",
        record.partition,
        offset,
        from_ms(record.timestamp_ms),
    ]
    return Row(*values)


@pytest.mark.core
def test_each_kind_gets_the_reason_it_was_made_for(spark: SparkSession, project: Path) -> None:
    _, source = load_definition(project / "pipelines" / "flight_delays").source
    poison = [make_poison(kind, FLIGHT, 4, random.Random(seed)) for kind in KINDS for seed in range(3)]
    records = [flight_record(FLIGHT, 4), *(each.record for each in poison)]
    raw = spark.createDataFrame([as_row(record, offset) for offset, record in enumerate(records)], KAFKA)
    reasons = {row["_offset"]: row["_reason"] for row in decode(raw, source).select("_offset", "_reason").collect()}
    assert reasons[0] is None
    found = [(each.kind, reasons[offset]) for offset, each in enumerate(poison, start=1)]
    assert found == [(each.kind, each.reason) for each in poison]
