"""A copy of a home, a clone of its disk and a mount on another host are other homes; a restart of a process is the same one."""

from __future__ import annotations

import logging
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rivertwice.core.errors import LeaseLostError
from rivertwice.core.settings import Settings
from rivertwice.storage import home_identity
from rivertwice.storage.home_identity import home_id
from rivertwice.storage.lease_terms import Terms
from rivertwice.storage.local import put_json_if_absent, read_json
from rivertwice.stream.lease import acquire_lease

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUICK = Terms(renew_s=0.25, missed=8)


def linked(source: Path, target: Path) -> None:
    """Copy a folder so that every file has the number it had, as on a clone of the disk; the lock alone is another file."""
    shutil.copytree(source, target, copy_function=os.link)
    for lock in target.rglob("lock"):
        lock.unlink()


@pytest.mark.proves("howto-deploy.md#the-lease")
def test_a_home_is_the_same_from_look_to_look_and_a_copy_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = home_id(tmp_path / "a")
    assert home_id(tmp_path / "a") == first
    for copy in (shutil.copytree, linked):
        target = tmp_path / copy.__name__
        copy(tmp_path / "a", target)
        with caplog.at_level(logging.WARNING):
            assert home_id(target) != first
        assert "was copied or moved here" in caplog.text
        assert "run each pipeline in one of them only" in caplog.text
        caplog.clear()
        assert home_id(target) == home_id(target)
        assert caplog.text == "", "said once"
    assert home_id(tmp_path / "a") == first


def test_a_home_that_is_renamed_on_its_disk_is_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = home_id(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert home_id(tmp_path / "b") == first
    assert caplog.text == ""


def test_another_boot_is_another_home_and_so_is_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = home_id(tmp_path / "a")
    with monkeypatch.context() as patched:
        patched.setattr(home_identity, "boot_id", lambda: "of a clone")
        assert home_id(tmp_path / "a") != first
    assert home_id(tmp_path / "a") == first
    (tmp_path / "machine-id").write_text("another")
    monkeypatch.setattr(home_identity, "_MACHINE", tmp_path / "machine-id")
    assert home_id(tmp_path / "a") != first


def test_what_0_1_recorded_is_read_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put_json_if_absent(tmp_path / "home.json", {"format": 1, "home": "00" * 8})
    assert home_id(tmp_path) == home_id(tmp_path)
    assert (read_json(tmp_path / "home.json") or {})["format"] == 2
    assert caplog.text == ""


@pytest.mark.proves("failure-modes.md#a-lease-in-a-store", "howto-deploy.md#the-lease")
def test_a_driver_in_a_cloned_home_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    here = Settings(project=tmp_path, home=tmp_path / "here", shared=shared).pipeline("p")
    there = Settings(project=tmp_path, home=tmp_path / "there", shared=shared).pipeline("p")
    lease = acquire_lease(here, "t1", NOW, terms=QUICK)
    linked(tmp_path / "here", tmp_path / "there")
    with pytest.raises(LeaseLostError, match="renews it"):
        acquire_lease(there, "t1", NOW, terms=QUICK)
    lease.check()
    lease.release()
    acquire_lease(there, "t1", NOW, terms=QUICK).release()
