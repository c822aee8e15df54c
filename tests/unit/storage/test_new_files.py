"""Files that are written before a commit adds them: statistics, partitions, and one commit of all or none."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from rivertwice.core.errors import LostRaceError
from rivertwice.storage.sql import Where
from rivertwice.storage.table import Table

NAMES = pa.schema([("_day", pa.string()), ("n", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])


def rows(*numbers: int) -> pa.Table:
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "k": pa.array([f"k{number}" for number in numbers]),
            "at": pa.array(
                [datetime(2026, 1, 1, 0, 0, number, 5, tzinfo=UTC) for number in numbers], NAMES.field("at").type
            ),
        }
    )


def test_added_files_are_rows_like_any_others(tmp_path: Path) -> None:
    place = tmp_path / "table"
    files = [
        Table(place).write_file(rows(1, 2), {"_day": "2026-01-01"}),
        Table(place).write_file(rows(9), {"_day": "2026-01-02"}),
    ]
    Table(place, partition_by=["_day"]).append_files(files, NAMES, transactions={"app": 4}, metadata={"what": 1})
    found = Table(place).read()
    assert found is not None
    assert sorted(zip(found["_day"].to_pylist(), found["n"].to_pylist(), strict=True)) == [
        ("2026-01-01", 1),
        ("2026-01-01", 2),
        ("2026-01-02", 9),
    ]
    assert Table(place).applied_version("app") == 4
    assert Table(place).commits("what")[-1][1] == 1
    few = Table(place).read(matching=Where("n").is_between(9, 20))
    assert few is not None
    assert few["k"].to_pylist() == ["k9"]
    table = DeltaTable(place)
    bounds = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert {(each["min.n"], each["max.n"], each["num_records"]) for each in bounds} == {(1, 2, 2), (9, 9, 1)}


def test_files_of_a_batch_that_is_committed_already_are_not_added(tmp_path: Path) -> None:
    place = tmp_path / "table"
    add = [Table(place).write_file(rows(1), {"_day": "2026-01-01"})]
    Table(place, partition_by=["_day"]).append_files(add, NAMES, transactions={"app": 4})
    with pytest.raises(LostRaceError, match="already holds version 4 of app"):
        Table(place, partition_by=["_day"]).append_files(add, NAMES, transactions={"app": 4})
    found = Table(place).read()
    assert found is not None
    assert found.num_rows == 1


def test_files_and_appended_rows_live_in_one_table(tmp_path: Path) -> None:
    place = tmp_path / "table"
    with_day = rows(1).add_column(0, "_day", pa.array(["2026-01-01"]))
    Table(place, partition_by=["_day"]).append(with_day, transactions={"app": 1})
    Table(place, partition_by=["_day"]).append_files(
        [Table(place).write_file(rows(2), {"_day": "2026-01-01"})], NAMES, transactions={"app": 2}
    )
    found = Table(place).read()
    assert found is not None
    assert sorted(found["n"].to_pylist()) == [1, 2]
    assert DeltaTable(place).optimize.compact()["numFilesRemoved"] == 2
    again = Table(place).read()
    assert again is not None
    assert again.num_rows == 2
