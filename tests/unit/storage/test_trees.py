"""What lies below a folder in which somebody else works: folders and files may vanish at any moment."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rivertwice.agent.metrics import sizes_below
from rivertwice.storage import blobs
from rivertwice.storage.blobs import files_below


def test_every_file_and_its_size(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "one").write_bytes(b"123")
    (tmp_path / "two").write_bytes(b"")
    assert sorted(files_below(tmp_path)) == [tmp_path / "a" / "b" / "one", tmp_path / "two"]
    assert sizes_below(tmp_path) == {Path("a/b/one"): 3, Path("two"): 0}
    assert list(files_below(tmp_path / "absent")) == []


def test_what_vanishes_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"1")
    found = files_below(tmp_path)
    first = next(found)
    for name in "abc":
        if tmp_path / name != first.parent:
            shutil.rmtree(tmp_path / name)
    assert list(found) == []
    real = os.walk
    monkeypatch.setattr(blobs.os, "walk", lambda folder: [*real(folder), (str(tmp_path), [], ["gone"])])
    assert sizes_below(tmp_path) == {first.relative_to(tmp_path): 1}
