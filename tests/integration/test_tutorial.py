"""The tutorial's blocks, copied from the page of the built site, as somebody has it who installed the package: a wheel, an empty
folder, a home of its own. `RIVERTWICE_TUTORIAL_REPORT=FILE` gets the minutes from the first block to the first verdict.

The environment has the wheel of this clone. Its dependencies are those of the tests' environment, which the second test installs from
the registry instead. Java and jars are those of the clone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from homes.project import REPOSITORY
from running.site import Block, Page, build_site
from running.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
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

    def has_read(self, records: int) -> bool:
        """Whether the stream has read so many records, and the batch after them, which gets their watermark."""
        (figures,) = json.loads(self.run("rivertwice --output json metrics orders || true"))
        (pipeline,) = json.loads(self.run("rivertwice --output json status"))["pipelines"]
        return bool(
            figures["read_total"] == records
            and pipeline["lag"] == 0
            and (pipeline["watermark"] or "") > "2026-01-05T16"
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run([str(UV), "build", "-q", "--wheel", "--out-dir", str(folder), str(REPOSITORY)], capture_output=True, text=True, check=False)  # fmt: skip
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture
def reader(tmp_path: Path, wheel: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made.venv)], check=True)
    install = [str(UV), "pip", "install", "-q", "--no-deps", "--python", str(made.venv / "bin" / "python"), str(wheel)]
    subprocess.run(install, check=True)
    (packages,) = made.venv.glob("lib/python*/site-packages")
    (packages / "of_the_tests.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    yield made
    made.run("rivertwice down")
    shutil.rmtree(made.folder)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> list[Block]:
    """Return the blocks of the page, in order, as its copy buttons give them."""
    return Page.read(build_site(tmp_path_factory.mktemp("site")) / "tutorial.html").blocks


def words(text: str) -> list[str]:
    """Return the words of a line, without what separates columns."""
    return re.sub(r"[\s─]+", " ", text).split()


def test_each_block_works_and_prints_what_the_page_shows(
    reader: Reader, blocks: list[Block], record_property: Callable[[str, object], None]
) -> None:
    printed, begun, minutes = "", time.monotonic(), 0.0
    ran = [block for block in blocks if block.language == "sh" and "pip install" not in block.text]
    assert len(ran) > 8
    for block in blocks:
        if block.language == "python":
            (reader.folder / "make_orders.py").write_text(block.text)
        elif block in ran:
            printed = reader.run(block.text)
            if block.text.endswith("produce.py late.jsonl\n"):
                wait_for("the late orders", lambda: reader.has_read(3_005), 180, every=2.0)
            elif "rivertwice start" in block.text:
                wait_for("the orders", lambda: reader.has_read(3_000), 180, every=2.0)
            elif "rivertwice reconcile" in block.text:
                minutes = minutes or (time.monotonic() - begun) / 60
        elif block.language == "text":
            shown = [words(line) for line in printed.splitlines()]
            assert [line for line in block.text.splitlines() if words(line) not in shown] == [], printed
    assert len((reader.folder / "orders.csv").read_text().splitlines()) == 25
    record_property("minutes_to_first_verdict", round(minutes, 2))
    if os.environ.get("RIVERTWICE_TUTORIAL_REPORT"):
        Path(os.environ["RIVERTWICE_TUTORIAL_REPORT"]).write_text(f"{minutes:.2f} minutes to the first verdict\n")
    assert 0 < minutes < 15


def test_the_installed_package_is_the_one_that_runs(reader: Reader) -> None:
    where = reader.run("python -c 'import rivertwice; print(rivertwice.__file__)'")
    assert where.startswith(str(reader.venv))
    assert "ok" in reader.run("rivertwice init && rivertwice doctor || true")
