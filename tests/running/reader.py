"""Somebody who reads a page of the site in an empty folder, and runs its blocks with nothing but the installed package.

The environment has the wheel of this clone. Its dependencies are those of the tests' environment. Java and jars are those of the clone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from homes.project import REPOSITORY

DOCS_URL, REPOSITORY_URL = "RIVERTWICE_DOCS_URL", "RIVERTWICE_REPOSITORY_URL"
UV = REPOSITORY / ".build" / "tools" / "bin" / "uv"


class Reader:
    """Somebody in an empty folder, with nothing but the installed package."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.venv = folder / "own", folder / "venv"
        self.folder.mkdir()
        (folder / "home").mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RIVERTWICE", "PYTHON"))}
        self.env = {
            **inherited,
            "PATH": f"{self.venv / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "RIVERTWICE_DOWNLOADS": str(REPOSITORY / ".build"),
        }

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", command], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=600, check=False
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


def build_wheel(folder: Path, addresses: dict[str, str] | None = None) -> Path:
    known = {name: value for name, value in os.environ.items() if name not in (DOCS_URL, REPOSITORY_URL)}
    built = subprocess.run(
        [str(UV), "build", "-q", "--wheel", "--out-dir", str(folder), str(REPOSITORY)],
        env={**known, **(addresses or {})}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


@contextmanager
def reader_with(wheel: Path, folder: Path) -> Iterator[Reader]:
    """Give a reader who has installed the wheel; at the end what runs is taken down and the folder removed."""
    reader = Reader(folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(reader.venv)], check=True)
    python = reader.venv / "bin" / "python"
    subprocess.run([str(UV), "pip", "install", "-q", "--no-deps", "--python", str(python), str(wheel)], check=True)
    (packages,) = reader.venv.glob("lib/python*/site-packages")
    (packages / "of_the_tests.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    try:
        yield reader
    finally:
        reader.run("rivertwice down")
        shutil.rmtree(reader.folder)


def words(text: str) -> list[str]:
    """Return the words of a line, without what separates columns."""
    return re.sub(r"[\s─]+", " ", text).split()


def not_printed(shown: str, printed: str) -> list[str]:
    """Return the lines that a page shows and the command did not print; `...` stands for lines that the page leaves out."""
    lines = [words(line) for line in printed.splitlines()]
    return [line for line in shown.splitlines() if line.strip() != "..." and words(line) not in lines]
