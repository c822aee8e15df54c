"""Rows of a lake as records: every type that a column may have reaches its field as it was, or is a dead letter as ever."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from rivertwice.backfill.load import take_history
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.engine.decode import decode
from rivertwice.log import kafka

pytestmark = [pytest.mark.core, pytest.mark.spark]

UNTIL = datetime(2026, 1, 1, tzinfo=UTC)
FIELDS = {
    "at": "timestamp",
    "word": "string",
    "day": "string",
    "flag": "boolean",
    "small": "int",
    "big": "bigint",
    "ratio": "double",
    "price": "decimal(20,4)",
    "since": "timestamp",
}


def definition(place: Path) -> Definition:
    fields = ", ".join(f"'{name}': '{kind}'" for name, kind in FIELDS.items())
    columns = ", ".join(f"{name}: c_{name}" for name in FIELDS)
    text = (
        "name: p\ndescription: test\nsources:\n  events:\n    topic: events\n    partitions: 1\n"
        f"    schema: {{{fields}}}\n    epochs: {{since: ms}}\n    paths: {{word: deep.er.word, price: deep.price}}\n    required: [word]\n"
        "    event_time: at\n    watermark: 1 hour\n    max_future: 1 hour\n"
        f"    history: {{table: {place}, format: parquet, columns: {{{columns}}}, until: '{UNTIL.isoformat()}'}}\n"
        "window: {size: 1 hour}\nkeys: [word]\ncount_column: n\ncolumns: {n: {}}\n"
    )
    sql = "SELECT window.start AS window_start, window.end AS window_end, word, count(*) AS n FROM events GROUP BY window(at, '1 hour'), word"
    return parse_files({"pipeline.yaml": text.encode(), "transform.sql": sql.encode()}, "p")


GOOD = {
    "at": datetime(2025, 6, 1, 12, 30, 15, 123456, tzinfo=UTC),
    "word": 'quoted "x" \\ ü\n\x01 \u2028',
    "day": date(1999, 12, 31),
    "flag": True,
    "small": -(2**31),
    "big": 2**63 - 1,
    "ratio": 0.1 + 0.2,
    "price": Decimal("1234567890123456.7891"),
    "since": 1_700_000_000_123,
}
BARE = dict.fromkeys(FIELDS) | {"at": GOOD["at"], "word": ""}
TYPES = {
    "at": pa.timestamp("ns", "UTC"),
    "word": pa.large_string(),
    "day": pa.date32(),
    "flag": pa.bool_(),
    "small": pa.int64(),
    "big": pa.int64(),
    "ratio": pa.float64(),
    "price": pa.decimal128(30, 6),
    "since": pa.int64(),
}


def test_every_type_of_a_column_reaches_its_field_as_it_was_or_is_a_dead_letter(
    spark: SparkSession, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "lake"
    place.mkdir()
    rows = [
        GOOD,
        BARE,
        {**GOOD, "small": 2**31},
        {**GOOD, "ratio": float("nan")},
        {**GOOD, "price": Decimal("12345678901234567.0")},
        {**GOOD, "word": None},
        {**GOOD, "at": None},
        {**GOOD, "at": UNTIL},
        {**GOOD, "at": UNTIL - timedelta(microseconds=1)},
    ]
    arrays = {f"c_{name}": pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()}
    pq.write_table(pa.table(arrays), place / "rows.parquet")
    monkeypatch.setattr(kafka, "topic_id", lambda *_: "id")
    source = (of := definition(place)).sources["events"]
    history = take_history(settings, of, {0: (5, 9)})
    assert history is not None
    assert history.ranges == {0: (-4, 5)}
    decoded = {row["_offset"]: row for row in decode(history.records(spark, -4, 5), source).toArrow().to_pylist()}
    assert {offset: row["_reason"] for offset, row in decoded.items()} == {
        -4: None,
        -3: None,
        -2: "schema",
        -1: "schema",
        0: "schema",
        1: "missing",
        2: "missing",
        4: None,
    }
    since = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    assert {name: decoded[-4][name] for name in FIELDS} == {**GOOD, "day": "1999-12-31", "since": since}
    assert {name: decoded[-3][name] for name in FIELDS} == BARE
    assert {row["_record_time"] for offset, row in decoded.items() if offset != 2} == {
        GOOD["at"],
        UNTIL - timedelta(microseconds=1),
    }
    part = history.records(spark, -3, 1).select("offset").toArrow()["offset"].to_pylist()
    assert sorted(part) == [-3, -2, -1, 0]
