"""logs shows the end of a log, and goes on with it across rotation, removal and restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from homes.project import REPOSITORY
from rivertwice.cli.main import cli
from rivertwice.storage.log_files import LogFile

P = "flight_delays"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "pipelines" / P / "logs" / "driver.log"
    path.parent.mkdir(parents=True)
    return path


def run(tmp_path: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["logs", *words, "--project", str(REPOSITORY), "--home", str(tmp_path / "home")])


def test_the_last_lines_are_shown_also_those_that_were_rotated(tmp_path: Path, log: Path) -> None:
    log.write_text("".join(f"line {number}\n" for number in range(5000)))
    assert run(tmp_path, P, "--lines", "2").stdout == "line 4998\nline 4999\n"
    assert LogFile(log).rotate(limit=10)
    with log.open("a") as file:
        file.write("line 5000\n")
    assert run(tmp_path, P, "--lines", "2").stdout == "line 4999\nline 5000\n"
    assert len(run(tmp_path, P).stdout.splitlines()) == 100
    assert len(run(tmp_path, P, "--lines", "9999").stdout.splitlines()) == 5001
    value = json.loads(run(tmp_path, P, "--lines", "1", "-o", "json").stdout)
    assert value == {"file": str(log), "lines": ["line 5000"]}


def test_since_begins_at_the_first_line_of_that_time(tmp_path: Path, log: Path) -> None:
    at = datetime(2026, 11, 27, 3, tzinfo=UTC)
    stamped = [
        f"{(at + timedelta(minutes=number)).astimezone():%Y-%m-%d %H:%M:%S},123 INFO x: {number}\n  more of it\n"
        for number in range(5)
    ]
    log.write_text("".join(stamped))
    shown = run(tmp_path, P, "--since", "2026-11-27T03:03:00Z").stdout
    assert shown == "".join(stamped[3:])
    assert run(tmp_path, P, "--since", "2026-11-28").stdout.strip() == ""


def test_control_characters_of_a_log_are_written_out(tmp_path: Path, log: Path) -> None:
    log.write_text("\x1b[31mred\n")
    assert run(tmp_path, P).stdout == "\\x1b[31mred\n"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ((P,), f"`rivertwice start {P}` starts a driver"),
        ((P, "--of", "restore"), f"no restore of {P} has run here"),
        (("--agent",), "`rivertwice agent start` starts one"),
        (("--broker",), "`rivertwice up` starts it"),
        (("--airflow", "scheduler"), "`rivertwice up --airflow` starts Airflow"),
        (("nosuch",), "there are: flight_delays"),
    ],
)
def test_a_log_that_is_not_there_is_refused_with_the_remedy(
    tmp_path: Path, words: tuple[str, ...], remedy: str
) -> None:
    result = run(tmp_path, *words)
    assert result.exit_code == 1
    assert remedy in result.stderr


@pytest.mark.parametrize("words", [(), (P, "--agent"), (P, "-f", "-o", "json")])
def test_words_that_name_no_single_log_are_not_understood(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run(tmp_path, *words).exit_code == 2


def test_what_is_appended_is_followed_across_rotation_and_removal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n")

    def steps() -> Iterator[bool]:
        with path.open("ab", buffering=0) as writer:
            writer.write(b"one\n")
            yield True
            writer.write(b"two\n")  # not read before the rotation
            LogFile(path).rotate(limit=1)
            writer.write(b"3\n")
            yield True
        path.unlink()
        yield True
        path.write_bytes(b"4\n")  # a new driver began
        yield True
        yield False

    step = steps()
    assert b"".join(LogFile(path).follow(4, lambda: next(step))) == b"one\ntwo\n3\n4\n"


def test_a_terminal_that_follows_ends_well_when_it_is_interrupted(tmp_path: Path, log: Path) -> None:
    log.write_text("first\n")
    places = ["--project", str(REPOSITORY), "--home", str(tmp_path / "home")]
    child = subprocess.Popen(
        [sys.executable, "-u", "-m", "rivertwice.cli.main", "logs", P, "-f", *places],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a run in the background ignores it
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "first\n"
    with log.open("a") as file:
        file.write("second\n")
    assert child.stdout.readline() == "second\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == 0
