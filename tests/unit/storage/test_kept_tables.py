"""A kept handle of a table sees what a new one sees, and a writer with it wins and loses as with a new one."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from rivertwice.core.errors import LostRaceError, TableDamageError
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.storage.table_log import entry_path


def rows(*numbers):
    return pa.table({"n": pa.array(numbers, pa.int64()), "_day": [f"d{number % 2}" for number in numbers]})


def numbers(table):
    return sorted(Table(table).read()["n"].to_pylist())


def append(table, kept, number, **other):
    return kept.append(rows(number), transactions={"a": number}, **other)


@pytest.fixture
def opened(monkeypatch):
    """Count how often a table is opened."""
    places: list[str] = []
    init = DeltaTable.__init__

    def count(self, *arguments, **options):
        places.append("a table")
        init(self, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "__init__", count)
    return places


def test_a_kept_table_is_opened_once_for_many_commits(tmp_path, opened):
    kept = Table(tmp_path / "t")
    assert kept.current() is None
    assert kept.applied_version("a") is None
    append(tmp_path / "t", kept, 0)
    opened.clear()
    assert [append(tmp_path / "t", kept, number) for number in range(1, 5)] == [2, 3, 4, 5]
    assert kept.applied_version("a") == 4
    assert kept.append(rows(9)) == 6
    assert opened == []
    assert numbers(tmp_path / "t") == [0, 1, 2, 3, 4, 9]


def test_a_kept_table_is_opened_again_at_each_checkpoint(tmp_path, opened):
    kept = Table(tmp_path / "t")
    for number in range(15):
        append(tmp_path / "t", kept, number)
    opened.clear()
    for number in range(15, 60):
        append(tmp_path / "t", kept, number)
    assert len(opened) == 3
    log = tmp_path / "t" / "_delta_log"
    assert sorted(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")) == [19, 39, 59]
    assert kept.applied_version("a") == 59
    assert numbers(tmp_path / "t") == list(range(60))


def test_a_kept_table_sees_the_commits_of_others(tmp_path):
    kept = Table(tmp_path / "t")
    append(tmp_path / "t", kept, 0)
    Table(tmp_path / "t").append(rows(7), transactions={"a": 7})
    assert kept.applied_version("a") == 7
    assert kept.current().version == Table(tmp_path / "t").open().version


def test_of_two_writers_with_kept_tables_one_wins(tmp_path):
    first, second = Table(tmp_path / "t"), Table(tmp_path / "t")
    append(tmp_path / "t", first, 0)
    assert second.applied_version("a") == 0
    append(tmp_path / "t", first, 1)
    with pytest.raises(LostRaceError, match="already holds version 1 of a"):
        append(tmp_path / "t", second, 1)
    append(tmp_path / "t", second, 2)
    assert numbers(tmp_path / "t") == [0, 1, 2]


def test_of_two_writers_that_saw_the_same_version_one_wins(tmp_path):
    first, second = Table(tmp_path / "t"), Table(tmp_path / "t")
    append(tmp_path / "t", first, 0)
    second.current()
    with pytest.raises(LostRaceError, match="another writer committed"):
        append(tmp_path / "t", second, 1, check=lambda _: append(tmp_path / "t", first, 1))
    assert numbers(tmp_path / "t") == [0, 1]
    append(tmp_path / "t", second, 2)
    assert second.applied_version("a") == 2


def test_a_kept_table_that_was_put_back_from_a_backup_is_opened_again(tmp_path):
    kept = Table(tmp_path / "t")
    append(tmp_path / "t", kept, 0)
    shutil.copytree(tmp_path / "t", tmp_path / "backup")
    append(tmp_path / "t", kept, 1)
    shutil.rmtree(tmp_path / "t")
    shutil.move(tmp_path / "backup", tmp_path / "t")
    assert kept.applied_version("a") == 0
    append(tmp_path / "t", kept, 1)
    assert numbers(tmp_path / "t") == [0, 1]


def test_a_torn_entry_is_named_when_a_kept_table_is_used_again(tmp_path):
    kept = Table(tmp_path / "t")
    append(tmp_path / "t", kept, 0)
    Table(tmp_path / "t").append(rows(7))
    entry = entry_path(tmp_path / "t", 2)
    entry.write_bytes(entry.read_bytes()[:40])
    with pytest.raises(TableDamageError, match="version 2"):
        kept.applied_version("a")


def test_a_kept_table_gets_the_columns_that_a_commit_adds(tmp_path):
    kept = Table(tmp_path / "t")
    kept.append(rows(0))
    wide = rows(1).append_column("m", pa.array([5], pa.int64()))
    kept.append(wide, widen=True)
    kept.append(rows(2), widen=True)
    assert sorted(Table(tmp_path / "t").read()["m"].to_pylist(), key=str) == [5, None, None]


def test_a_kept_table_outlives_upkeep(tmp_path):
    kept = Table(tmp_path / "t")
    for number in range(6):
        append(tmp_path / "t", kept, number)
    assert TableCare(tmp_path / "t").compact() == 6
    TableCare(tmp_path / "t").sweep()
    append(tmp_path / "t", kept, 6)
    assert numbers(tmp_path / "t") == list(range(7))
