from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from homes.savepoint import NOW, add_timeline, make_home, row, write_checkpoint
from rivertwice.core.errors import LedgerError, LostRaceError, RequestError, SavepointError
from rivertwice.savepoint import catalogue
from rivertwice.savepoint import catalogue as hotcopy
from rivertwice.savepoint.catalogue import hot_copy, list_savepoints, load_savepoint
from rivertwice.savepoint.manifest import require_savepoint_id
from rivertwice.savepoint.take import take_savepoint
from rivertwice.savepoint.trim import select_batch, select_surplus
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork


@pytest.mark.proves("guarantees.md#savepoints")
def test_a_savepoint_is_of_the_last_finished_and_committed_batch(tmp_path):
    settings, home = make_home(tmp_path, planned=4, finished=3, committed=2)
    taken = take_savepoint(settings, "p", now=NOW, reason="test")
    manifest = taken.manifest
    assert (manifest.timeline, manifest.batch, taken.status) == ("t1", 2, "taken")
    assert manifest.offsets == {"flights": {"0": 30}}
    assert manifest.watermark_ms == 2000
    assert manifest.pins == {"spark.sql.shuffle.partitions": "2"}
    assert "offsets/2" in manifest.files
    assert "offsets/.2.crc" in manifest.files
    assert not {"offsets/3", "offsets/.3.crc", "commits/3"} & set(manifest.files)
    assert not [path for path in manifest.files if "tmp" in path]
    assert list(home.scratch.iterdir()) == []
    assert list_savepoints(home) == [load_savepoint(home, taken.id)]


def test_a_committed_batch_that_is_not_finished_is_not_in_the_savepoint(tmp_path):
    settings, _ = make_home(tmp_path, planned=5, finished=3, committed=5)
    assert take_savepoint(settings, "p", now=NOW).manifest.batch == 3


def test_a_child_that_has_not_committed_yet_is_saved_at_its_fork(tmp_path):
    settings, home = make_home(tmp_path)
    add_timeline(home, "t2", parent=Fork("t1", 2), first=3)
    write_checkpoint(home, "t2", planned=2, finished=2)
    manifest = take_savepoint(settings, "p", now=NOW).manifest
    assert (manifest.timeline, manifest.batch) == ("t1", 2)
    append_ledger(home, [row(3, "t2")])
    write_checkpoint(home, "t2", planned=3, finished=3)
    manifest = take_savepoint(settings, "p", now=NOW).manifest
    assert (manifest.timeline, manifest.batch) == ("t2", 3)


def test_nothing_committed_is_refused_with_the_remedy(tmp_path):
    settings, home = make_home(tmp_path, planned=0, finished=-1, committed=0)
    with pytest.raises(SavepointError, match="take it after its first batch"):
        take_savepoint(settings, "p", now=NOW)
    assert list_savepoints(home) == []


def test_a_pipeline_that_never_ran_has_nothing_to_save(tmp_path):
    settings, _ = make_home(tmp_path)
    with pytest.raises(SavepointError, match="never ran"):
        take_savepoint(settings, "other", now=NOW)


@pytest.mark.proves("guarantees.md#savepoints")
def test_a_checkpoint_that_contradicts_the_ledger_is_refused(tmp_path):
    settings, home = make_home(tmp_path)
    (home.checkpoint("t1") / "offsets" / "3").write_text("v1\n{}\n{}")
    with pytest.raises(LedgerError, match="offsets/3"):
        take_savepoint(settings, "p", now=NOW)


def test_a_take_that_dies_before_the_manifest_leaves_no_savepoint(tmp_path, monkeypatch):
    settings, home = make_home(tmp_path)
    store = catalogue.savepoint_store(home)
    monkeypatch.setattr(type(store), "put_if_absent", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        take_savepoint(settings, "p", now=NOW)
    assert [path.name for path in home.savepoints.glob("*/taking.json")] == ["taking.json"]
    assert list_savepoints(home) == []


def test_an_id_that_is_taken_is_never_overwritten(tmp_path, monkeypatch):
    settings, home = make_home(tmp_path)
    monkeypatch.setattr("secrets.token_hex", lambda size: "00" * size)
    first = take_savepoint(settings, "p", now=NOW)
    with pytest.raises(LostRaceError):
        take_savepoint(settings, "p", now=NOW, reason="another")
    assert load_savepoint(home, first.id).manifest == first.manifest


def test_takes_at_the_same_time_do_not_disturb_each_other(tmp_path):
    settings, home = make_home(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: take_savepoint(settings, "p", now=NOW), range(4)))
    assert len({savepoint.id for savepoint in taken}) == 4
    assert [savepoint.verify_files() for savepoint in taken] == [taken[0].manifest.size] * 4
    assert list(home.scratch.iterdir()) == []


