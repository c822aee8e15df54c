"""What was replaced is in no file of the table afterwards: neither in data, nor in the statistics of its log."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivertwice.storage.sql import Where
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare


def texts_of(path: Path) -> str:
    found = [file.read_text() for file in path.rglob("*.json")]
    found += [str(pq.ParquetFile(file).read().to_pylist()) for file in path.rglob("*.parquet")]
    return "\n".join(found)


def test_a_replaced_row_is_gone_from_data_and_log_and_transactions_stay(tmp_path: Path) -> None:
    path = tmp_path / "table"
    for version in (1, 2):
        rows = pa.table({"user": ["secret", f"u{version}"], "day": ["d'1", f"d{version}"]})
        Table(path, partition_by=("day",)).append(rows, transactions={"app": version})
    assert "secret" in texts_of(path)
    properties = dict(Table(path).open().handle.metadata().configuration)

    whole = Table(path).read(matching=Where("day").equals("d'1"))
    assert whole.num_rows == 2
    Table(path).replace_rows(pa.table({"user": ["x", "x"], "day": ["d'1", "d'1"]}), where=Where("day").equals("d'1"))
    assert TableCare(path).purge() > 0

    assert "secret" not in texts_of(path)
    assert sorted(Table(path).read()["user"].to_pylist()) == ["u1", "u2", "x", "x"]
    assert Table(path).applied_version("app") == 2
    assert dict(Table(path).open().handle.metadata().configuration) == properties
    Table(path).append(pa.table({"user": ["new"], "day": ["d2"]}), transactions={"app": 3})
    assert Table(path).read().num_rows == 5


@pytest.mark.proves("guarantees.md#erasure")
def test_a_purge_that_was_killed_leaves_no_table_that_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "table"
    Table(path).append(pa.table({"user": ["a"]}))
    properties = dict(Table(path).open().handle.metadata().configuration)
    TableCare(path).set_retention(timedelta(0), timedelta(0))  # where it was killed
    TableCare(path).purge()
    assert dict(Table(path).open().handle.metadata().configuration) == properties
