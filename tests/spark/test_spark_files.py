"""Rows of a table's files are the same by Spark's reader and by executors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from rivertwice.storage.table import Table
from rivertwice.storage.table_files import TableFiles

pytestmark = pytest.mark.spark
SCHEMA = T.StructType(
    [
        T.StructField("name", T.StringType()),
        T.StructField("number", T.LongType()),
        T.StructField("added", T.DecimalType(9, 2)),
        T.StructField("at", T.TimestampType()),
    ]
)


def test_a_file_is_read_alike_and_what_it_lacks_is_null(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "table"
    for first in (0, 10, 20):
        numbers = list(range(first, first + 10))
        at = pa.array([number * 1_000_000 for number in numbers], pa.timestamp("us", "UTC"))
        rows = pa.table({"number": numbers, "unused": numbers, "name": [f"n{number}" for number in numbers], "at": at})
        Table(place).append(rows)
    table = Table(place).open()
    assert table is not None
    uris = sorted(table.uris())[:2]
    read: dict[tuple[bool, int], Any] = {}
    for by_executors in (False, True):
        monkeypatch.setattr(TableFiles, "are_read_by_executors", lambda *_, answer=by_executors: answer)
        for number, names in enumerate((None, uris, [])):
            frame = TableFiles(table).frame(spark, SCHEMA, tmp_path / "cache", uris=names)
            assert frame.schema == SCHEMA
            read[by_executors, number] = sorted(map(tuple, frame.collect()), key=lambda row: row[1])
    for number, rows_wanted in enumerate((30, 20, 0)):
        assert read[True, number] == read[False, number]
        assert len(read[True, number]) == rows_wanted
    assert read[True, 0][0][2] is None
    assert len(TableFiles(table).named(uris)) == 2


@pytest.mark.parametrize(
    ("place", "master", "expected"),
    [
        ("s3://bucket/table", "spark://host:7077", True),
        ("s3://bucket/table", "k8s://https://host", True),
        ("s3://bucket/table", "local[*]", False),
        (Path("/shared/table"), "spark://host:7077", False),
    ],
)
def test_only_executors_of_a_cluster_read_s3_themselves(place: Path | str, master: str, expected: bool) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    files = object.__new__(TableFiles)
    files.place = place
    assert files.are_read_by_executors(session) is expected
