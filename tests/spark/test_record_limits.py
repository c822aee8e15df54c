"""Records made to exhaust the decoder: each is a dead letter with a reason, none stops the job."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from homes.project import FLIGHTS
from rivertwice.definition.definition import load_definition
from rivertwice.engine.cases import RAW_SCHEMA
from rivertwice.engine.decode import REASONS, decode

pytestmark = pytest.mark.spark

AT = datetime(2013, 6, 30, 16, 0, tzinfo=UTC)
GOOD = (
    b'"carrier":"UA","flight":1,"tailnum":"N1","origin":"EWR","dest":"IAH","sched_dep":"2013-06-30T16:15:00Z",'
    b'"dep_delay":3,"cancelled":false'
)

# label: (value, the reasons it may have; None: accepted)
HOSTILE: dict[str, tuple[bytes, set[str | None]]] = {
    "arrays 900 deep beside the fields": (b"{" + GOOD + b',"x":' + b"[" * 900 + b"]" * 900 + b"}", {None}),
    "arrays 1,500 deep": (b"{" + GOOD + b',"x":' + b"[" * 1_500 + b"]" * 1_500 + b"}", {"json"}),
    "arrays 400,000 deep": (b"{" + GOOD + b',"x":' + b"[" * 400_000 + b"]" * 400_000 + b"}", {"json"}),
    "objects 100,000 deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, {"json"}),
    "a field 100,000 deep": (b'{"flight":' + b"[" * 100_000 + b"]" * 100_000 + b"}", {"json", "schema", "missing"}),
    "only opening brackets": (b"[" * 1_000_000, {"json"}),
    "a number of 900,000 digits": (b'{"flight":' + b"9" * 900_000 + b"}", {"json", "schema", "missing"}),
    "an exponent": (b'{"flight":1e999999999}', {"json", "schema", "missing"}),
    "a name of 900,000 characters": (b'{"' + b"a" * 900_000 + b'":1}', {"json", "missing"}),
    "50,000 keys": (
        json.dumps({f"k{number}": number for number in range(50_000)}).encode(),
        {"missing"},
    ),
    "a string of 900,000 characters": (b"{" + GOOD.replace(b"N1", b"N" * 900_000) + b"}", {None, "rule"}),
    "escapes": (b'{"carrier":"' + rb"\u0000" * 100_000 + b'"}', {"missing", "rule", "json"}),
    "one byte more than is allowed": (b"{" + b" " * 1_048_575 + b"}", {"size"}),
    "zero bytes": (b"\x00" * 1_000, {"json"}),
}


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[int, str | None]:
    _, source = load_definition(FLIGHTS).source
    rows = [
        (None, value, [("schema-id", b"flights-1")], "t", 0, offset, AT)
        for offset, (value, _) in enumerate(HOSTILE.values())
    ]
    raw = spark.createDataFrame(rows, RAW_SCHEMA)
    return {row["_offset"]: row["_reason"] for row in decode(raw, source).select("_offset", "_reason").collect()}


@pytest.mark.core
@pytest.mark.parametrize("label", HOSTILE)
def test_a_hostile_record_is_a_dead_letter_with_a_reason(found, label):
    reason = found[list(HOSTILE).index(label)]
    assert reason in HOSTILE[label][1]
    assert reason is None or reason in REASONS
