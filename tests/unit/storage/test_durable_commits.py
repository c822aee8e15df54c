"""A commit is on the disk before `append` returns, and a torn entry of the log is named, not read as nothing."""

from __future__ import annotations

import os
import re

import pyarrow as pa
import pytest

from rivertwice.core.errors import LedgerError, TableDamageError
from rivertwice.storage import local
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.storage.table_log import CUT, EMPTY, GONE, entry_path


def rows(number):
    return pa.table({"n": pa.array([number], pa.int64()), "_day": ["d"]})


@pytest.fixture
def synced(monkeypatch):
    """Note what is brought onto the disk, in order."""
    monkeypatch.setenv(local.VARIABLE, "on")
    done: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (done.append(os.readlink(f"/proc/self/fd/{handle}")), fsync(handle))[1]
    )
    return done


def told(done, root):
    names = [one.replace(str(root), "") or "/" for one in done]
    return [re.sub(r"part-[^/]*parquet", "DATA", re.sub(r"/0{15}(\d{5})", r"/\1", name)) for name in names]


@pytest.mark.proves("failure-modes.md#a-power-loss", "guarantees.md#what-everything-needs")
def test_a_commit_is_on_the_disk_data_first_when_append_returns(tmp_path, synced):
    table = tmp_path / "tables" / "changelog"
    Table(table, partition_by=["_day"]).append(rows(0), transactions={"a": 0})
    first = told(synced, tmp_path)
    assert first[:3] == [
        "/tables/changelog/_day=d/DATA",
        "/tables/changelog/_day=d",
        "/tables/changelog/_delta_log/00001.json",
    ]
    assert {"/tables/changelog/_delta_log/00000.json", "/tables", "/"} <= set(first)
    assert first[-2:] == ["/tables/changelog/_delta_log", "/tables/changelog"]
    synced.clear()
    Table(table).append(rows(1), transactions={"a": 1})
    assert told(synced, tmp_path) == [
        "/tables/changelog/_day=d/DATA",
        "/tables/changelog/_day=d",
        "/tables/changelog/_delta_log/00002.json",
        "/tables/changelog/_delta_log",
        "/tables/changelog",
    ]


def test_what_replaces_files_is_on_the_disk_before_the_old_ones_can_go(tmp_path, synced):
    table = tmp_path / "t"
    for number in range(3):
        Table(table).append(rows(number))
    for act in (
        lambda: TableCare(table).compact(),
        lambda: Table(table).replace_rows(rows(9)),
        lambda: Table(table).overwrite(rows(8)),
    ):
        synced.clear()
        act()
        assert told(synced, tmp_path)[0] == "/t/DATA"
    synced.clear()
    TableCare(table).sweep()
    assert any(name.endswith("checkpoint.parquet") for name in told(synced, tmp_path))


def test_the_setting_turns_it_off(tmp_path, synced, monkeypatch):
    monkeypatch.setenv(local.VARIABLE, "off")
    Table(tmp_path / "t").append(rows(0), transactions={"a": 0})
    assert synced == []


def tear(path, how):
    data = path.read_bytes()
    if how == GONE:
        path.unlink()
    else:
        path.write_bytes(b"" if how == EMPTY else data[: len(data) // 2])


@pytest.mark.parametrize("version", [0, 2, 3])
@pytest.mark.parametrize("how", [EMPTY, CUT, GONE])
def test_a_torn_entry_is_named_by_table_version_and_file(tmp_path, version, how):
    table = tmp_path / "pipelines" / "p" / "tables" / "changelog"
    for number in range(3):
        Table(table).append(rows(number), transactions={"a": number})
    assert TableCare(table).find_torn() == []
    path = entry_path(table, version)
    tear(path, how)
    if (version, how) == (3, GONE):
        assert TableCare(table).find_torn() == []  # a shorter log is whole: the ledger knows better
        return
    with pytest.raises(TableDamageError, match=r"table changelog is damaged") as found:
        Table(table).require_whole()
    assert f"version {version} ({path}) is {how}" in str(found.value)
    assert "rivertwice admin repair p" in str(found.value)
    assert isinstance(found.value, LedgerError)
    if how == CUT or version == 0:  # what was a raw error of the kernel, with frames
        with pytest.raises(TableDamageError, match="is damaged") as read:
            Table(table).read()
        assert "<unknown>" not in str(read.value)


def test_an_entry_that_a_checkpoint_covers_is_read_by_nobody(tmp_path):
    table = tmp_path / "t"
    for number in range(3):
        Table(table).append(rows(number))
    TableCare(table).sweep()
    entry_path(table, 1).write_bytes(b"")
    assert TableCare(table).find_torn() == []
    assert Table(table).read().num_rows == 3
