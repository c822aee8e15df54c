"""What set-up is asked: an option that it does not have is no wish for everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rivertwice.errors import ServiceError
from rivertwice.setup import __main__ as setup
from rivertwice.setup.steps import run_step


def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """Return the steps that would be done."""
    for name in ("_ensure_java", "_ensure_jars"):
        monkeypatch.setattr(setup, name, lambda *_: "there")
    assert setup.main(list(argv)) == 0
    return [line[len("setup: ") :][:15].strip() for line in capsys.readouterr().out.splitlines()]


def test_each_option_adds_its_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    usual = ["java", "broker jars", "connector jars"]
    assert asked(monkeypatch, capsys) == usual
    assert asked(monkeypatch, capsys, "--dev") == [*usual, "Connect jars"]


def test_the_first_step_that_fails_ends_set_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> str:
        message = "no Java"
        raise ServiceError(message)

    monkeypatch.setattr(setup, "_ensure_java", refuse)
    assert setup.main([]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "setup: java: no Java\n")


def test_a_step_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_step("jars", lambda: "46 jars") == 0
    assert re.fullmatch(r"setup: jars            46 jars \(\d\.\d s\)\n", capsys.readouterr().out)


def test_what_is_no_option_is_refused_and_nothing_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main(["jars"]) == 2
    assert "jars is no option of it, so nothing was done" in capsys.readouterr().err


def test_the_image_asks_for_what_there_is(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not for the example data, which nobody replays in a deployment."""
    dockerfile = (project / "docker" / "Dockerfile").read_text()
    found = re.search(r"python -m rivertwice\.setup(.*?)\\?\n", dockerfile)
    assert found
    assert asked(monkeypatch, capsys, *found[1].split())
    assert "rivertwice.flights" not in dockerfile
