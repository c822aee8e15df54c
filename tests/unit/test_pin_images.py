"""Images are pinned by what the registry says, never by a guess; a failed look-up writes nothing."""

from __future__ import annotations

import importlib.util
import shutil
import stat
from pathlib import Path
from types import ModuleType

import pytest

from homes.project import REPOSITORY

DIGEST = "sha256:" + "ab" * 32


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pin_images", REPOSITORY / "scripts" / "pin_images.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PIN = load()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in PIN.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def fake_docker(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_every_image_of_others_gets_its_digest_and_is_checked(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_docker(tmp_path, monkeypatch, f"echo {DIGEST}")
    assert PIN.main([], project) == 0
    assert PIN.main(["--check"], project) == 0
    compose = (project / "docker-compose.yml").read_text()
    assert f"image: apache/kafka:4.3.1@{DIGEST}" in compose
    assert "image: rivertwice:0.1.0\n" in compose
    assert f"FROM python:3.11.13-slim-bookworm@{DIGEST}\n" in (project / "docker" / "Dockerfile").read_text()
    assert "pinned: docker-compose.yml" in capsys.readouterr().out


def test_an_image_without_a_digest_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "docker-compose.yml").write_text("services:\n  a:\n    image: postgres:17.6-bookworm # a word\n")
    assert PIN.main(["--check"], project) == 1
    assert "not pinned by digest: docker-compose.yml: postgres:17.6-bookworm\n" in capsys.readouterr().out


@pytest.mark.parametrize("script", ["echo no such host >&2; exit 1", "echo latest"])
def test_a_look_up_that_fails_writes_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str
) -> None:
    before = {name: (project / name).read_text() for name in PIN.FILES}
    fake_docker(tmp_path, monkeypatch, script)
    assert PIN.main([], project) == 1
    assert {name: (project / name).read_text() for name in PIN.FILES} == before
    assert "nothing was written" in capsys.readouterr().err
