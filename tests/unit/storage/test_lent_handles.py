"""A reader's handle shows the newest version, whatever was done to the table, and no two readers have one at a time."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rivertwice.storage.snapshot import Snapshot
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.storage.table_log import entry_path


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    real, names = Snapshot.__init__, []

    def opened(snapshot: Snapshot, place: Any) -> None:
        names.append(Path(place).name)
        real(snapshot, place)

    monkeypatch.setattr(Snapshot, "__init__", opened)
    return names


def append(table: Path, value: int) -> None:
    Table(table).append(pa.table({"n": [value]}))


def values(table: Path) -> list[int]:
    rows = Table(table).read()
    return [] if rows is None else sorted(rows["n"].to_pylist())


def test_a_table_with_further_commits_is_not_opened_again(tmp_path: Path, opens: list[str]) -> None:
    append(tmp_path / "t", 0)
    opens.clear()
    for value in range(1, 6):
        assert values(tmp_path / "t") == list(range(value))
        assert opens == ["t"]
        append(tmp_path / "t", value)
        opens.remove("t")  # the writer's


@pytest.mark.parametrize("seed", range(6))
def test_readers_see_every_commit_whatever_was_done_to_the_table(tmp_path: Path, seed: int) -> None:
    chance, table, kept = random.Random(seed), tmp_path / "t", tmp_path / "kept"
    rows: list[int] = []
    saved: list[int] | None = None
    append(table, -1)
    rows.append(-1)

    def commit() -> None:
        append(table, len(rows))
        rows.append(len(rows))

    def shorten() -> None:
        opened = Table(table).open()
        assert opened is not None
        opened.handle.create_checkpoint()

    def save() -> None:
        nonlocal saved
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(table, kept)
        saved = list(rows)

    def put_back() -> None:
        if saved is not None:
            shutil.rmtree(table)
            shutil.copytree(kept, table)
            rows[:] = saved

    def replace() -> None:
        Table(table).overwrite(pa.table({"n": [7]}))
        rows[:] = [7]

    steps: list[Callable[[], object]] = [
        commit,
        commit,
        commit,
        shorten,
        save,
        put_back,
        replace,
        lambda: TableCare(table).compact(),
    ]
    for _ in range(40):
        chance.choice(steps)()
        assert values(table) == sorted(rows)
        assert Table(table).version() == Table(table).open().version  # type: ignore[union-attr]


def test_an_older_entry_that_was_torn_in_place_makes_the_reader_open(tmp_path: Path, opens: list[str]) -> None:
    for value in range(3):
        append(tmp_path / "t", value)
    assert values(tmp_path / "t") == [0, 1, 2]
    entry_path(tmp_path / "t", 1).write_bytes(b"")
    opens.clear()
    assert values(tmp_path / "t") == [
        0,
        2,
    ]  # delta-rs reads an empty entry as an empty commit; `require_whole` finds it
    assert opens == ["t"]


def test_two_readers_at_a_time_have_a_handle_each(tmp_path: Path) -> None:
    append(tmp_path / "t", 0)
    with Table(tmp_path / "t").borrow() as one, Table(tmp_path / "t").borrow() as other:
        assert one is not other
    with Table(tmp_path / "t").borrow() as again:
        assert again in (one, other)


def test_a_handle_is_not_used_again_after_a_reader_failed(tmp_path: Path) -> None:
    append(tmp_path / "t", 0)
    message = "the reader failed"
    with pytest.raises(OSError, match=message), Table(tmp_path / "t").borrow() as failed:
        raise OSError(message)
    with Table(tmp_path / "t").borrow() as next_one:
        assert next_one is not failed


def test_threads_that_read_beside_a_writer_never_go_back(tmp_path: Path) -> None:
    append(tmp_path / "t", 0)
    errors: list[str] = []
    done = threading.Event()

    def watch() -> None:
        seen = 0
        while not done.is_set():
            count = len(values(tmp_path / "t"))
            if count < seen:
                errors.append(f"{count} rows after {seen}")
            seen = count

    watchers = [threading.Thread(target=watch) for _ in range(3)]
    for watcher in watchers:
        watcher.start()
    for value in range(1, 25):
        append(tmp_path / "t", value)
    done.set()
    for watcher in watchers:
        watcher.join()
    assert (errors, values(tmp_path / "t")) == ([], list(range(25)))
