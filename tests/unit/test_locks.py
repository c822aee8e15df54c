"""One process at a time has a lock: others wait, go on without it, or are refused and hear who has it."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rivertwice.core import locks
from rivertwice.core.errors import LostRaceError
from rivertwice.core.locks import holder, is_locked, lock, lock_if_free, lock_or_refuse, open_locked


def test_a_lock_is_given_back_with_its_block(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "lock"
    assert not is_locked(path)
    with lock(path):
        assert is_locked(path)
        with lock_if_free(path) as held:
            assert not held
        assert open_locked(path) is None
    assert not is_locked(path)
    with lock_if_free(path) as held:
        assert held
        assert is_locked(path)
    assert not is_locked(path)


def test_a_lock_is_given_back_when_its_block_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lock(tmp_path / "lock"):
        raise KeyError
    assert not is_locked(tmp_path / "lock")


def test_a_kept_lock_is_given_back_when_its_file_is_closed(tmp_path: Path) -> None:
    file = open_locked(tmp_path / "lock")
    assert file is not None
    assert is_locked(tmp_path / "lock")
    file.close()
    assert not is_locked(tmp_path / "lock")


def test_a_folder_is_locked_without_a_file(tmp_path: Path) -> None:
    with lock(tmp_path), lock_if_free(tmp_path) as held:
        assert not held
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_free_in_time_is_taken(tmp_path: Path) -> None:
    file = open_locked(tmp_path / "lock")
    assert file is not None
    soon = threading.Timer(0.1, file.close)
    soon.start()
    with lock_if_free(tmp_path / "lock", patience_s=30) as held:
        assert held
    soon.join()


def test_who_is_refused_hears_who_has_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kernel = tmp_path / "lock", tmp_path / "kernel"
    monkeypatch.setattr(locks, "_KERNEL_LOCKS", kernel)

    def asked() -> AbstractContextManager[None]:
        return lock_or_refuse(path, lambda who: LostRaceError(f"{who} has it"))

    with lock(path):
        with pytest.raises(LostRaceError, match="another process has it"), asked():
            pytest.fail("the lock is taken")
        kernel.write_text(
            f"1: POSIX  ADVISORY  WRITE 7 08:01:{path.stat().st_ino} 0 EOF\n"
            f"2: FLOCK  ADVISORY  WRITE 4711 08:01:{path.stat().st_ino} 0 EOF\n"
            "3: FLOCK  ADVISORY  WRITE 8 08:01:1 0 EOF\n"
        )
        with pytest.raises(LostRaceError, match="process 4711 has it"), asked():
            pytest.fail("the lock is taken")
    with asked():
        assert is_locked(path)


def test_an_unseen_holder_is_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kernel = tmp_path / "lock", tmp_path / "kernel"
    monkeypatch.setattr(locks, "_KERNEL_LOCKS", kernel)
    path.touch()
    for pid in ("0", "-1"):  # of another container; of an open file that several processes have
        kernel.write_text(f"1: FLOCK  ADVISORY  WRITE {pid} 08:01:{path.stat().st_ino} 0 EOF\n")
        assert holder(path) == "another process"
    assert holder(tmp_path / "absent") == "another process"


def test_the_mode_of_a_new_lock_file_is_as_asked(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with lock(tmp_path / "private", mode=0o600), lock(tmp_path / "usual"):
            assert oct((tmp_path / "private").stat().st_mode & 0o777) == "0o600"
            assert oct((tmp_path / "usual").stat().st_mode & 0o777) == "0o644"
    finally:
        os.umask(before)
