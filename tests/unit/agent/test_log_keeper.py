"""Logs stay small while a process of its own writes into them, and only their owner reads them."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rivertwice.agent import act
from rivertwice.agent.act import record_event, start_driver
from rivertwice.agent.backoff import FailureClass
from rivertwice.agent.keeper import LogKeeper
from rivertwice.agent.memory import DriverRef
from rivertwice.agent.observe import _end_of
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.storage import log_files
from rivertwice.storage.log_files import LogFile
from running.waiting import wait_for

LIMIT = 50_000
CHATTER = """
import os, subprocess, sys
WRITE = '''
import os
n = 0
while n < 2_000 or not os.path.exists("enough"):
    print(f"WHO {n:07d}", flush=True)
    n += 1
'''
process = subprocess.Popen([sys.executable, "-c", WRITE.replace("WHO", "child")])  # as the JVM: it inherits the file
exec(WRITE.replace("WHO", "driver"))
process.wait()
print("OutOfMemoryError, the last words", flush=True)
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(act, "DRIVER", (sys.executable, "-c", CHATTER))
    monkeypatch.setattr(act, "java_env", lambda _: {})
    found = Settings(project=tmp_path / "project", home=tmp_path / "home")
    found.project.mkdir()
    return found


def start(settings: Settings) -> tuple[DriverRef, subprocess.Popen[bytes]]:
    return start_driver(settings, "p", utc_now())


def test_a_drivers_log_is_rotated_while_it_writes_and_keeps_its_end(settings: Settings) -> None:
    keeper = LogKeeper(settings, stop=threading.Event(), limit=LIMIT)
    driver, child = start(settings)
    rotated = 0
    while child.poll() is None:
        rotated += len(keeper.look())
        if rotated >= 4:
            (settings.project / "enough").touch()
    logs = settings.pipeline("p").logs
    assert sorted(path.name for path in logs.iterdir()) == [
        "driver.log",
        "driver.log.1",
        "driver.log.2",
        "driver.log.3",
    ]
    assert {path.stat().st_mode & 0o777 for path in logs.iterdir()} == {0o600}
    kept = b"".join(
        (logs / name).read_bytes() for name in ("driver.log.3", "driver.log.2", "driver.log.1", "driver.log")
    )
    assert b"\0" not in kept  # a writer that did not append would leave a hole
    for who in (b"driver", b"child"):  # a line that was being written in the instant of a cut may lack a part
        numbers = [int(number) for number in re.findall(rb"^" + who + rb" (\d{7})$", kept, re.M)]
        assert numbers == sorted(numbers)
        assert len(numbers) > LIMIT // 100
    assert kept.endswith(b"OutOfMemoryError, the last words\n")
    assert _end_of(settings.pipeline("p"), driver, 1).failure is FailureClass.OUT_OF_MEMORY


def test_why_a_driver_ended_is_found_in_a_rotated_log(settings: Settings) -> None:
    (settings.project / "enough").touch()
    driver, child = start(settings)
    wait_for("the end of the child", lambda: child.poll() is not None, 60, every=0.05)
    log = settings.pipeline("p").logs / "driver.log"
    assert LogFile(log).rotate(limit=10)
    assert log.read_bytes() == b""
    assert _end_of(settings.pipeline("p"), driver, 1).failure is FailureClass.OUT_OF_MEMORY


def test_logs_of_an_earlier_version_become_readable_by_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "agent" / "log"
    path.parent.mkdir()
    path.write_text("old\n")
    path.chmod(0o644)
    with LogFile(path).open() as log:
        log.write(b"new\n")
    assert (path.stat().st_mode & 0o777, path.read_text()) == (0o600, "old\nnew\n")


def test_a_disk_without_room_for_the_copy_leaves_the_log_and_is_said_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log = settings.home / "agent" / "log"
    log.parent.mkdir(parents=True)
    log.write_text("x" * 100)
    keeper = LogKeeper(settings, stop=threading.Event(), limit=10)
    monkeypatch.setattr(log_files.shutil, "copyfileobj", full)
    assert keeper.look() == keeper.look() == []
    assert log.read_text() == "x" * 100
    assert [path.name for path in log.parent.iterdir()] == ["log"]
    assert caplog.text.count("cannot be rotated (No space left on device)") == 1


def test_events_are_rotated_and_the_newest_are_shown(settings: Settings) -> None:
    from click.testing import CliRunner

    from rivertwice.cli.main import cli

    keeper = LogKeeper(settings, stop=threading.Event(), limit=10)
    for number in range(3):
        record_event(settings, "start", "p", f"event {number}", utc_now())
        if number == 1:
            keeper.look()
    shown = CliRunner().invoke(cli, ["--home", str(settings.home), "agent", "events"])
    assert [f"event {number}" in shown.output for number in range(3)] == [True, True, True]


def test_a_tail_goes_on_into_the_log_that_was_rotated_away(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    assert LogFile(path).tail(5) == b""
    path.with_name("driver.log.1").write_bytes(b"abcdef")
    path.write_bytes(b"gh")
    assert LogFile(path).tail(5) == b"defgh"
    assert LogFile(path).tail(2) == b"gh"
