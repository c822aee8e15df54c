"""Rows changed by hand: another program's commit is foreign and readable, and an unseen change is in no commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from lab.faults.foreign import (
    commit_by_another,
    first_row_gone,
    first_value_changed,
    nothing_changed,
    rewrite_unseen,
)
from rivertwice.reconcile.seals.look import FOREIGN, classify_change
from rivertwice.storage.table import Table


def make_table(folder: Path) -> Path:
    table = folder / "changelog"
    for number in range(3):
        rows = pa.table({"k": ["a", "b"], "total": [number, number], "_day": ["2026-01-01"] * 2})
        Table(table, partition_by=["_day"]).append(rows)
    return table


def totals(table: Path) -> list[int]:
    rows = Table(table).read()
    assert rows is not None
    return sorted(rows["total"].to_pylist())


def test_a_commit_of_another_program_is_foreign_and_has_its_rows(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for change, wanted in (
        (nothing_changed, [0, 0, 1, 1, 2, 2]),
        (first_value_changed("total"), [0, 0, 1, 2, 2, 2]),  # of the next file, which is the oldest now
    ):
        before = Table(table).version()
        commit_by_another(table, change)
        _, changes = Table(table).changes_since(before)
        assert changes is not None
        assert [classify_change("changelog", each) for each in changes] == [FOREIGN]
        assert totals(table) == wanted
        assert (Table(table).broken_files(), Table(table).total_rows()) == ([], 6)


def test_an_unseen_change_is_in_no_commit_and_damages_no_file(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    before = Table(table).version()
    rewrite_unseen(table, first_value_changed("total"))
    assert totals(table) == [0, 1, 1, 1, 2, 2]
    rewrite_unseen(table, first_row_gone)
    assert totals(table) == [0, 1, 1, 2, 2]
    assert (Table(table).version(), Table(table).broken_files(), Table(table).total_rows()) == (before, [], 5)
