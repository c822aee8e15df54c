"""Work that knows how much there is shows a bar at a terminal, and says the time that is left elsewhere."""

from __future__ import annotations

import os
import pickle
import pty
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from rivertwice.cli import frame
from rivertwice.cli import frame as bars
from rivertwice.cli.frame import Bars, Frame, FriendlyGroup, Pace, pass_frame, time_text
from rivertwice.core.errors import ServiceError
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Measured


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (89, "89 s"), (100, "2 min"), (5000, "83 min"), (11100, "3 h 5 min")]
)
def test_a_time_left_is_said_in_one_unit_or_two(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_the_time_left_follows_the_pace_since_this_process_began() -> None:
    pace = Pace(at=100.0, done=40)
    assert pace.left_s(Measured("", "w", 40, 100), 150.0) is None  # nothing was done yet
    assert pace.left_s(Measured("", "w", 41, 100), 100.5) is None  # too early to say
    assert pace.left_s(Measured("", "w", 60, 100), 110.0) == 20.0


def test_lines_of_measured_work_say_the_time_left() -> None:
    now = [0.0]
    shown = Bars(clock=lambda: now[0])
    texts = []
    for done in (0, 25, 50, 100):
        texts.append(shown.text(Measured(f"{done} of 100", "w", done, 100)))
        now[0] += 10.0
    assert texts == ["0 of 100", "25 of 100; about 30 s left", "50 of 100; about 20 s left", "100 of 100"]


def test_a_measured_line_is_a_line_for_whoever_takes_lines() -> None:
    line = Measured("3 of 7", "w", 9, 7)
    assert (line, line.done, line.total) == ("3 of 7", 7, 7)
    again = pickle.loads(pickle.dumps(line))
    assert (again, again.what, again.done) == ("3 of 7", "w", 7)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets stderr be a terminal, and returns one that reads what was written to it."""
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w", buffering=1)
    monkeypatch.setattr(bars, "BARS", fresh := Bars())
    monkeypatch.setattr(frame, "BARS", fresh)
    monkeypatch.setenv("TERM", "xterm")

    def written() -> str:
        stream.flush()
        os.set_blocking(ours, False)
        text = b""
        try:
            while part := os.read(ours, 65_536):
                text += part
        except BlockingIOError:
            pass
        return text.decode()

    def attach() -> Any:
        monkeypatch.setattr(sys, "stderr", stream)  # here: pytest sets its own before each phase of a test
        return written

    yield attach
    fresh.stop()
    stream.close()
    os.close(ours)


def test_at_a_terminal_it_is_a_bar_that_goes_away(terminal: Any, tmp_path: Path) -> None:
    written = terminal()
    own = Frame(Settings(tmp_path, tmp_path / "home"), "text", False)
    own.progress(Measured("3 of 10 batches", "replay", 3, 10))
    own.progress("a line between")
    own.progress(Measured("10 of 10 batches", "replay", 10, 10))
    shown = written()
    assert "3 of 10 batches" in shown
    assert "30%" in shown
    assert "\x1b[" in shown
    assert "a line between" in shown
    assert shown.count("\x1b[?25h") >= shown.count("\x1b[?25l") > 0  # the cursor is shown again


def test_json_debug_and_pipes_get_lines(terminal: Any, tmp_path: Path) -> None:
    written = terminal()
    for output, debug in (("json", False), ("text", True)):
        Frame(Settings(tmp_path, tmp_path / "home"), output, debug).progress(Measured("3 of 10", "replay", 3, 10))
    shown = written()
    assert shown.splitlines() == ["  3 of 10", "  3 of 10"]


def test_a_command_that_fails_leaves_no_bar_behind(terminal: Any, tmp_path: Path) -> None:
    @click.group(cls=FriendlyGroup)
    @click.pass_context
    def root(ctx: click.Context) -> None:
        ctx.obj = Frame(Settings(tmp_path, tmp_path / "home"), "text", False)

    @root.command()
    @pass_frame
    def work(own: Frame) -> None:
        own.progress(Measured("3 of 10", "replay", 3, 10))
        message = "the broker is gone; `rivertwice up`"
        raise ServiceError(message)

    written = terminal()
    with pytest.raises(SystemExit) as ended:
        root.main(["work"])
    assert ended.value.code == 1
    shown = written()
    assert shown.count("\x1b[?25h") >= shown.count("\x1b[?25l") > 0
    assert shown.splitlines()[-1].endswith("rivertwice: the broker is gone; `rivertwice up`")


def test_no_color_leaves_the_bar_without_colours(
    terminal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    written = terminal()
    own = Frame(Settings(tmp_path, tmp_path / "home"), "text", False)
    own.progress(Measured("3 of 10", "replay", 3, 10))
    bars.BARS.stop()
    shown = written()
    assert "3 of 10" in shown
    assert "\x1b[3" not in shown.replace("\x1b[3 q", "")  # no foreground colour