def test_a_flipped_byte_a_missing_and_an_added_file_are_refused(tmp_path):
    settings, home = make_home(tmp_path)
    for damage, said in (
        (lambda root: (root / "state/0/0/2_aa.changelog").write_text("state of 2"), "SHA-256"),
        (lambda root: (root / "commits/1").unlink(), "commits/1 is missing"),
        (lambda root: (root / "state/0/0/99.zip").write_text("x"), "99.zip is not in the manifest"),
    ):
        taken = take_savepoint(settings, "p", now=NOW)
        assert taken.verify_files() == taken.manifest.size
        damage(home.savepoints / taken.id / "checkpoint")
        with pytest.raises(SavepointError, match=said):
            taken.verify_files()


def test_a_download_of_a_damaged_savepoint_leaves_nothing(tmp_path):
    settings, home = make_home(tmp_path)
    taken = take_savepoint(settings, "p", now=NOW)
    taken.download(home.scratch / "good")
    assert (home.scratch / "good/commits/3").exists()
    (home.savepoints / taken.id / "checkpoint/metadata").write_text('{"id":"r"}')
    with pytest.raises(SavepointError, match="damaged"):
        taken.download(home.scratch / "bad")
    assert [path.name for path in home.scratch.iterdir()] == ["good"]


def test_a_file_that_vanishes_while_copying_is_looked_for_again(tmp_path, monkeypatch):
    _, home = make_home(tmp_path)
    root = home.checkpoint("t1")
    real = shutil.copyfile

    def purging(source, target):
        if source.name == "1_aa.changelog" and source.exists():
            source.rename(source.with_name("1.zip"))  # maintenance replaced it by a snapshot
        return real(source, target)

    monkeypatch.setattr(hotcopy.shutil, "copyfile", purging)
    copy = hot_copy(root, tmp_path / "copy")
    assert copy.vanished == 1
    assert "state/0/0/1.zip" in copy.files
    assert "state/0/0/1_aa.changelog" not in copy.files
    assert (tmp_path / "copy/state/0/0/1.zip").exists()


def test_a_checkpoint_that_purges_faster_than_the_copy_is_refused(tmp_path, monkeypatch):
    _, home = make_home(tmp_path)
    monkeypatch.setattr(hotcopy.shutil, "copyfile", lambda *_: (_ for _ in ()).throw(FileNotFoundError))
    with pytest.raises(SavepointError, match="min_batches_to_retain"):
        hot_copy(home.checkpoint("t1"), tmp_path / "copy")


def test_commits_are_copied_before_offsets_and_offsets_before_state(tmp_path, monkeypatch):
    _, home = make_home(tmp_path)
    order = []
    real = shutil.copyfile
    monkeypatch.setattr(
        hotcopy.shutil, "copyfile", lambda source, target: (order.append(target), real(source, target))[1]
    )
    hot_copy(home.checkpoint("t1"), tmp_path / "copy")
    parts = [path.relative_to(tmp_path / "copy").parts[0] for path in order]
    assert list(dict.fromkeys(parts)) == ["commits", "offsets", "sources", "state", ".metadata.crc", "metadata"]


def test_trimming_removes_offsets_and_commits_after_the_batch_alone():
    paths = [
        "offsets/9",
        "offsets/10",
        "offsets/.11.crc",
        "offsets/11",
        "commits/10",
        "state/0/0/12_a.changelog",
        "metadata",
    ]
    assert select_surplus(paths, 10) == ["offsets/.11.crc", "offsets/11"]
    assert select_surplus(paths, 9) == ["commits/10", "offsets/.11.crc", "offsets/10", "offsets/11"]


def test_a_copy_without_the_offsets_of_its_batch_is_refused():
    with pytest.raises(SavepointError, match="no offsets of \\[4\\]"):
        select_batch(["commits/5", "offsets/5"], {5})
    assert select_batch(["commits/0", "offsets/0"], {0}) == 0


@pytest.mark.parametrize(
    "name", ["", "sp", "../sp-t1-1-00000000", "sp-t1-1-0000000g", "sp-t1-x-00000000", "sp-T1-1-00000000"]
)
def test_what_is_no_savepoint_id_is_refused(name):
    with pytest.raises(RequestError, match="not a valid savepoint id"):
        require_savepoint_id(name)
