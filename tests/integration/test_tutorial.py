"""The tutorial and the page about old data: their blocks, copied from the built site, in an installed environment and an empty folder.

`RIVERTWICE_TUTORIAL_REPORT=FILE` gets the minutes from the tutorial's first block to its first verdict.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from running.reader import Reader, build_wheel, not_printed, reader_with
from running.site import Block, Page, build_site

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def reader(tmp_path: Path, wheel: Path) -> Iterator[Reader]:
    with reader_with(wheel, tmp_path) as made:
        yield made


def blocks_of(page: Path, *, at_least: int) -> list[Block]:
    """Return the blocks of a page that are run, and what they print, in order, as the copy buttons give them."""
    blocks = [block for block in Page.read(page).blocks if "pip install" not in block.text]
    assert sum(block.language == "sh" for block in blocks) >= at_least
    return blocks


def test_each_block_works_and_prints_what_the_page_shows(
    reader: Reader, site: Path, record_property: Callable[[str, object], None]
) -> None:
    printed, begun, minutes = "", time.monotonic(), 0.0
    for block in blocks_of(site / "tutorial.html", at_least=8):
        if block.language == "sh":
            printed = reader.run(block.text)
            if "rivertwice reconcile" in block.text:
                minutes = minutes or (time.monotonic() - begun) / 60
        elif block.language == "text":
            assert not_printed(block.text, printed) == [], printed
    assert len((reader.folder / "orders.csv").read_text().splitlines()) == 28
    record_property("minutes_to_first_verdict", round(minutes, 2))
    if os.environ.get("RIVERTWICE_TUTORIAL_REPORT"):
        Path(os.environ["RIVERTWICE_TUTORIAL_REPORT"]).write_text(f"{minutes:.2f} minutes to the first verdict\n")


def test_old_data_is_sent_and_loaded_as_its_page_says(reader: Reader, site: Path) -> None:
    printed = ""
    scripts = iter(("make_history.py", "send_old.py"))
    for block in blocks_of(site / "howto-first-load.html", at_least=4):
        if block.language == "python":
            (reader.folder / next(scripts)).write_text(block.text)
        elif block.language == "sh":
            printed = reader.run(block.text)
        elif block.language == "text" and printed:
            assert not_printed(block.text, printed) == [], printed
            printed = ""
    assert next(scripts, None) is None
    assert reader.run("rivertwice --output json status").count('"first_load": null') == 1


def test_the_installed_package_is_the_one_that_runs(reader: Reader) -> None:
    where = reader.run("python -c 'import rivertwice; print(rivertwice.__file__)'")
    assert where.startswith(str(reader.venv))
    assert "ok" in reader.run("rivertwice init && rivertwice doctor || true")
