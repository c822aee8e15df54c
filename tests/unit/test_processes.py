"""A process is known by boot, namespaces and ticks; what cannot be judged here is not guessed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rivertwice.core import processes
from rivertwice.core.locks import open_locked
from rivertwice.core.processes import (
    NEVER_SEEN,
    Life,
    is_alive,
    look,
    may_live,
    own_start,
    same_start,
    started_of,
    stop_on_signals,
)

ME = os.getpid()
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="names by ticks are Linux's")


@pytest.fixture
def no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    processes._place.cache_clear()
    yield
    processes._place.cache_clear()


def test_a_process_is_itself_and_no_other_start_of_the_same_id() -> None:
    assert look(ME, own_start()) is Life.ALIVE
    assert own_start() == started_of(ME)
    assert started_of(2**22 + 1) is None
    assert look(2**22 + 1, own_start()) is Life.GONE
    assert look(None, own_start()) is look(ME, None) is look(ME, NEVER_SEEN) is Life.GONE


@needs_proc
def test_another_tick_is_another_process_and_another_boot_is_unknown() -> None:
    boot, spaces, ticks = str(own_start()).split("/")
    assert look(ME, f"{boot}/{spaces}/{int(ticks) + 1}") is Life.GONE
    elsewhere = f"{boot}/7.{spaces}/{ticks}"
    earlier = f"{'0' * 8}{boot[8:]}/{spaces}/{ticks}"
    for unsure in (elsewhere, earlier, "no name", psutil.Process().create_time() + 2):
        assert look(ME, unsure) is Life.UNSURE
        assert not is_alive(ME, unsure)
    assert may_live(ME, elsewhere)
    assert may_live(ME, own_start())
    assert not may_live(ME, earlier)
    assert not may_live(ME, psutil.Process().create_time() + 2)


def test_a_lock_decides_where_the_record_cannot(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    unsure = psutil.Process().create_time() + 2
    assert not is_alive(ME, unsure, lock=lock)
    file = open_locked(lock)
    assert file is not None
    with file:
        assert is_alive(ME, unsure, lock=lock)
        assert not is_alive(2**22 + 1, own_start(), lock=lock), "what is known to be gone is gone"
    assert not is_alive(ME, unsure, lock=lock)


def test_a_zombie_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        started = started_of(child.pid)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert started is None or look(child.pid, started) is Life.GONE
        assert started_of(child.pid) is None


@pytest.mark.usefixtures("no_proc")
def test_without_proc_the_creation_time_is_the_name() -> None:
    started = own_start()
    assert isinstance(started, float)
    assert look(ME, started) is Life.ALIVE
    assert look(2**22 + 1, started) is Life.GONE
    assert look(ME, "0f/1.1/3") is Life.UNSURE
    assert not may_live(ME, "0f/1.1/3")


def test_two_readings_of_a_creation_time_are_one_start() -> None:
    assert same_start(10.0, 10.4)
    assert not same_start(10.0, 12.0)
    assert same_start("a/1/2", "a/1/2")
    assert not same_start("a/1/2", "a/1/3")
    assert not same_start("a/1/2", 2.0)


def test_sigterm_sets_the_event_that_ends_a_service_in_its_own_time() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        stop = stop_on_signals()
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
