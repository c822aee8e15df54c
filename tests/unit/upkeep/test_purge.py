"""What was replaced is in no file of the table afterwards: neither in data, nor in the statistics of its log."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rivertwice.storage import delta
from rivertwice.storage.table_upkeep import purge, set_retention


def texts_of(path: Path) -> str:
    found = [file.read_text() for file in path.rglob("*.json")]
    found += [str(pq.ParquetFile(file).read().to_pylist()) for file in path.rglob("*.parquet")]
    return "\n".join(found)


def test_a_replaced_row_is_gone_from_data_and_log_and_transactions_stay(tmp_path: Path) -> None:
    path = tmp_path / "table"
    for version in (1, 2):
        rows = pa.table({"user": ["secret", f"u{version}"], "day": ["d'1", f"d{version}"]})
        delta.append(path, rows, transactions={"app": version}, partition_by=("day",))
    assert "secret" in texts_of(path)
    properties = dict(delta.open_table(path).metadata().configuration)

    whole = delta.read(path, only=("day", "d'1"))
    assert whole.num_rows == 2
    delta.replace_rows(path, pa.table({"user": ["x", "x"], "day": ["d'1", "d'1"]}), only=("day", "d'1"))
    assert purge(path) > 0

    assert "secret" not in texts_of(path)
    assert sorted(delta.read(path)["user"].to_pylist()) == ["u1", "u2", "x", "x"]
    assert delta.applied_version(path, "app") == 2
    assert dict(delta.open_table(path).metadata().configuration) == properties
    delta.append(path, pa.table({"user": ["new"], "day": ["d2"]}), transactions={"app": 3})
    assert delta.read(path).num_rows == 5


@pytest.mark.proves("guarantees.md#erasure")
def test_a_purge_that_was_killed_leaves_no_table_that_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "table"
    delta.append(path, pa.table({"user": ["a"]}))
    properties = dict(delta.open_table(path).metadata().configuration)
    set_retention(path, timedelta(0), timedelta(0))  # where it was killed
    purge(path)
    assert dict(delta.open_table(path).metadata().configuration) == properties
