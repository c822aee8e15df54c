"""Protobuf in Spark: every bad record has its reason, and damaged ones change no other."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from homes.project import REPOSITORY
from rivertwice.core.spark_versions import SparkVersion
from rivertwice.definition.avro import prefixed
from rivertwice.definition.definition import load_definition
from rivertwice.definition.protobuf_read import encode_proto, indexes_of
from rivertwice.engine.cases import RAW_SCHEMA
from rivertwice.engine.decode import REASONS, decode

pytestmark = pytest.mark.spark
_, SOURCE = load_definition(REPOSITORY / "pipelines" / "examples" / "order_states").source
AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
INDEXES = indexes_of(SOURCE.message_type)


def record(schema_id: int = 7, **fields: Any) -> bytes:
    given = {"order_id": "o", "changed_at": AT, "amount_cents": 5, "state": "STATE_PLACED", **fields}
    return prefixed(schema_id, INDEXES + encode_proto(SOURCE.message_type, given))


RECORDS: dict[str, tuple[bytes | None, str | None]] = {
    "no value": (None, "tombstone"),
    "no bytes": (b"", "empty"),
    "more than a MiB": (record(note="x" * 1_100_000), "size"),
    "JSON": (b'{"order_id": "o"}', "framing"),
    "only a prefix": (prefixed(7, b""), "framing"),
    "the first message of the file": (prefixed(7, b"\x00"), "framing"),
    "an id that is not accepted": (record(9), "schema_id"),
    "no fields": (prefixed(7, INDEXES), "missing"),
    "cut off": (record(note="gift")[:-1], "protobuf"),
    "a text that is not UTF-8": (record(order_id="xyz").replace(b"xyz", b"\xff\xfe\xfd"), "protobuf"),
    "a state without a name": (record() + b"\x20\x09", "schema"),
    "a state that is none": (record(state="STATE_UNKNOWN"), "rule"),
    "a day ahead": (record(changed_at=datetime(2026, 3, 2, 10, tzinfo=UTC)), "future"),
    "a field that nobody knows": (record(8) + b"\x4a\x03abc", None),
    "without a note": (record(), None),
}


def decoded(spark: SparkSession, values: list[bytes | None]) -> list[dict[str, Any]]:
    rows = [(b"k", value, None, "order-states", 0, offset, AT) for offset, value in enumerate(values)]
    found = decode(spark.createDataFrame(rows, RAW_SCHEMA), SOURCE).toArrow().to_pylist()
    return sorted(found, key=lambda row: int(row["_offset"]))


def test_every_bad_record_has_its_reason_and_every_good_one_its_values(spark: SparkSession) -> None:
    found = decoded(spark, [value for value, _ in RECORDS.values()])
    assert {label: row["_reason"] for label, row in zip(RECORDS, found, strict=True)} == {
        label: reason for label, (_, reason) in RECORDS.items()
    }
    assert {name: found[-1][name] for name in SOURCE.schema_} == {
        "order_id": "o", "changed_at": AT, "amount_cents": 5, "state": "STATE_PLACED", "note": None,
    }  # fmt: skip


def test_a_spark_without_functions_of_arrow_columns_reads_the_same_values(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [value for value, _ in RECORDS.values()] + [
        record(amount_cents=2**62 + 1),
        record(changed_at=AT.replace(microsecond=1)),
    ]
    found = decoded(spark, values)
    monkeypatch.setattr(SparkVersion, "installed", lambda: SparkVersion("4.0.2"))
    assert decoded(spark, values) == found


def test_damaged_records_throw_nothing_and_change_no_other(spark: SparkSession) -> None:
    rng = random.Random(47)
    whole = record(note="gift")
    values: list[bytes | None] = []
    for number in range(3_000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(5, len(data))] = rng.randrange(256)
        values.append(bytes(data[: rng.randrange(5, len(data) + 1)] if number % 2 else data))
    rows = decoded(spark, [*values, whole])
    reasons = {row["_reason"] for row in rows}
    assert reasons <= {None, *REASONS}
    assert {"protobuf", "framing", None} <= reasons
    assert (rows[-1]["_reason"], rows[-1]["note"]) == (None, "gift")
    assert all(row["_value"] == values[row["_offset"]] for row in rows[:-1])
