"""Upkeep merges and sweeps, and no row, transaction or ledger row is touched by it."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import pyarrow as pa
import pytest

from rivertwice.agent.agent import AGAIN, UpkeepKeeper
from rivertwice.core.errors import ConfigError, LostRaceError
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.reconcile.results import Stamp, StoredVerdict, store_run, verdict_rows
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import UNNAMED_KEPT, TableCare, TableShape, parse_interval, retention
from rivertwice.timeline.upkeep import (
    COMMITS_AT,
    LISTED_EVERY,
    QUIET_EVERY,
    Record,
    is_due,
    is_listing_due,
    keep_up,
    plan_upkeep,
    read_record,
)


def shape(small: int) -> TableShape:
    return TableShape(files=small, small_in_one_partition=small, removed_kept=timedelta(hours=6))


def one_row(number: int, day: str = "2013-07-01") -> pa.Table:
    return pa.table({"number": pa.array([number], pa.int64()), "_day": [day]})


def numbers(path) -> list[int]:
    rows = Table(path).read()
    assert rows is not None
    return sorted(rows["number"].to_pylist())


def data_files(path) -> int:
    return len(list(path.rglob("*.parquet"))) - len(list((path / "_delta_log").glob("*.parquet")))


def test_only_tables_with_many_small_files_in_one_partition_are_merged():
    chores = plan_upkeep({"changelog": shape(50), "ledger": shape(49), "causes": None}, compact_at=50)
    assert [(chore.table, chore.merge) for chore in chores] == [("changelog", True), ("ledger", False)]


def test_intervals_of_delta_are_read_and_strange_ones_fall_back():
    default = timedelta(days=7)
    assert parse_interval("interval 6 hours", default) == timedelta(hours=6)
    assert parse_interval("interval 1 second", default) == timedelta(seconds=1)
    for strange in ("", "6 hours", "interval six hours", "interval 6 moons"):
        assert parse_interval(strange, default) == default


def test_new_tables_have_the_retention_and_a_merge_keeps_rows(tmp_path):
    path = tmp_path / "table"
    for number in range(12):
        Table(path, partition_by=["_day"]).append(one_row(number), transactions={"app": number})
    before = TableCare(path).shape()
    assert before is not None
    assert (before.files, before.small_in_one_partition, before.removed_kept) == (12, 12, timedelta(hours=6))
    assert TableCare(path).compact() == 12
    after = TableCare(path).shape()
    assert after is not None
    assert after.files == 1
    assert numbers(path) == list(range(12))
    assert Table(path).applied_version("app") == 11


def test_only_what_the_retention_no_longer_holds_is_deleted(tmp_path):
    path = tmp_path / "table"
    for number in range(5):
        Table(path, partition_by=["_day"]).append(one_row(number))
    TableCare(path).compact()
    assert TableCare(path).sweep() == 0
    assert data_files(path) == 6
    assert TableCare(path).set_retention(timedelta(0), timedelta(0))
    assert not TableCare(path).set_retention(timedelta(0), timedelta(0))
    assert TableCare(path).sweep() == 5
    assert data_files(path) == 1
    TableCare(path).sweep()
    assert len(list((path / "_delta_log").glob("*.json"))) == 1
    assert numbers(path) == list(range(5))


def age(path, kept: timedelta) -> None:
    """Let every data file below a path be written so long ago."""
    written = (utc_now() - kept).timestamp()
    for file in path.rglob("*.parquet"):
        os.utime(file, (written, written))


def test_files_of_killed_writers_are_deleted_after_a_week(tmp_path):
    path = tmp_path / "table"
    for number in range(3):
        Table(path, partition_by=["_day"]).append(one_row(number))
    old = Table(path).write_file(one_row(7).drop_columns("_day"), {"_day": "2013-07-01"})
    age(path, UNNAMED_KEPT + timedelta(hours=1))
    fresh = Table(path).write_file(one_row(8).drop_columns("_day"), {"_day": "2013-07-01"})
    assert TableCare(path).compact() == 3  # those are old too, and kept for readers that opened the table before
    version = Table(path).version()
    assert TableCare(path).sweep() == 0
    assert TableCare(path).sweep_unnamed() == 1
    assert not (path / old.path).exists()
    assert (path / fresh.path).exists()
    assert data_files(path) == 5
    assert numbers(path) == [0, 1, 2]
    assert Table(path).version() > version
    version = Table(path).version()
    assert TableCare(path).sweep_unnamed() == 0
    assert Table(path).version() == version, "a look that finds nothing leaves no commit"
    assert TableCare(tmp_path / "none").sweep_unnamed() == 0


def test_upkeep_lists_the_folders_once_a_day(tmp_path):
    now = utc_now()
    home = Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")
    Table(home.tables.changelog, partition_by=["_day"]).append(one_row(0))
    left = []
    for day in (timedelta(0), LISTED_EVERY / 2, LISTED_EVERY):
        left.append(Table(home.tables.changelog).write_file(one_row(7).drop_columns("_day"), {"_day": "2013-07-01"}))
        age(home.tables.changelog, UNNAMED_KEPT * 2)
        (kept,) = [each for each in keep_up(home, now=now + day) if each.table == "changelog"]
        assert kept.deleted == {0: 1, 1: 0, 2: 2}[len(left) - 1]
    assert [(home.tables.changelog / file.path).exists() for file in left] == [False] * 3
    assert is_listing_due(now, now - timedelta(seconds=1)), "a clock that was set back keeps no file for ever"


def test_properties_are_written_in_seconds():
    assert retention(timedelta(minutes=10), timedelta(hours=1)) == {
        "delta.logRetentionDuration": "interval 600 seconds",
        "delta.deletedFileRetentionDuration": "interval 3600 seconds",
    }


@pytest.mark.proves("formats.md#compaction-and-cleaning")
def test_appends_go_on_while_the_table_is_merged_and_swept_again_and_again(tmp_path):
    path = tmp_path / "table"
    Table(path, partition_by=["_day"]).append(one_row(0), transactions={"app": 0}, metadata={"k": 0})
    TableCare(path).set_retention(
        timedelta(seconds=3), timedelta(seconds=3)
    )  # longer than a reader takes, as hours are
    done = threading.Event()

    def tidy() -> None:
        while not done.wait(0.2):
            TableCare(path).compact()
            TableCare(path).sweep()

    tidier = threading.Thread(target=tidy)
    tidier.start()
    try:
        for number in range(1, 200):
            Table(path).append(one_row(number), transactions={"app": number}, metadata={"k": number})
    finally:
        done.set()
        tidier.join()
    assert numbers(path) == list(range(200))
    assert Table(path).applied_version("app") == 199


def test_commits_of_a_merge_do_not_hide_the_newest_metadata(tmp_path):
    path = tmp_path / "table"
    for number in range(40):
        Table(path, partition_by=["_day"]).append(one_row(number), metadata={"k": number})
        if number % 3 == 0:
            TableCare(path).compact()
    assert [data for _, data in Table(path).commits("k", limit=16)] == list(range(24, 40))
    assert len(Table(path).commits("k")) == 40


@pytest.mark.parametrize("known", [True, False])
def test_a_home_without_tables_has_nothing_to_keep_up(settings: Settings, known):
    home = settings.pipeline("flight_delays")
    if known:
        home.root.mkdir(parents=True)
    assert keep_up(home, now=utc_now()) == []


def test_a_sweep_that_loses_to_an_overwrite_leaves_it_to_the_next(tmp_path, monkeypatch):
    path = tmp_path / "table"
    for number in range(4):
        Table(path).overwrite(one_row(number))
    TableCare(path).set_retention(timedelta(0), timedelta(0))
    stale = Table(path).open()
    Table(path).overwrite(one_row(9))
    with monkeypatch.context() as patched:
        patched.setattr(Table, "open", lambda _: stale)
        with pytest.raises(LostRaceError, match="changed while it was swept"):
            TableCare(path).sweep()
    TableCare(path).sweep()
    assert numbers(path) == [9]
    assert len(list(path.rglob("*.parquet"))) == len(list((path / "_delta_log").glob("*.parquet"))) + 1


@pytest.mark.proves("formats.md#compaction-and-cleaning")
def test_a_writer_drops_no_commit_however_old(tmp_path, monkeypatch):
    monkeypatch.setenv("RIVERTWICE_DURABLE", "off")
    path = tmp_path / "table"
    Table(path).append(one_row(0))
    TableCare(path).set_retention(timedelta(0), timedelta(0))
    Table(path).open().handle.alter.set_table_properties({"delta.checkpointInterval": "5"})
    for number in range(1, 24):  # a writer that makes a checkpoint of the log cleans up too, unless it is told not to
        Table(path).append(one_row(number), metadata={"k": number})
    assert list((path / "_delta_log").glob("*.checkpoint.parquet"))
    assert [data for _, data in Table(path).commits("k")] == list(range(1, 24))


def test_upkeep_removes_the_rows_of_old_runs(settings: Settings) -> None:
    home = settings.pipeline("p")
    for name, created in (("old", utc_now() - timedelta(days=91)), ("young", utc_now())):
        stamp = Stamp(name, "p", created, "t1", 1, "b", 1, {})
        summary = {"counts": {}, "balance": {}, "late_by_partition": {}, "gate": {"alerts": []}, "duration_s": 1.0}
        store_run(home, stamp, [StoredVerdict("stream", 0, 10, "{}", "LATE", "1 of 2 came", late=1)], [], summary)
    keep_up(home, now=utc_now())
    assert verdict_rows(home, "old") == []
    assert len(verdict_rows(home, "young")) == 1


def test_how_long_verdicts_are_kept_is_read_and_given_to_children() -> None:
    settings = Settings.from_env({"RIVERTWICE_VERDICTS_KEPT": "180 days"})
    assert settings.verdicts_kept == timedelta(days=180)
    assert Settings.from_env(settings.to_env()).verdicts_kept == timedelta(days=180)
    with pytest.raises(ConfigError, match="RIVERTWICE_VERDICTS_KEPT is '0 days'"):
        Settings.from_env({"RIVERTWICE_VERDICTS_KEPT": "0 days"})


def test_upkeep_is_due_by_commits_and_at_the_latest_after_some_hours():
    now, moment = utc_now(), timedelta(seconds=1)
    last = Record(now, now, 1000)
    assert not is_due(last, 1000 + COMMITS_AT - 1, now)
    assert is_due(last, 1000 + COMMITS_AT, now)
    assert not is_due(last, 1000, now + QUIET_EVERY - moment)
    assert is_due(last, 1000, now + QUIET_EVERY)
    assert is_due(last, 999, now), "the table was put back"
    assert is_due(last, 1000, now - moment), "the clock was set back"
    assert is_due(Record(now), 0, now), "a record of 0.1 says only when the folders were listed"


def test_the_agent_looks_after_tables_once_enough_was_committed(tmp_path):
    settings, now = Settings(project=tmp_path, home=tmp_path / "home"), utc_now()
    home = settings.pipeline("p")
    keeper = UpkeepKeeper(settings, lambda: ["p"], threading.Event())
    assert keeper.look("p", now) == []
    assert read_record(home) is None
    kept = Table(home.tables.changelog)
    for number in range(COMMITS_AT):
        kept.append(one_row(number))
    assert keeper.look("p", now) == [], "the newest commit is 199: the first was that of the first batch"
    kept.append(one_row(COMMITS_AT))
    (done,) = keeper.look("p", now)
    assert (done.table, done.files_before, done.files_after) == ("changelog", COMMITS_AT + 1, 1)
    assert read_record(home) == Record(now, now, COMMITS_AT)
    assert keeper.look("p", now) == []
    assert [each.table for each in keeper.look("p", now + QUIET_EVERY)] == ["changelog"]


def test_upkeep_that_fails_waits_before_it_is_tried_again(tmp_path, monkeypatch):
    settings, now, tries = Settings(project=tmp_path, home=tmp_path / "home"), utc_now(), []

    def fail(*_, **__):
        tries.append("tried")
        message = "the disk is gone"
        raise OSError(message)

    monkeypatch.setattr("rivertwice.agent.agent.keep_up_if_due", fail)
    keeper = UpkeepKeeper(settings, lambda: ["p"], threading.Event())
    for after in (timedelta(0), timedelta(seconds=30), AGAIN):
        if after == timedelta(seconds=30):
            assert keeper.look("p", now + after) == []
            continue
        with pytest.raises(OSError, match="the disk is gone"):
            keeper.look("p", now + after)
    assert len(tries) == 2
