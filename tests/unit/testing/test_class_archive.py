"""A training run makes the class archive, and is never a reason to fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from homes.project import settings_with_a_jar
from rivertwice.config import Settings
from rivertwice.setup.class_archive import archive_file
from rivertwice.testing import class_archive
from rivertwice.testing.class_archive import train_archive


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_with_a_jar(tmp_path)


def test_a_training_that_fails_is_told_and_leaves_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Settings, archive: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([str(archive)], 1, "", "trace\nLabError: no broker")

    monkeypatch.setattr(class_archive, "_training", refuse)
    assert train_archive(settings) == "none: LabError: no broker; starts take a few seconds longer"
    assert not archive_file(settings).exists()


def test_a_new_archive_takes_the_place_of_the_old_one(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    old = archive_file(settings).parent / "spark-0000.jsa"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")

    def dump(_: Settings, archive: Path) -> subprocess.CompletedProcess[str]:
        archive.write_bytes(b"x" * 2_000_000)
        return subprocess.CompletedProcess([str(archive)], 0, "", "")

    monkeypatch.setattr(class_archive, "_training", dump)
    assert train_archive(settings) == "2 MB"
    assert train_archive(settings) == "there"
    assert [each.name for each in old.parent.iterdir()] == [archive_file(settings).name]
