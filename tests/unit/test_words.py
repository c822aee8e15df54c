"""The product's words: rare ones do not come back, and the prose of the docs stays narrow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from homes.project import REPOSITORY
from rivertwice.verdicts import VERDICTS

LONGEST_LINE = 100
GENERATED = {"fault-report.md"}
RARE = ("anew", "nought", "hence", "owed", "is gone on with", "what stands there", "apart from one another")
OLD_NAMES = ("def silent", "def filled", "class Owed", "class Apart", "class Family", "nursery", "meanings.py")
ALLOWED = {"docs": {"behind": 28, "told": 2, "tells": 0}, "src": {"behind": 13, "told": 10, "mine": 0}}
"""Places that are left; a number can only fall."""


def pages() -> list[Path]:
    return [*sorted((REPOSITORY / "docs").glob("*.md")), REPOSITORY / "README.md"]


def sources() -> list[Path]:
    return sorted((REPOSITORY / "src").rglob("*.py"))


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are neither code nor a row of a table, with their numbers."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("|", "#")):
            yield number, line


@pytest.mark.parametrize("page", [page for page in pages() if page.name not in GENERATED], ids=lambda page: page.name)
def test_a_line_of_prose_has_at_most_a_hundred_characters(page: Path) -> None:
    assert [number for number, line in prose(page.read_text()) if len(line) > LONGEST_LINE] == []


@pytest.mark.parametrize("word", RARE)
def test_a_rare_word_does_not_come_back(word: str) -> None:
    pattern = re.compile(rf"\b{word}\b")
    assert [str(path.name) for path in (*pages(), *sources()) if pattern.search(path.read_text())] == []


@pytest.mark.parametrize("name", OLD_NAMES)
def test_a_renamed_thing_does_not_come_back(name: str) -> None:
    assert [str(path.name) for path in sources() if name in path.read_text()] == []


@pytest.mark.parametrize(("place", "word"), [(place, word) for place, words in ALLOWED.items() for word in words])
def test_words_that_are_being_replaced_only_become_fewer(place: str, word: str) -> None:
    paths = sources() if place == "src" else [page for page in pages() if page.name not in GENERATED]
    count = sum(len(re.findall(rf"\b{word}\b", path.read_text())) for path in paths)
    assert count <= ALLOWED[place][word]


def test_every_word_of_the_glossary_is_explained_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (REPOSITORY / "docs/glossary.md").read_text(), re.MULTILINE)
    words = [word for word, _ in rows if word not in ("word", "---")]
    assert len(words) == len(set(words)) > 40
    for word in ("head", "timeline", "seal of a timeline", "expected", "truth"):
        assert word in words


def test_the_glossary_has_every_verdict_and_no_other() -> None:
    text = (REPOSITORY / "docs/glossary.md").read_text()
    assert re.findall(r"^\| ([A-Z_]+) \|", text, re.MULTILINE) == list(VERDICTS)
