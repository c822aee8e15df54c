"""What set-up is asked: an option that it does not have is no wish for everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rivertwice.setup import __main__ as setup


def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """Return the steps that would be done."""
    for name in ("_ensure_java", "_ensure_jars", "_ensure_data", "train_archive", "build_versitygw"):
        monkeypatch.setattr(setup, name, lambda *_: "there")
    assert setup.main(list(argv)) == 0
    return [line[len("setup: ") :][:15].strip() for line in capsys.readouterr().out.splitlines()]


def test_each_option_adds_or_leaves_out_its_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = asked(monkeypatch, capsys)
    in_a_row = [step for step in usual if step != "data"]  # data is fetched beside them
    assert in_a_row == ["java", "broker jars", "connector jars", "class archive"]
    assert sorted(usual) == sorted([*in_a_row, "data"])
    assert sorted(asked(monkeypatch, capsys, "--dev")) == sorted([*usual, "Connect jars", "S3 server"])
    assert asked(monkeypatch, capsys, "--no-data") == in_a_row


def test_what_is_no_option_is_refused_and_nothing_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main(["jars"]) == 2
    assert "jars is no option of it, so nothing was done" in capsys.readouterr().err


def test_the_image_asks_for_what_there_is(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"python -m rivertwice\.setup(.*?)\\?\n", (project / "docker" / "Dockerfile").read_text())
    assert found
    assert "data" not in asked(monkeypatch, capsys, *found[1].split())
