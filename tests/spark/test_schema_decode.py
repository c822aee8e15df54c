"""Avro and framed JSON: every version reads into one shape, every other byte string is a dead letter, nothing throws."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from avro.io import BinaryDecoder, DatumReader
from pyspark.sql import SparkSession

from homes.orders import AT, ORDERS, copy_orders, orders, record
from homes.project import FLIGHTS, replace_text
from rivertwice.definition.avro import parse_avro, prefixed
from rivertwice.definition.definition import load_definition
from rivertwice.definition.model import Definition
from rivertwice.engine.cases import RAW_SCHEMA, run_cases
from rivertwice.engine.checks import examine_definition
from rivertwice.engine.decode import REASONS, decode

pytestmark = pytest.mark.spark

PLAIN = record(2, currency="USD", note="gift")
FAR = datetime(9999, 6, 1, tzinfo=UTC)
EMPTY_AMOUNT = PLAIN[:5] + PLAIN[5:].replace(b"\x04\x03\xe8", b"\x00")
HUGE_AMOUNT = PLAIN[:5] + PLAIN[5:].replace(b"\x04\x03\xe8", b"\x28" + b"\x7f" * 20)
SHORT_HUGE_AMOUNT = PLAIN[:5] + PLAIN[5:].replace(b"\x04\x03\xe8", b"\x12\x01" + b"\x00" * 7 + b"\x01")

# label: (value, reason or None when accepted, a part of the detail)
RECORDS: dict[str, tuple[bytes | None, str | None, str]] = {
    "no value": (None, "tombstone", ""),
    "no bytes": (b"", "empty", ""),
    "more than a MiB": (record(3, currency="EUR", order_id="x" * 1_100_000), "size", ""),
    "JSON": (b'{"order_id": "o"}', "framing", "byte 0"),
    "a prefix cut off": (b"\x00\x00\x00", "framing", ""),
    "only a prefix": (b"\x00\x00\x00\x00\x01", "avro", ""),
    "an id nobody pinned": (prefixed(4, PLAIN[5:]), "schema_id", "schema id 4"),
    "the largest id": (prefixed(2**32 - 1, PLAIN[5:]), "schema_id", "4294967295"),
    "another version's id": (prefixed(1, PLAIN[5:]), "avro", ""),
    "cut off": (PLAIN[:-1], "avro", ""),
    "one byte behind": (PLAIN + b"\x00", "avro", ""),
    "its own end behind": (PLAIN + (len(PLAIN) - 5).to_bytes(8, "big"), "avro", ""),
    "a text of 2 GB in five bytes": (prefixed(1, b"\xfe\xff\xff\xff\x0f"), "avro", ""),
    "a text of less than no bytes": (prefixed(1, b"\x01" + PLAIN[5:]), "avro", ""),
    "a varint without end": (prefixed(1, b"\xff" * 30), "avro", ""),
    "a union's third branch": (record(1)[:-1] + b"\x04", "avro", ""),
    "text that is not UTF-8": (record(1, order_id="xyz").replace(b"xyz", b"\xff\xfe\xfd"), "utf8", "order_id"),
    "a year that no offset fits": (record(1, placed_at=FAR), "schema", "placed_at"),
    "an amount of no bytes": (EMPTY_AMOUNT, "avro", ""),
    "an amount of 20 bytes": (HUGE_AMOUNT, "avro", ""),
    "an amount whose low bytes look small": (SHORT_HUGE_AMOUNT, "schema", "amount"),
    "a currency in words": (record(2, currency="euro"), "rule", "currency_is_a_code"),
    "a day ahead": (record(1, placed_at=datetime(2026, 3, 2, 10, tzinfo=UTC)), "future", ""),
    "version 1": (record(1, note="gift"), None, ""),
    "version 2": (PLAIN, None, ""),
    "version 3": (record(3, currency="CHF", amount="-0.01"), None, ""),
}


def decoded(spark: SparkSession, definition: Definition, values: list[bytes | None]) -> list[dict[str, Any]]:
    rows = [(b"k", value, None, "orders", 0, offset, AT) for offset, value in enumerate(values)]
    _, source = definition.source
    found = decode(spark.createDataFrame(rows, RAW_SCHEMA), source).toArrow().to_pylist()
    assert all(row["_reason"] is None or row["_value"] == values[row["_offset"]] for row in found)
    return sorted(found, key=lambda row: int(row["_offset"]))


def test_every_bad_record_has_its_reason_and_every_good_one_none(spark: SparkSession) -> None:
    found = decoded(spark, orders(), [value for value, _, _ in RECORDS.values()])
    assert {label: row["_reason"] for label, row in zip(RECORDS, found, strict=True)} == {
        label: reason for label, (_, reason, _) in RECORDS.items()
    }
    wrong = {
        label: row["_detail"]
        for (label, (_, reason, detail)), row in zip(RECORDS.items(), found, strict=True)
        if reason is not None and detail not in row["_detail"]
    }
    assert wrong == {}


def test_three_versions_read_into_one_shape(spark: SparkSession) -> None:
    values: list[bytes | None] = [record(1, note="gift"), PLAIN, record(3, currency="CHF", amount="-0.01")]
    rows = decoded(spark, orders(), values)
    assert [(row["currency"], row["note"], row["amount"]) for row in rows] == [
        ("EUR", "gift", Decimal("10.00")),
        ("USD", "gift", Decimal("10.00")),
        ("CHF", None, Decimal("-0.01")),
    ]
    assert {row["placed_at"] for row in rows} == {AT}


def test_ten_thousand_damaged_records_throw_nothing_and_change_no_other(spark: SparkSession) -> None:
    rng = random.Random(47)
    whole = [record(1, note="gift"), PLAIN, record(3, currency="CHF")]
    values: list[bytes | None] = []
    for number in range(10_000):
        data = bytearray(whole[number % 3])
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(5, len(data))] = rng.randrange(256)
        values.append(bytes(data[: rng.randrange(5, len(data) + 1)] if number % 2 else data))
    rows = decoded(spark, orders(), [*values, *whole])
    reasons = {row["_reason"] for row in rows}
    assert reasons <= {None, *REASONS}
    assert {"avro", "utf8"} <= reasons
    assert [row["_reason"] for row in rows[-3:]] == [None] * 3


def test_random_records_read_as_avros_own_reader_reads_them(spark: SparkSession) -> None:
    rng = random.Random(48)
    reader = parse_avro((ORDERS / "schemas" / "orders.avsc").read_bytes(), "reader")
    values: list[bytes] = []
    expected: list[Any] = []
    for _ in range(1_000):
        version = rng.choice((1, 2, 3))
        text = "".join(rng.choice("aZ0 \n\u00e9\u4e2d\U0001f30a") for _ in range(rng.randrange(12)))
        fields: dict[str, Any] = {"order_id": text, "placed_at": AT - timedelta(microseconds=rng.randrange(2**52))}
        fields["amount"] = str(Decimal(rng.randrange(-(10**10) + 1, 10**10)).scaleb(-2))
        fields |= {"note": rng.choice((None, text))} if version < 3 else {}
        fields |= {"currency": rng.choice(("USD", "CHF"))} if version > 1 else {}
        values.append(record(version, **fields))
        writer = orders().source[1].pins.writers[version]
        expected.append(DatumReader(writer.record, reader.record).read(BinaryDecoder(io.BytesIO(values[-1][5:]))))
    rows = decoded(spark, orders(), list(values))
    assert [row["_reason"] for row in rows] == [None] * len(rows)
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected


def test_the_cases_of_the_example_pass_as_a_stream_and_as_a_batch(spark: SparkSession) -> None:
    results = run_cases(spark, ORDERS)
    assert [(result.case, result.differences) for result in results] == [("versions", [])]
    assert list(examine_definition(spark, orders()).findings) == []


def test_records_without_an_id_are_read_by_the_one_schema(spark: SparkSession, tmp_path: Path) -> None:
    folder = copy_orders(tmp_path)
    for path in folder.glob("schemas/orders-*.avsc"):
        path.unlink()
    replace_text(folder / "pipeline.yaml", "framing: confluent", "framing: none")
    found = decoded(spark, load_definition(folder), [PLAIN[5:], PLAIN, PLAIN[5:-1]])
    assert (found[0]["_reason"], found[0]["currency"]) == (None, "USD")
    assert [row["_reason"] for row in found][1:] == ["avro", "avro"]


def framed_flights(tmp_path: Path, *, optional: bool) -> Definition:
    folder = tmp_path / FLIGHTS.name
    folder.mkdir()
    for name in ("pipeline.yaml", "transform.sql"):
        (folder / name).write_bytes((FLIGHTS / name).read_bytes())
    replace_text(folder / "pipeline.yaml", "schema_ids: [flights-1]", 'schema_ids: ["7", "8"]\n    framing: confluent')
    replace_text(folder / "pipeline.yaml", "schema_id_optional: false", f"schema_id_optional: {str(optional).lower()}")
    return load_definition(folder)


@pytest.mark.parametrize("optional", [False, True])
def test_framed_json_is_read_behind_its_prefix(spark: SparkSession, tmp_path: Path, optional: bool) -> None:
    fields: dict[str, Any] = {"carrier": "UA", "flight": 1, "origin": "EWR", "dest": "IAH", "cancelled": False}
    text = json.dumps({**fields, "sched_dep": "2026-03-01T10:00:00Z"}).encode()
    values: list[bytes | None] = [prefixed(8, text), prefixed(9, text), text, prefixed(7, text[:-1]), b"\x00\x00"]
    found = [row["_reason"] for row in decoded(spark, framed_flights(tmp_path, optional=optional), values)]
    assert found == [None, "schema_id", None if optional else "framing", "json", "json" if optional else "framing"]
