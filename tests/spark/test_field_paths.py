"""Fields that records have under other names, or inside objects: read by their paths, and refused by the reasons of other fields."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from homes.project import write_definition
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.definition import load_definition
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.engine.cases import RAW_SCHEMA
from rivertwice.engine.decode import decode

pytestmark = pytest.mark.spark
YAML = """\
name: rides
description: Rides by station.
sources:
  rides:
    topic: rides
    partitions: 1
    schema:
      ride_id: bigint
      station: string
      city: string
      fare: decimal(18,2)
      started_at: timestamp
      ended_at: timestamp
    epochs: {ended_at: ms}
    paths:
      ride_id: rideId
      station: from.station.stationName
      city: from.city
      started_at: "@time.begin-at"
      ended_at: "@time.endMs"
    required: [station, fare]
    event_time: started_at
    watermark: 10 minutes
    max_future: 1 hour
window: {size: 1 hour}
keys: [station]
count_column: rides
columns: {rides: {compare: exact}}
emit: final
late: {policy: drop}
"""
SQL = "SELECT window.start AS window_start, window.end AS window_end, station, count(*) AS rides FROM rides GROUP BY window(started_at, '1 hour'), station"
GOOD: dict[str, Any] = {
    "rideId": 7,
    "from": {"station": {"stationName": "north", "slots": 3}, "city": "Porto"},
    "fare": 2.5,
    "@time": {"begin-at": "2026-01-05T08:00:00Z", "endMs": 1_767_600_060_000},
}


def folder(tmp_path: Path, yaml: str = YAML) -> Path:
    return write_definition(tmp_path / "rides", {"pipeline.yaml": yaml, "transform.sql": SQL})


def decoded(spark: SparkSession, tmp_path: Path, *values: Any) -> list[Any]:
    source = load_definition(folder(tmp_path)).source[1]
    at = datetime(2026, 1, 5, 8, tzinfo=UTC)
    rows = [(None, json.dumps(value).encode(), None, "rides", 0, number, at) for number, value in enumerate(values)]
    raw = spark.createDataFrame(rows, RAW_SCHEMA)
    return decode(raw, source).orderBy("_offset").collect()


def test_fields_are_read_where_their_paths_lead(spark: SparkSession, tmp_path: Path) -> None:
    without_objects = {"rideId": 8, "fare": 1, "from": {"station": {"stationName": "south"}}, "@time": GOOD["@time"]}
    first, second = decoded(spark, tmp_path, GOOD, without_objects)
    assert first["_reason"] is None
    assert (first["ride_id"], first["station"], first["city"], str(first["fare"])) == (7, "north", "Porto", "2.50")
    assert (first["started_at"].astimezone(UTC), first["ended_at"].astimezone(UTC)) == (
        datetime(2026, 1, 5, 8, tzinfo=UTC), datetime(2026, 1, 5, 8, 1, tzinfo=UTC)
    )  # fmt: skip
    assert (second["_reason"], second["city"]) == (None, None)


@pytest.mark.parametrize(
    ("changed", "reason", "detail"),
    [
        ({"rideId": "seven"}, "schema", "ride_id is no bigint"),
        ({"from": "north"}, "schema", "station is no string, city is no string"),
        ({"from": {"station": {"stationName": None}}}, "missing", "station"),
        ({"from": {}}, "missing", "station"),
        ({"from": None}, "missing", "station"),
        ({"@time": {"begin-at": "2026-01-05 08:00", "endMs": 1}}, "schema", "started_at is no timestamp"),
        ({"@time": {"begin-at": "2026-01-05T08:00:00Z", "endMs": "x"}}, "schema", "ended_at is no timestamp"),
    ],
)
def test_a_wrong_value_at_a_path_is_a_dead_letter_with_its_field(
    spark: SparkSession, tmp_path: Path, changed: dict[str, Any], reason: str, detail: str
) -> None:
    (row,) = decoded(spark, tmp_path, {**GOOD, **changed})
    assert (row["_reason"], row["_detail"]) == (reason, detail)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ride_id: rideId", "ride_ids: rideId", "paths names 'ride_ids', which is absent in schema"),
        ("city: from.city", "city: from.station.stationName", "are both read from from.station.stationName"),
        ("city: from.city", "city: from.station", "cannot be a field and an object"),
        ("city: from.city", "city: FARE", "are both read from"),
        ("city: from.city", "city: from..city", "is not a path to a field"),
        ("city: from.city", "city: from['city']", "is not a path to a field"),
        ("    epochs: {ended_at: ms}\n", "    format: avro\n", "paths is for plain JSON"),
    ],
)
def test_paths_that_cannot_be_read_are_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in YAML
    with pytest.raises(DefinitionError, match=r"pipeline\.yaml") as refused:
        load_definition(folder(tmp_path, YAML.replace(old, new, 1)))
    assert words in str(refused.value)


CHANGES = """\
name: rides
description: The table rides.
sources:
  rides:
    topic: rides
    partitions: 1
    schema: {id: bigint, at: timestamp}
    epochs: {at: us}
    required: [id]
    envelope: debezium
    event_time: TIME
    max_future: 1 hour
window: {fold: 1 day, at: changed_at}
by: [id]
state: {at: timestamp}
keys: [id]
columns: {changed_at: {}, at: {}}
types: {changed_at: timestamp, at: timestamp}
"""


@pytest.mark.parametrize("time", ["at", "ts_ms"])
def test_numbers_of_a_changed_row_are_times_and_the_event_has_its_own(
    spark: SparkSession, tmp_path: Path, time: str
) -> None:
    fold = "def fold(state, event):\n    return {'at': event['at']}, [{'at': event['at']}]\n"
    files = {"pipeline.yaml": CHANGES.replace("TIME", time), "fold.py": fold}
    source = load_definition(write_definition(tmp_path / "rides", files)).source[1]
    written = {"op": "c", "ts_ms": 1_767_600_060_000}
    rows: list[Any] = [{"id": 1, "at": 1_767_600_000_000_000}, {"id": 2, "at": None}, {"id": 3, "at": 2**62}, {"id": 4, "at": "x"}]  # fmt: skip
    values = [json.dumps({"before": None, "after": row, **written}).encode() for row in rows]
    values.append(json.dumps({"payload": {"before": None, "after": rows[0], **written}}).encode())
    arrived = datetime(2026, 1, 5, 8, 2, tzinfo=UTC)
    raw = spark.createDataFrame(
        [(None, value, None, "rides", 0, number, arrived) for number, value in enumerate(values)], RAW_SCHEMA
    )
    first, empty, *wrong, wrapped = decode(raw, source).orderBy("_offset").collect()
    own, event = datetime(2026, 1, 5, 8, tzinfo=UTC), datetime(2026, 1, 5, 8, 1, tzinfo=UTC)
    assert [each["at"].astimezone(UTC) for each in (first, wrapped)] == [own, own]
    assert empty[time].astimezone(UTC) == event
    assert [each["_reason"] for each in (first, empty, wrapped)] == [None, None, None]
    assert [each["_reason"] for each in wrong] == ["schema", "schema"]
    assert wrong[0]["_detail"] == "at is no timestamp"


def test_another_path_is_another_meaning(tmp_path: Path) -> None:
    before = fingerprint_of(load_definition(folder(tmp_path)))
    after = fingerprint_of(load_definition(folder(tmp_path, YAML.replace("rideId", "rideID"))))
    assert before.decode != after.decode
    assert before.semantics != after.semantics
