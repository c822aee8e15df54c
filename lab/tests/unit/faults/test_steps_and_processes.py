"""What a step looks like on disk, how a whole process group dies, and what the proxy does to bytes."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lab.faults.processes import end_group, group_members, signal_group, start_process, strike_when
from lab.faults.proxy import CLEAR, FaultProxy, Weather
from lab.faults.steps import DeltaLog, Steps
from rivertwice.storage.table import Table

ROWS = pa.table({"k": ["a"]})


def test_steps_are_seen_as_their_files_appear(tmp_path: Path) -> None:
    checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"
    steps = Steps(checkpoint, table, "lab#t1")
    assert not any((steps.planned(0), steps.in_state(0), steps.published(0), steps.finished(0), steps.files_written(0)))
    assert (steps.last_planned(), steps.last_finished(), steps.versions()) == (-1, -1, 0)
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text('v1\n{}\n{"t":{"0":3,"1":4}}')
    assert steps.planned(0)
    (checkpoint / "state" / "0" / "1").mkdir(parents=True)
    (checkpoint / "state" / "0" / "1" / "1_ab.changelog").write_text("")
    assert steps.in_state(0)
    assert not steps.in_state(1)
    table.mkdir()
    (table / "part-0.parquet").write_bytes(b"")
    assert steps.files_written(0)
    assert not Steps(checkpoint, table).files_written(0)  # what lay there before is not news
    Table(table).append(ROWS, transactions={"lab#t1": 0})
    assert steps.published(0)
    assert not steps.idle(7)
    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "0").write_text("")
    assert steps.finished(0)
    assert steps.idle(7)
    assert not steps.idle(8)


def test_commits_without_a_batch_number_count_from_the_batchs_planning(tmp_path: Path) -> None:
    checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"
    Table(table).append(ROWS)
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "4").write_text("")
    steps = Steps(checkpoint, table)
    assert not steps.published(4)
    Table(table).append(ROWS)
    assert steps.published(4)
    assert not DeltaLog(table).loose_files()


SLEEPER = (
    sys.executable,
    "-c",
    "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print(1); time.sleep(60)",
)


def test_a_strike_ends_the_whole_group_at_the_moment_and_not_before(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start_process(SLEEPER, log=log, env={"PYTHONUNBUFFERED": "1", "PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    assert strike_when(process, lambda: bool(group_members(process.pid)))
    assert process.returncode == -signal.SIGKILL
    end_group(process)
    assert group_members(process.pid) == []
    assert not signal_group(process, signal.SIGKILL)
    assert not strike_when(process, lambda: True)  # it ended before


def test_a_moment_that_does_not_come_is_told(tmp_path: Path) -> None:
    process = start_process(SLEEPER, log=tmp_path / "log", env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    with pytest.raises(TimeoutError, match="did not reach the moment"):
        strike_when(process, lambda: False, patience_s=0.05)
    end_group(process)


@pytest.fixture
def echo_port() -> Iterator[int]:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client, contextlib.suppress(ConnectionResetError):
                while data := client.recv(1000):
                    client.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield int(server.getsockname()[1])
    server.close()


def echoed(port: int, data: bytes, patience_s: float = 5.0) -> bytes:
    with socket.create_connection(("127.0.0.1", port), patience_s) as client:
        client.sendall(data)
        found = b""
        while len(found) < len(data):
            piece = client.recv(1000)
            if not piece:
                break
            found += piece
        return found


def test_the_proxy_passes_on_slices_refuses_keeps_silent_and_resets(echo_port: int) -> None:
    with FaultProxy(echo_port) as proxy:
        assert echoed(proxy.port, b"hello") == b"hello"
        proxy.weather = Weather(slice_bytes=1, latency_s=0.001)
        assert echoed(proxy.port, b"sliced") == b"sliced"
        proxy.weather = Weather(silent=True)
        with pytest.raises(TimeoutError):
            echoed(proxy.port, b"nobody", patience_s=0.2)
        proxy.weather = Weather(refuse=True)
        with pytest.raises(OSError):  # noqa: PT011 (reset or closed, as the system likes)
            assert echoed(proxy.port, b"no") == b"no" or _fail()
        proxy.weather = CLEAR
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as client:
            client.sendall(b"x")
            assert client.recv(10) == b"x"
            assert proxy.reset() >= 1
            with pytest.raises(ConnectionResetError):
                client.recv(10)
        assert proxy.connections == 5


def _fail() -> bool:
    raise ConnectionResetError
