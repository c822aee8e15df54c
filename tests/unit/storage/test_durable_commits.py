"""A commit is on the disk before `append` returns, and a torn entry of the log is named, not read as nothing."""

from __future__ import annotations

import os
import re

import pyarrow as pa
import pytest

from rivertwice.core.errors import LedgerError, TableDamageError
from rivertwice.storage import delta, local
from rivertwice.storage.delta_log import CUT, EMPTY, GONE, entry_path, find_torn
from rivertwice.storage.table_upkeep import compact, sweep


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
    delta.append(table, rows(0), transactions={"a": 0}, partition_by=["_day"])
    first = told(synced, tmp_path)
    assert first[:3] == [
        "/tables/changelog/_day=d/DATA",
        "/tables/changelog/_day=d",
        "/tables/changelog/_delta_log/00001.json",
    ]
    assert {"/tables/changelog/_delta_log/00000.json", "/tables", "/"} <= set(first)
    assert first[-2:] == ["/tables/changelog/_delta_log", "/tables/changelog"]
    synced.clear()
    delta.append(table, rows(1), transactions={"a": 1})
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
        delta.append(table, rows(number))
    for act in (
        lambda: compact(table),
        lambda: delta.replace_rows(table, rows(9)),
        lambda: delta.overwrite(table, rows(8)),
    ):
        synced.clear()
        act()
        assert told(synced, tmp_path)[0] == "/t/DATA"
    synced.clear()
    sweep(table)
    assert any(name.endswith("checkpoint.parquet") for name in told(synced, tmp_path))


def test_the_setting_turns_it_off(tmp_path, synced, monkeypatch):
    monkeypatch.setenv(local.VARIABLE, "off")
    delta.append(tmp_path / "t", rows(0), transactions={"a": 0})
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
        delta.append(table, rows(number), transactions={"a": number})
    assert find_torn(table) == []
    path = entry_path(table, version)
    tear(path, how)
    if (version, how) == (3, GONE):
        assert find_torn(table) == []  # a shorter log is whole: the ledger knows better
        return
    with pytest.raises(TableDamageError, match=r"table changelog is damaged") as found:
        delta.require_whole(table)
    assert f"version {version} ({path}) is {how}" in str(found.value)
    assert "rivertwice repair p" in str(found.value)
    assert isinstance(found.value, LedgerError)
    if how == CUT or version == 0:  # what was a raw error of the kernel, with frames
        with pytest.raises(TableDamageError, match="is damaged") as read:
            delta.read(table)
        assert "<unknown>" not in str(read.value)


def test_an_entry_that_a_checkpoint_covers_is_read_by_nobody(tmp_path):
    table = tmp_path / "t"
    for number in range(3):
        delta.append(table, rows(number))
    sweep(table)
    entry_path(table, 1).write_bytes(b"")
    assert find_torn(table) == []
    assert delta.read(table).num_rows == 3
