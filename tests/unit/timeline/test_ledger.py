import pyarrow as pa
import pytest

from homes.ledger import NOW, ledger_row
from rivertwice.core.errors import LedgerError
from rivertwice.core.settings import Settings
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import (
    LEDGER_KEY,
    LedgerRow,
    append_ledger,
    from_table,
    heal_ledger,
    read_ledger,
    to_table,
)
from rivertwice.timeline.lineage import (
    Fork,
    Segment,
    Timeline,
    create_timeline,
    late_watermarks_ms,
    path_of,
    select_on_path,
)


@pytest.fixture
def home(tmp_path):
    return Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")


def commit(home, row):
    Table(home.tables.changelog).append(
        pa.table({"n": pa.array([], pa.int64())}),
        transactions={f"p#{row.timeline}": row.batch},
        metadata={LEDGER_KEY: row.to_json()},
    )


def timeline(name, parent=None, first=0):
    return Timeline("p", name, parent, first, {"flights": {"0": 0}}, "b", {"state": "s"}, "c", {"flights": "id"}, NOW)


def test_a_row_survives_commit_metadata_and_table():
    row = ledger_row(3, min_event_ms=None)
    assert LedgerRow.from_json(row.to_json()) == row
    assert from_table(to_table([row])) == [row]


def test_rows_that_only_the_commits_know_are_read_and_healed_once(home):
    rows = [ledger_row(batch) for batch in range(40)]
    for row in rows[:5]:
        commit(home, row)
    append_ledger(home, rows[:5])
    for row in rows[5:]:
        commit(home, row)
    assert read_ledger(home) == rows
    assert heal_ledger(home) == 35
    assert heal_ledger(home) == 0
    assert read_ledger(home) == rows


def test_two_different_rows_for_one_batch_are_refused(home):
    append_ledger(home, [ledger_row(0), ledger_row(0, read=11)])
    with pytest.raises(LedgerError, match="two different rows for batch 0"):
        read_ledger(home)


def test_the_range_of_a_row_is_half_open_per_partition():
    assert ledger_row(2).ranges("flights") == {0: (20, 30)}


def test_only_rows_on_the_path_count_and_a_child_takes_over_after_the_fork(home):
    # t1: 0 1 2 3 4        (3 and 4 are not on t2's path)
    # t2:       3 4
    create_timeline(home, timeline("t1"))
    create_timeline(home, timeline("t2", Fork("t1", 2), first=3))
    path = path_of(home, "t2")
    assert path == [Segment("t1", 0, 2), Segment("t2", 3, None)]
    rows = [ledger_row(batch) for batch in range(5)] + [ledger_row(batch, "t2") for batch in (4, 3)]
    chosen = select_on_path(rows, path)
    assert [(row.timeline, row.batch) for row in chosen] == [("t1", 0), ("t1", 1), ("t1", 2), ("t2", 3), ("t2", 4)]
    assert late_watermarks_ms(chosen) == [0, 0, 1000, 2000, 3000]


def test_a_timeline_record_is_never_replaced(home):
    assert create_timeline(home, timeline("t1"))
    assert not create_timeline(home, timeline("t1", Fork("t0", 9)))
    assert Timeline.next_name(home) == "t2"
