"""Tables that grow by a commit a batch have statistics of the columns by which readers skip files, and of no others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from homes.ledger import ledger_row
from homes.project import REPOSITORY
from rivertwice.core.errors import LostRaceError
from rivertwice.core.instants import from_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.read.explain_records import read_batches
from rivertwice.storage.snapshot import Snapshot
from rivertwice.storage.sql import Where
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.storage.table_files import TableFiles
from rivertwice.timeline import ledger
from rivertwice.timeline.committed import CommittedBatches, LedgerCursor
from rivertwice.timeline.ledger import SCHEMA, append_ledger, read_ledger, to_table
from rivertwice.timeline.upkeep import no_upkeep, renew_properties

FLIGHTS = load_definition(REPOSITORY / "pipelines" / "flight_delays")


@pytest.fixture
def home(tmp_path):
    return Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")


def properties(place: Path) -> dict[str, str]:
    return dict(DeltaTable(str(place)).metadata().configuration)


def columns_with_statistics(place: Path) -> set[str]:
    actions = pa.table(DeltaTable(str(place)).get_add_actions(flatten=True))
    return {
        name.removeprefix("min.")
        for name in actions.column_names
        if name.startswith("min.") and actions[name].null_count < actions.num_rows
    }


def lose_files(place: Path, *but: int) -> None:
    """Remove the data files of all batches but some: whoever reads one of them fails."""
    for file in place.glob("*.parquet"):
        (number,) = pa.parquet.read_table(file, columns=["batch"])["batch"].to_pylist()
        if number not in but:
            file.unlink()


def test_the_ledgers_log_has_statistics_only_of_what_readers_skip_by(home):
    for batch in range(3):
        append_ledger(home, [ledger_row(batch, min_event_ms=batch * 10, max_event_ms=batch * 10 + 9)])
    place = home.tables.ledger
    assert columns_with_statistics(place) == set(ledger.LEDGER)
    assert Table(place).total_rows() == 3
    assert [file.rows for file in TableFiles(Table(place).open()).files] == [1, 1, 1]
    assert properties(place)["delta.checkpointInterval"] == "20"


def test_a_look_at_some_batches_reads_no_other_files_of_the_ledger(home):
    for batch in range(6):
        append_ledger(home, [ledger_row(batch, min_event_ms=batch * 10, max_event_ms=batch * 10 + 9)])
    cursor = LedgerCursor(home.tables.ledger)
    assert cursor.look().num_rows == 6
    append_ledger(home, [ledger_row(6, min_event_ms=60, max_event_ms=69)])
    lose_files(home.tables.ledger, 4, 5, 6)
    assert [row.batch for row in read_ledger(home, 5)] == [5, 6]
    assert cursor.look().num_rows == 7
    assert Table(home.tables.ledger).rows_by(("batch",), above=("batch", 4)) == {(5,): 1, (6,): 1}
    every = CommittedBatches(pa.table({"timeline": ["t1"] * 7, "batch": list(range(7))}))
    assert [row.batch for row in read_batches(home, every, from_ms(45), from_ms(55))] == [4, 5]


def test_all_columns_by_which_a_reader_skips_are_columns_of_the_tables():
    window = FLIGHTS.window
    assert set(ledger.LEDGER) <= set(SCHEMA.names)
    assert ledger.of_changelog(FLIGHTS)[2:] == (window.start_column, window.end_column)


def test_a_table_of_an_older_version_gets_the_properties_once(home):
    place = home.tables.ledger
    for batch in range(2):
        Table(place).append(to_table([ledger_row(batch)]))
    DeltaTable(str(place)).alter.set_table_properties({"delta.checkpointInterval": "100"})
    wide = columns_with_statistics(place)
    assert {"digest", "offsets_text"} <= wide
    assert renew_properties(home, ledger.by_table(home, FLIGHTS)) == ["ledger"]
    version = Table(place).open().version
    assert renew_properties(home, ledger.by_table(home, FLIGHTS)) == []
    assert Table(place).open().version == version, "a second start changes nothing"
    assert properties(place)["delta.logRetentionDuration"] == "interval 6 hours"
    append_ledger(home, [ledger_row(2)])
    assert [row.batch for row in read_ledger(home)] == [0, 1, 2]
    assert Table(place).total_rows() == 3
    TableCare(place).compact()
    assert columns_with_statistics(place) == set(ledger.LEDGER)
    assert [row.batch for row in read_ledger(home, 1)] == [1, 2]


def test_rows_are_found_by_columns_without_statistics_too(home):
    place, schema = (
        home.tables.late_rows,
        pa.schema([("_batch", pa.int64()), ("topic", pa.string()), ("n", pa.int64())]),
    )
    for batch in range(3):
        rows = pa.table({"_batch": [batch], "topic": [f"t{batch}"], "n": [batch]}, schema=schema)
        Table(place, skip_by=ledger.SIDE_STATISTICS).append(rows)
    assert columns_with_statistics(place) == {"_batch"}
    assert Table(place).read(matching="\"topic\" = 't1'")["n"].to_pylist() == [1]
    assert Table(place).read(matching=Where("n").is_between(2, 9))["n"].to_pylist() == [2]
    assert Table(place).bounds("n") is None
    assert Table(place).bounds("_batch") == (0, 2)
    files = TableFiles(Table(place).open())
    assert files.rows == 3
    assert files.dataset().filter(pa.compute.field("topic") == "t2").count_rows() == 1


def test_nothing_is_changed_while_upkeep_runs(home):
    Table(home.tables.ledger).append(to_table([ledger_row(0)]))
    with no_upkeep(home):
        assert renew_properties(home, ledger.by_table(home, FLIGHTS)) == []
    assert renew_properties(home, ledger.by_table(home, FLIGHTS)) == ["ledger"]


def test_a_writer_that_read_before_the_change_loses_and_one_after_goes_on(home):
    place = home.tables.ledger
    old, kept = Table(place), Table(place)
    Table(place).append(to_table([ledger_row(0)]), transactions={"a": 0})
    assert kept.applied_version("a") == old.applied_version("a") == 0

    def change(_: Snapshot) -> None:
        assert renew_properties(home, {place: ledger.LEDGER}) == ["ledger"]

    with pytest.raises(LostRaceError):  # the change comes between its look and its commit
        old.append(to_table([ledger_row(1)]), transactions={"a": 1}, check=change)
    kept.append(to_table([ledger_row(1)]), transactions={"a": 1})
    with pytest.raises(LostRaceError, match="already holds version 1 of a"):
        old.append(to_table([ledger_row(1)]), transactions={"a": 1})
    assert [row.batch for row in read_ledger(home)] == [0, 1]
