"""Committed batches in columns are those of the ledger, whatever forks and unfinished copies it has."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from homes.ledger import NOW, ledger_row
from rivertwice.agent import metrics
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.storage.table import Table
from rivertwice.timeline import ledger
from rivertwice.timeline.committed import (
    COLUMNS,
    SUMMED,
    CommittedBatches,
    committed_batches,
    newest_batch,
    newest_batches,
)
from rivertwice.timeline.ledger import LEDGER_KEY, LedgerRow, append_ledger
from rivertwice.timeline.lineage import Fork, Timeline, create_timeline, head_path, path_ledger
from rivertwice.timeline.sequence import move_head


def timeline(name: str, parent: Fork | None, first: int) -> Timeline:
    return Timeline("p", name, parent, first, {"flights": {"0": 0}}, "b", {"state": "s"}, "c", {"flights": "id"}, NOW)


def row(chance: random.Random, name: str, batch: int) -> LedgerRow:
    counts = {column: chance.randrange(100) for column in SUMMED}
    return ledger_row(batch, name, committed_at=NOW + timedelta(seconds=batch), **counts)


def commit(home: PipelineHome, committed: LedgerRow) -> None:
    Table(home.tables.changelog).append(
        pa.table({"n": pa.array([], pa.int64())}),
        transactions={f"p#{committed.timeline}": committed.batch},
        metadata={LEDGER_KEY: committed.to_json()},
    )


def random_home(folder: Path, seed: int) -> PipelineHome:
    """Return a home with two forks, rows that were copied twice, and newest rows that only commits have."""
    chance = random.Random(seed)
    home = Settings(folder, folder / "home").pipeline("p")
    first_fork, second_fork, last = (chance.randrange(3, 8), chance.randrange(8, 12), chance.randrange(12, 20))
    lines = {
        "t1": (None, 0, chance.randrange(first_fork, 14)),
        "t2": (Fork("t1", first_fork), first_fork + 1, chance.randrange(second_fork, 16)),
        "t3": (Fork("t2", second_fork), second_fork + 1, last),
    }
    rows = [
        row(chance, name, batch) for name, (_, first, newest) in lines.items() for batch in range(first, newest + 1)
    ]
    for name, (parent, first, _) in lines.items():
        create_timeline(home, timeline(name, parent, first))
    unfinished = chance.randrange(4)
    for committed in rows:
        commit(home, committed)
    stored = rows[: len(rows) - unfinished]
    append_ledger(home, stored)
    append_ledger(home, chance.sample(stored, 3))
    move_head(home, chance.choice(["t1", "t2", "t3"]), reason="test", expected_seq=0, now=NOW)
    return home


@pytest.mark.parametrize("seed", range(8))
def test_columns_sums_and_newest_rows_are_those_of_the_whole_rows(tmp_path: Path, seed: int) -> None:
    home = random_home(tmp_path, seed)
    rows, committed = path_ledger(home), committed_batches(home)
    assert committed.table == CommittedBatches.of(rows).table
    assert len(committed) == len(rows) > 3
    assert {column: committed.total(column) for column in SUMMED} == {
        column: sum(getattr(each, column) for each in rows) for column in SUMMED
    }
    assert committed.began_at == rows[0].committed_at
    for each in rows:
        assert committed.committed_at((each.timeline, each.batch)) == each.committed_at
    others = {(each.timeline, each.batch) for each in ledger.read_ledger(home)} - {
        (each.timeline, each.batch) for each in rows
    }
    assert not any(batch in committed for batch in others)
    assert newest_batch(home, head_path(home)) == rows[-1]
    for count in (1, 4, 1_000):
        assert newest_batches(home, committed, head_path(home), count) == rows[-count:]


def test_before_the_first_start_nothing_is_committed(tmp_path: Path) -> None:
    home = Settings(tmp_path, tmp_path / "home").pipeline("p")
    committed = committed_batches(home)
    assert (len(committed), committed.total("read"), committed.began_at) == (0, 0, None)
    assert committed.table.column_names == list(COLUMNS)
    assert newest_batches(home, committed, [], 5) == []
    assert newest_batch(home, []) is None


def test_a_reader_of_the_newest_rows_makes_no_row_of_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Settings(tmp_path, tmp_path / "home").pipeline("p")
    create_timeline(home, timeline("t1", None, 0))
    move_head(home, "t1", reason="test", expected_seq=0, now=NOW)
    for first in range(0, 3_000, 500):
        append_ledger(home, [ledger_row(batch) for batch in range(first, first + 500)])
    commit(home, ledger_row(2_999))
    made: list[int] = []
    whole = ledger.from_table

    def counted(table: pa.Table) -> list[LedgerRow]:
        made.append(table.num_rows)
        return whole(table)

    monkeypatch.setattr(ledger, "from_table", counted)
    committed = committed_batches(home)
    rows = newest_batches(home, committed, head_path(home), metrics.NEWEST)
    assert len(committed) == 3_000
    assert [rows[0].batch, rows[-1].batch] == [2_000, 2_999]
    assert made == [1_000]
