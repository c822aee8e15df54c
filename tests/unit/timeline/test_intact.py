"""Rows that a torn commit took away are noticed before anything goes on over them: at a start, before `served`, in a restore."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from homes.ledger import ledger_row
from homes.savepoint import NOW, write_checkpoint
from homes.torn import ZEROS, add_batch, make_home, tear_commit
from rivertwice.cli.main import cli
from rivertwice.core.errors import TableDamageError
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.table import Table
from rivertwice.storage.table_log import CUT, EMPTY, GONE, entry_path
from rivertwice.timeline.committed import CommittedBatches
from rivertwice.timeline.intact import (
    Shortfall,
    check_rows,
    find_holes,
    find_shortfalls,
    require_rows,
    require_whole_logs,
)
from rivertwice.timeline.ledger import read_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served import read_served, rebuild_served


@pytest.fixture
def made(tmp_path):
    return make_home(tmp_path)


def test_rows_are_compared_per_batch_and_table_as_the_ledger_counts():
    rows = [ledger_row(0, emitted=2, bad=1, late_rows=3), ledger_row(1, emitted=1, bad=0, late_rows=None)]
    whole = {"changelog": {("t1", 0): 2, ("t1", 1): 1}, "dead_letters": {("t1", 0): 1}, "late_rows": {("t1", 0): 3}}
    batches = CommittedBatches.of(rows)
    assert find_shortfalls(batches, whole) == []
    assert find_shortfalls(batches, {**whole, "late_rows": {}}) == [Shortfall("late_rows", "t1", 0, 3, 0)]
    assert find_shortfalls(batches, {"changelog": {("t1", 0): 1, ("t1", 1): 5}}) == [
        Shortfall("changelog", "t1", 0, 2, 1)
    ]


def test_a_hole_in_the_ledger_is_seen():
    assert find_holes(CommittedBatches.of([ledger_row(n) for n in (3, 4, 7, 8)])) == [5, 6]
    assert find_holes(CommittedBatches.of([])) == []


def test_whole_tables_pass_and_the_next_check_counts_only_the_new(made, monkeypatch):
    _, home, bundle = made
    assert require_rows(home, "t1").numbers.tolist() == list(range(6))
    asked = []
    counted = Table.rows_by
    monkeypatch.setattr(Table, "rows_by", lambda *a, **k: (asked.append(k["above"]), counted(*a, **k))[1])
    require_rows(home, "t1")
    assert asked == []
    add_batch(home, bundle, 6)
    require_rows(home, "t1")
    assert asked == [("_batch", 5)] * 3
    (home.root / "intact.json").write_bytes(b"")  # a cursor that is lost costs a count, nothing else
    require_rows(home, "t1")
    assert asked[3:] == [("_batch", -1)] * 3


@pytest.mark.parametrize(
    ("table", "key", "batch"), [("changelog", "ledger", 3), ("dead_letters", "dead", 3), ("late_rows", "late", 2)]
)
@pytest.mark.parametrize("checked_before", [False, True])
def test_an_emptied_middle_commit_is_found_by_its_entry_and_its_rows(made, table, key, batch, checked_before):
    _, home, _ = made
    if checked_before:  # the cursor lies beyond it
        require_rows(home, "t1")
    place = getattr(home.tables, table)
    path = tear_commit(place, key, batch, EMPTY)
    with pytest.raises(TableDamageError, match=f"table {table} is damaged") as found:
        require_whole_logs(home)
    assert str(path) in str(found.value)
    with pytest.raises(TableDamageError, match=f"{table} has lost rows of batch {batch} of t1") as lost:
        require_rows(home, "t1")
    assert "`rivertwice admin repair p`" in str(lost.value)


@pytest.mark.proves("guarantees.md#what-everything-needs")
def test_a_newest_commit_that_is_gone_is_found_by_its_rows(made):
    _, home, _ = made
    tear_commit(home.tables.dead_letters, "dead", 5, GONE)
    require_whole_logs(home)
    with pytest.raises(TableDamageError, match=r"dead_letters has lost rows of batch 5 of t1 \(0 of 1 rows\)"):
        require_rows(home, "t1")


def test_a_data_file_that_is_gone_or_short_is_named(made):
    _, home, _ = made
    file = sorted(home.tables.changelog.rglob("*.parquet"))[0]
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(TableDamageError, match="table changelog of p lacks data") as found:
        require_whole_logs(home)
    assert str(file) in str(found.value)


def test_a_batch_that_only_the_ledger_lost_is_copied_again(made):
    _, home, _ = made
    versions = [version for version, _ in Table(home.tables.ledger).commits("nonce")]
    entry_path(home.tables.ledger, versions[2]).write_bytes(b"")
    assert [row.batch for row in read_ledger(home)] != list(range(6))
    assert require_rows(home, "t1").numbers.tolist() == list(range(6))


@pytest.mark.proves("guarantees.md#served")
@pytest.mark.parametrize("how", [EMPTY, CUT, ZEROS])
def test_served_is_not_rebuilt_over_rows_that_are_gone(made, how):
    _, home, bundle = made
    rebuild_served(home, bundle.definition)
    before = read_served(home)
    tear_commit(home.tables.changelog, "ledger", 3, how)
    with pytest.raises(TableDamageError, match="table changelog is damaged"):
        rebuild_served(home, bundle.definition, force=True)
    assert read_served(home).equals(before)


def test_served_is_not_rebuilt_over_rows_that_are_gone_under_a_whole_log(made):
    _, home, bundle = made
    add_batch(home, bundle, 6, emitted=5)
    with pytest.raises(TableDamageError, match=r"changelog has lost rows of batch 6 of t1 \(2 of 5 rows\)"):
        rebuild_served(home, bundle.definition)
    assert read_served(home) is None


@pytest.mark.proves(
    "failure-modes.md#a-power-loss",
    "howto-correct.md#repair-tables-after-a-power-loss-or-a-damaged-disk",
)
def test_a_restore_over_a_damaged_table_is_refused_and_names_the_repair(made):
    settings, home, _ = made
    tear_commit(home.tables.changelog, "ledger", 3, EMPTY)
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    answer = CliRunner().invoke(cli, [*options, "savepoint", "restore", "p", "--from-beginning", "--yes"])
    assert answer.exit_code == 1
    told = json.loads(answer.stderr.strip().splitlines()[-1])["error"]
    assert told["reason"] == "table_damage"
    assert "table changelog is damaged" in told["message"]


def test_rows_beyond_what_was_counted_are_a_matter_of_reconcile(made):
    _, home, bundle = made
    add_batch(home, bundle, 6, emitted=1)
    rows = read_ledger(home)
    check_rows(home, rows, rows)


@pytest.mark.proves("failure-modes.md#a-power-loss")
def test_an_upgrade_over_a_damaged_table_is_refused_and_names_the_repair(made, monkeypatch):
    settings, home, _ = made
    write_checkpoint(home, "t1", planned=5, finished=5)
    for row in read_ledger(home):
        (home.checkpoint("t1") / "offsets" / str(row.batch)).write_text(row.offsets_text)
    taken = take_savepoint(settings, "p", now=NOW)
    tear_commit(home.tables.changelog, "ledger", 3, EMPTY)
    definition = settings.definitions / "p" / "pipeline.yaml"
    definition.write_text(definition.read_text().replace("watermark: 1 hour", "watermark: 2 hours"))
    monkeypatch.setattr("rivertwice.savepoint.operations.upgrade._require_checked", lambda *_: None)
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    answer = CliRunner().invoke(cli, [*options, "upgrade", "p", "--savepoint", taken.id, "--unproved", "--yes"])
    assert answer.exit_code == 1
    told = json.loads(answer.stderr.strip().splitlines()[-1])["error"]
    assert (told["reason"], "table changelog is damaged" in told["message"]) == ("table_damage", True)
    assert head(home) == "t1"
