"""The cursor has the rows of the ledger's table whatever was done to it, and reads only what was appended."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from homes.ledger import ledger_row
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.storage.table_log import entry_path
from rivertwice.timeline import committed
from rivertwice.timeline.committed import COLUMNS, LedgerCursor, cursor_of, keys_of
from rivertwice.timeline.ledger import append_ledger, to_table


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    return Settings(tmp_path, tmp_path / "home").pipeline("p")


def stored(home: PipelineHome) -> list[dict[str, object]]:
    """Return the table's rows without the cursor, each batch once, sorted."""
    rows = Table(home.tables.ledger).read()
    return [] if rows is None else once(rows.select(list(COLUMNS)))


def once(rows: pa.Table) -> list[dict[str, object]]:
    by_key = {(row["timeline"], row["batch"]): row for row in rows.to_pylist()}
    return [by_key[key] for key in sorted(by_key)]


def append(home: PipelineHome, first: int, last: int, timeline: str = "t1") -> None:
    append_ledger(
        home, [ledger_row(batch, timeline, emitted=batch, late_rows=batch % 3) for batch in range(first, last)]
    )


@pytest.mark.proves("architecture.md#the-ledger-is-read-from-a-cursor")
@pytest.mark.parametrize("seed", range(8))
def test_a_look_has_the_rows_of_the_table_whatever_was_done_to_it(home: PipelineHome, seed: int) -> None:
    chance, place = random.Random(seed), home.tables.ledger
    looker = LedgerCursor(place)
    assert looker.look().num_rows == 0
    newest = {"t1": 0, "t2": 3}

    def commit() -> None:
        name = chance.choice(["t1", "t2"])
        count = chance.randrange(1, 4)
        append(home, newest[name], newest[name] + count, name)
        newest[name] += count

    def copy_again() -> None:
        rows = Table(place).read()
        assert rows is not None
        Table(place).append(rows.slice(chance.randrange(rows.num_rows), 2))

    def restore() -> None:
        table = Table(place).open()
        assert table is not None
        if table.version:
            table.handle.restore(chance.randrange(table.version))

    def erase() -> None:
        rows = Table(place).read()
        assert rows is not None
        digests = pa.array(["erased"] * rows.num_rows, pa.string())
        emitted = pa.array([number + 1 for number in rows["emitted"].to_pylist()], pa.int64())
        changed = rows.set_column(rows.schema.get_field_index("digest"), "digest", digests)
        Table(place).replace_rows(changed.set_column(rows.schema.get_field_index("emitted"), "emitted", emitted))

    def make_again() -> None:
        shutil.rmtree(place)
        newest.update(t1=0, t2=3)
        commit()

    commit()
    acts = [
        commit,
        copy_again,
        lambda: TableCare(place).compact(),
        lambda: TableCare(place).sweep(),
        restore,
        erase,
        make_again,
    ]
    for _ in range(30):
        for act in chance.choices(acts, [8, 2, 2, 1, 1, 1, 1], k=chance.randrange(1, 3)):
            act()
        rows = looker.look()
        assert once(rows) == stored(home)
        assert len(set(keys_of(rows))) == rows.num_rows


def test_a_look_reads_only_what_was_appended_since_the_last(home: PipelineHome) -> None:
    looker = LedgerCursor(home.tables.ledger)
    append(home, 0, 500)
    assert looker.look().num_rows == looker.rows_read == 500
    for batch in range(500, 520):
        append(home, batch, batch + 1)
        assert keys_of(looker.look())[-1] == ("t1", batch)
    looker.look()
    assert (looker.starts, looker.rows_read) == (1, 520)


@pytest.mark.proves("architecture.md#the-ledger-is-read-from-a-cursor")
@pytest.mark.parametrize("change", ["merged", "restored", "replaced", "torn"])
def test_anything_but_an_append_makes_it_start_over(home: PipelineHome, change: str) -> None:
    place = home.tables.ledger
    looker = LedgerCursor(place)
    append(home, 0, 3)
    append(home, 3, 5)
    append(home, 5, 6)
    looker.look()
    if change == "merged":
        assert TableCare(place).compact() == 3
    elif change == "restored":
        table = Table(place).open()
        assert table is not None
        table.handle.restore(1)
    elif change == "replaced":
        Table(place).replace_rows(to_table([ledger_row(9, emitted=7)]))
    else:
        entry_path(place, 1).write_bytes(b"")
    assert once(looker.look()) == stored(home)
    assert looker.starts == 2


def test_a_batch_is_held_in_less_than_ninety_bytes(home: PipelineHome) -> None:
    append(home, 0, 2_000)
    looker = LedgerCursor(home.tables.ledger)
    assert looker.look().get_total_buffer_size() <= 2_000 * 90


def test_a_table_without_the_newest_columns_is_read_with_nulls(home: PipelineHome) -> None:
    old = to_table([ledger_row(0), ledger_row(1)]).drop_columns(["late_rows", "by_topic"])
    Table(home.tables.ledger).append(old)
    assert LedgerCursor(home.tables.ledger).look()["late_rows"].to_pylist() == [None, None]


def test_threads_share_one_cursor_of_a_ledger_and_see_every_row(home: PipelineHome) -> None:
    append(home, 0, 1)
    seen: list[int] = []

    def watch() -> None:
        for _ in range(20):
            seen.append(len(once(cursor_of(home.tables.ledger).look())))

    threads = [threading.Thread(target=watch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for batch in range(1, 15):
        append(home, batch, batch + 1)
    for thread in threads:
        thread.join()
    assert len(seen) == 60
    assert len(once(cursor_of(home.tables.ledger).look())) == 15
    assert cursor_of(home.tables.ledger) is cursor_of(home.tables.ledger)


def test_cursors_not_asked_for_the_longest_are_dropped(tmp_path: Path) -> None:
    first = cursor_of(tmp_path / "first")
    others = [cursor_of(tmp_path / str(number)) for number in range(committed.MOST_CURSORS - 1)]
    assert cursor_of(tmp_path / "first") is first
    cursor_of(tmp_path / "one more")
    assert cursor_of(tmp_path / "first") is first
    assert cursor_of(tmp_path / "0") is not others[0]


def test_fewer_cursors_are_held_if_they_have_many_batches_together(
    home: PipelineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cursor holds memory for each batch, so many small ledgers are held, and few large ones."""
    append(home, 0, 15)
    held = cursor_of(home.tables.ledger)
    held.look()
    monkeypatch.setattr(committed, "MOST_BATCHES", 15 + sum(each.batches for each in committed._CURSORS.values()))
    for number in range(committed.FEWEST_CURSORS):
        cursor_of(home.root / str(number))
    assert cursor_of(home.tables.ledger) is held
    monkeypatch.setattr(committed, "MOST_BATCHES", 14)
    for number in range(committed.FEWEST_CURSORS):
        cursor_of(home.root / str(number))
    assert cursor_of(home.tables.ledger) is not held
