"""Rows of format 1 are read beside those of format 2, in the commits and in a table that was begun in format 1."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from homes.ledger import ledger_row
from rivertwice.core.errors import LedgerError
from rivertwice.core.settings import Settings
from rivertwice.log.addresses import Part
from rivertwice.storage.table import Table
from rivertwice.timeline.counts import BatchCounts, total_of
from rivertwice.timeline.ledger import LEDGER_KEY, LedgerRow, append_ledger, from_table, read_ledger, to_table

SHARES = {"a": BatchCounts(3, 1, 2, 5, 9), "b": BatchCounts(4)}


def of_format_1(row: LedgerRow) -> dict[str, Any]:
    plain = row.to_json()
    del plain["by_topic"], plain["late_rows"], plain["absent"]
    return {**plain, "format": 1}


def of_format_2(row: LedgerRow) -> dict[str, Any]:
    plain = row.to_json()
    del plain["late_rows"], plain["absent"]
    return {**plain, "format": 2}


def of_format_3(row: LedgerRow) -> dict[str, Any]:
    plain = row.to_json()
    del plain["absent"]
    return {**plain, "format": 3}


def old_table(*rows: LedgerRow) -> pa.Table:
    table = to_table(rows).drop_columns(["by_topic", "late_rows", "absent", "marks"])
    at = table.schema.get_field_index("_format")
    return table.set_column(at, "_format", pa.array([1] * len(rows), pa.int32()))


def test_the_shares_of_the_topics_survive_commit_and_table() -> None:
    row = ledger_row(3, by_topic=SHARES, absent={"a": {"0": 2}})
    assert LedgerRow.from_json(row.to_json()) == row
    assert from_table(to_table([row])) == [row]
    assert row.to_json()["format"] == 5
    assert LedgerRow.from_json(of_format_3(ledger_row(3))).absent == {}


def test_a_commit_of_format_1_has_no_shares_and_a_later_format_is_refused() -> None:
    assert LedgerRow.from_json(of_format_1(ledger_row(3))) == ledger_row(3)
    with pytest.raises(LedgerError, match="format 6, this version reads 1, 2, 3, 4, 5"):
        LedgerRow.from_json({**ledger_row(3).to_json(), "format": 6})


def test_a_table_begun_in_format_1_is_read_and_goes_on_in_format_2(tmp_path: Any) -> None:
    home = Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")
    Table(home.tables.ledger).append(old_table(ledger_row(0), ledger_row(1)))
    assert read_ledger(home) == [ledger_row(0), ledger_row(1)]
    append_ledger(home, [ledger_row(2, by_topic=SHARES)])
    append_ledger(home, [ledger_row(3, by_topic=SHARES)])
    assert [row.by_topic for row in read_ledger(home)] == [{}, {}, SHARES, SHARES]
    assert [row.by_topic for row in read_ledger(home, 1)] == [{}, SHARES, SHARES]


def test_a_batch_that_only_a_commit_of_format_1_knows_is_read(tmp_path: Any) -> None:
    home = Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")
    Table(home.tables.changelog).append(
        pa.table({"n": pa.array([], pa.int64())}),
        transactions={"p#t1": 0},
        metadata={LEDGER_KEY: of_format_1(ledger_row(0))},
    )
    assert read_ledger(home) == [ledger_row(0)]


def test_a_row_of_format_2_counts_no_late_rows_and_one_of_format_3_does(tmp_path: Any) -> None:
    home = Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")
    assert LedgerRow.from_json(of_format_2(ledger_row(3, by_topic=SHARES))) == ledger_row(3, by_topic=SHARES)
    Table(home.tables.ledger).append(to_table([ledger_row(0)]).drop_columns(["late_rows"]))
    append_ledger(home, [ledger_row(1, late_rows=4)])
    assert [row.late_rows for row in read_ledger(home)] == [None, 4]


def test_a_row_of_an_unknown_format_in_the_table_is_refused() -> None:
    table = to_table([ledger_row(0)])
    at = table.schema.get_field_index("_format")
    with pytest.raises(LedgerError, match="format 9"):
        from_table(table.set_column(at, "_format", pa.array([9], pa.int32())))


def test_a_row_tells_the_ranges_of_all_topics() -> None:
    offsets = {"start_offsets": {"a": {"0": 1}}, "end_offsets": {"a": {"0": 4, "1": 2}, "b": {"0": 0}}}
    assert ledger_row(0, **offsets).parts() == {Part("a", 0): (1, 4), Part("a", 1): (0, 2), Part("b", 0): (0, 0)}


def test_shares_add_up() -> None:
    assert total_of(SHARES.values()) == BatchCounts(7, 1, 2, 5, 9)
    assert total_of([]) == BatchCounts()
