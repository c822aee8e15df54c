"""A checkpoint of a table's log that is gone, empty or cut short: named, healed by `rivertwice admin repair`, and one line of `status`."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
from click.testing import CliRunner

from homes.ledger import NOW
from homes.torn import MIDDLE, make_home, tear, tear_checkpoint
from rivertwice.cli.main import cli
from rivertwice.core.errors import TableDamageError
from rivertwice.reconcile.model import Account
from rivertwice.reconcile.results import Stamp, newest_reconcile, store_run
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.storage.table_log import CUT, EMPTY, GONE, LOG, entry_path
from rivertwice.timeline.intact import require_rows, require_whole_logs
from rivertwice.timeline.ledger import read_ledger
from rivertwice.timeline.sequence import publish, read_sequence
from rivertwice.timeline.served import rebuild_served

BATCHES = 25  # a checkpoint is made every 20 commits
TABLES = ("changelog", "ledger", "sequence", "served", "verdicts", "reconciles")
HOW = (GONE, EMPTY, CUT, MIDDLE)


@pytest.fixture
def made(tmp_path):
    settings, home, bundle = make_home(tmp_path, BATCHES)
    shutil.copytree(settings.definitions / "p", settings.definitions / "q")
    yaml = settings.definitions / "q" / "pipeline.yaml"
    yaml.write_text(yaml.read_text().replace("name: p", "name: q"))
    rebuild_served(home, bundle.definition)
    stamp = Stamp("rc-1", "p", NOW, "t1", BATCHES - 1, bundle.id, 1, {})
    summary = {
        "counts": {"stream": {"AGREES": 2}, "served": {"AGREES": 2}},
        "balance": {"total": Account().to_json(), "partitions": {}},
        "late_by_partition": {},
        "gate": {"passed": True, "alerts": [], "findings": [], "phases": {}},
        "duration_s": 1.0,
    }
    for run in ("rc-1", "rc-2"):
        store_run(home, dataclasses.replace(stamp, run=run), [], [], summary)
    for name in TABLES:
        if not list((getattr(home.tables, name) / LOG).glob("*.checkpoint.parquet")):
            Table(getattr(home.tables, name)).open().handle.create_checkpoint()
    return settings, home, bundle


def ask(settings, *arguments, output="text"):
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", output]
    answer = CliRunner().invoke(cli, [*options, *arguments])
    assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.output
    return answer


def rows_of(home):
    return {name: sorted(map(repr, Table(getattr(home.tables, name)).read().to_pylist())) for name in TABLES}


@pytest.mark.proves(
    "howto-correct.md#repair-tables-after-a-power-loss-or-a-damaged-disk", "guarantees.md#what-everything-needs"
)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("how", HOW)
def test_a_torn_checkpoint_is_one_line_of_status_and_a_repair_loses_nothing(made, table, how):
    settings, home, _ = made
    before = rows_of(home)
    sound = ask(settings, "status").stdout.splitlines()
    path = tear_checkpoint(getattr(home.tables, table), how)

    answer = ask(settings, "status")
    assert answer.exit_code == 0
    lines = answer.stdout.splitlines()
    naming = [line for line in lines if str(path) in line]
    assert len(naming) == 1, answer.stdout
    assert all("`rivertwice admin repair p`" in line and line.startswith("p: ") for line in naming)
    assert [line for line in sound if line.startswith("q")] == [line for line in lines if line.startswith("q")]
    assert len(json.loads(ask(settings, "status", output="json").stdout)["pipelines"]) == 2

    shown = ask(settings, "admin", "repair", "p", output="json")
    assert shown.exit_code == 3
    damages = {each["table"]: each for each in json.loads(shown.stdout)["damages"] if str(path) in each["what"]}
    assert set(damages) == {table} | (
        {"archive"} if table == "sequence" else set()
    )  # which topics are read is not known
    assert damages[table]["curable"]
    done = ask(settings, "admin", "repair", "p", "--yes", output="json")
    assert (done.exit_code, json.loads(done.stdout)["left"]) == (0, []), done.stdout
    assert {name: rows for name, rows in rows_of(home).items() if name != "served"} == {
        name: rows for name, rows in before.items() if name != "served"
    }
    require_whole_logs(home)
    assert len(require_rows(home, "t1")) == BATCHES
    assert json.loads(ask(settings, "admin", "repair", "p", output="json").stdout)["damages"] == []


@pytest.mark.parametrize("how", HOW)
def test_show_names_a_torn_checkpoint_of_what_it_reads_and_the_remedy(made, how):
    settings, home, _ = made
    path = tear_checkpoint(home.tables.served, how)
    answer = ask(settings, "show", "p")
    assert answer.exit_code == 1
    assert len(answer.stderr.strip().splitlines()) == 1
    assert f"the log of table served is damaged: checkpoint 0 ({path})" in answer.stderr
    assert "`rivertwice admin repair p`" in answer.stderr
    assert ask(settings, "admin", "repair", "p", "--yes").exit_code == 0
    assert ask(settings, "show", "p").exit_code == 0


@pytest.mark.parametrize("how", HOW)
def test_a_driver_does_not_start_on_a_torn_checkpoint_and_says_which(made, how):
    _, home, _ = made
    path = tear_checkpoint(home.tables.changelog, how)
    with pytest.raises(TableDamageError, match="the table cannot be opened") as found:
        require_whole_logs(home)
    assert str(path) in str(found.value)
    assert "Kernel error" not in str(found.value)


def test_an_empty_checkpoint_that_no_pointer_names_is_read_by_nobody(made):
    _, home, _ = made
    place = home.tables.changelog
    (place / LOG / f"{24:020d}.checkpoint.parquet").touch()
    assert TableCare(place).find_torn(decode=True) == []
    assert Table(place).read().num_rows


def forget_entries(place):
    """Keep of the log what upkeep keeps: the newest checkpoint and the entries from it on; return the newest entry that is gone."""
    newest = max((place / LOG).glob("*.checkpoint.parquet"))
    version = int(newest.name[:20]) - 1
    for entry in range(version + 1):
        entry_path(place, entry).unlink(missing_ok=True)
    for other in set((place / LOG).glob("*.checkpoint.parquet")) - {newest}:
        other.unlink()
    return version


@pytest.mark.parametrize("table", ["changelog", "dead_letters", "late_rows", "ledger", "verdicts"])
@pytest.mark.parametrize("how", [GONE, CUT])
def test_without_the_entries_before_a_checkpoint_rows_come_back_from_their_data_files(made, table, how):
    settings, home, _ = made
    place = getattr(home.tables, table)
    rows = sorted(map(repr, (sorted(row.items()) for row in Table(place).read().to_pylist())))
    Table(place).open().handle.create_checkpoint()
    version = forget_entries(place)
    assert sorted(map(repr, (sorted(row.items()) for row in Table(place).read().to_pylist()))) == rows
    tear_checkpoint(place, how)
    shown = ask(settings, "admin", "repair", "p", output="json")
    named = [each["what"] for each in json.loads(shown.stdout)["damages"] if "log version" in each["what"]]
    assert named == [
        f"log version {version} ({entry_path(place, version)}) is gone, and so are the {version} before it"
    ]
    done = ask(settings, "admin", "repair", "p", "--yes", output="json")
    assert (done.exit_code, json.loads(done.stdout)["left"]) == (0, []), done.stdout
    if table != "verdicts":  # which nothing can give back; the next reconcile judges again
        assert sorted(map(repr, (sorted(row.items()) for row in Table(place).read().to_pylist()))) == rows
    require_rows(home, "t1")
    assert len(read_ledger(home)) == BATCHES
    TableCare(place).sweep()
    assert TableCare(place).find_torn(decode=True) == []


def test_what_the_sequence_loses_with_its_checkpoint_is_named_and_not_guessed(made):
    settings, home, _ = made
    publication = {"backfill": "b", "ranges": [], "semantics": "s", "bundle": "b", "as_of": {}}
    publish(home, publication, expected_seq=1, now=NOW)
    place = home.tables.sequence
    table = Table(place).open()
    table.handle.optimize.compact()  # the merged file has the rows of the others again
    table.handle.create_checkpoint()
    version = forget_entries(place)
    publish(home, publication | {"backfill": "c"}, expected_seq=2, now=NOW)
    assert len(read_sequence(home)) == 3
    tear_checkpoint(place, GONE)
    done = ask(settings, "admin", "repair", "p", "--yes", output="json")
    assert done.exit_code == 3
    cures = [each["cure"] for each in json.loads(done.stdout)["left"] if f"log version {version}" in each["what"]]
    assert ["--accept-loss sequence" in cure and "backup" in cure for cure in cures] == [True]
    assert not entry_path(place, version).exists()


def test_a_ledger_without_its_first_batches_is_not_called_whole(made):
    settings, home, _ = made
    place = home.tables.ledger
    Table(place).open().handle.create_checkpoint()
    version = forget_entries(place)
    for path in place.glob("*.parquet"):
        path.unlink()
    changelog = home.tables.changelog
    TableCare(changelog).sweep()
    for entry in range(22):  # their copies in the changelog's commits went six hours later
        entry_path(changelog, entry).unlink(missing_ok=True)
    tear_checkpoint(place, GONE)
    tear(entry_path(place, version + 1), EMPTY)
    shown = ask(settings, "admin", "repair", "p", output="json")
    whats = [each["what"] for each in json.loads(shown.stdout)["damages"]]
    assert any("batch 0, 1, 2, 3" in what and "in neither the table nor" in what for what in whats), whats
    assert newest_reconcile(home) is not None
