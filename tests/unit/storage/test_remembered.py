"""What was computed from tables is kept as long as nobody committed to them, and no longer."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from rivertwice.storage.remembered import Remembered, marks_of
from rivertwice.storage.table import Table
from rivertwice.storage.table_log import entry_path


def append(table: Path, value: int) -> None:
    Table(table).append(pa.table({"n": [value]}))


def total(table: Path) -> int:
    rows = Table(table).read()
    return 0 if rows is None else sum(rows["n"].to_pylist())


class Counted:
    """The sum of a table, and how often it was computed."""

    def __init__(self, *tables: Path, most: int = 4) -> None:
        self.tables, self.times = tables, 0
        self.held: Remembered[int] = Remembered(most)

    def get(self, key: str = "sum") -> int:
        return self.held.get(key, self.tables, self._compute)

    def _compute(self) -> int:
        self.times += 1
        return sum(total(table) for table in self.tables)


def test_a_value_is_computed_again_after_a_commit_to_any_of_its_tables(tmp_path: Path) -> None:
    counted = Counted(tmp_path / "one", tmp_path / "other")
    assert [counted.get(), counted.get(), counted.times] == [0, 0, 1]
    append(tmp_path / "one", 3)
    assert [counted.get(), counted.get(), counted.times] == [3, 3, 2]
    append(tmp_path / "other", 4)
    assert [counted.get(), counted.get(), counted.times] == [7, 7, 3]


def test_a_commit_while_a_value_is_computed_makes_the_next_look_compute(tmp_path: Path) -> None:
    table, held, seen = tmp_path / "t", Remembered[int](1), []
    append(table, 1)

    def compute() -> int:
        value = total(table)
        if not seen:
            append(table, 2)
        seen.append(value)
        return value

    assert [held.get("sum", [table], compute) for _ in range(3)] == [1, 3, 3]
    assert seen == [1, 3]


def test_a_table_that_was_put_back_or_whose_log_was_mended_is_read_again(tmp_path: Path) -> None:
    table, kept = tmp_path / "t", tmp_path / "kept"
    append(table, 1)
    append(table, 2)
    shutil.copytree(table, kept)
    counted = Counted(table)
    assert counted.get() == 3
    append(table, 5)
    assert counted.get() == 8
    shutil.rmtree(table)
    assert counted.get() == 0
    shutil.copytree(kept, table)
    assert counted.get() == 3
    append(table, 7)  # the same version as the commit that was undone
    assert counted.get() == 10
    before, entry = Table(table).mark(), entry_path(table, 1)
    mended = entry.with_suffix(".tmp")
    mended.write_bytes(entry.read_bytes())
    mended.replace(entry)
    assert Table(table).mark() != before


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_entry_that_was_cut_short_in_place_makes_another_mark(tmp_path: Path, version: int) -> None:
    for value in range(3):
        append(tmp_path / "t", value)
    before = Table(tmp_path / "t").mark()
    os.truncate(entry_path(tmp_path / "t", version), 10)
    assert Table(tmp_path / "t").mark() != before


def test_nothing_is_kept_of_a_table_on_s3() -> None:
    held, answers = Remembered[int](1), iter([1, 2])
    assert [held.get("sum", ["s3://bucket/t"], lambda: next(answers)) for _ in range(2)] == [1, 2]
    assert marks_of(["s3://bucket/t"]) is None


def test_the_values_that_were_not_asked_for_the_longest_are_dropped(tmp_path: Path) -> None:
    counted = Counted(tmp_path / "t", most=2)
    for key in ("a", "b", "a", "c", "a", "b"):
        counted.get(key)
    assert counted.times == 4  # a, b, c, and b again


def test_an_error_is_not_kept(tmp_path: Path) -> None:
    held: Remembered[int] = Remembered(1)

    def fail() -> int:
        message = "cannot be read now"
        raise OSError(message)

    with pytest.raises(OSError, match="cannot be read now"):
        held.get("sum", [tmp_path], fail)
    assert held.get("sum", [tmp_path], lambda: 4) == 4


def test_threads_that_look_while_another_commits_never_end_behind_it(tmp_path: Path) -> None:
    table, counted = tmp_path / "t", Counted(tmp_path / "t")
    append(table, 1)
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            counted.get()

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    for _ in range(20):
        append(table, 1)
    done.set()
    for looker in lookers:
        looker.join()
    assert counted.get() == 21
