"""What the docs promise is proved by a test: each sentence with a word of promise has its row in `promises.toml`."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from homes.project import REPOSITORY
from lab.faults.cases import all_cases

ROWS: dict[str, dict[str, str | list[str]]] = tomllib.loads(Path(__file__).with_name("promises.toml").read_text())
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md"))]
WORDS = re.compile(r"\b(?:(?:is|are) (?:proved|refused)|reaches|never|at once)\b", re.IGNORECASE)
FAULT = "rivertwice faults run --case "
REMARK = "remark: "


def find_defects(text: str, rows: Mapping[str, object]) -> list[str]:
    """Return what is wrong between a page and its rows: a word that no row covers, a row that is not on the page once."""
    text, wrong, covered = " ".join(text.split()), [], []
    for row in rows:
        if text.count(row) != 1:
            wrong.append(f"found {text.count(row)} times: {row}")
        elif not WORDS.search(row):
            wrong.append(f"no word of promise in: {row}")
        else:
            start = text.index(row)
            covered.append((start, start + len(row)))
    for word in WORDS.finditer(text):
        if not any(start <= word.start() and word.end() <= end for start, end in covered):
            wrong.append(f"no row for: ...{text[max(0, word.start() - 80) : word.end() + 80]}...")
    return wrong


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def is_proof(proof: str) -> bool:
    """Say whether a proof names a test or a fault case that there is."""
    if proof.startswith(FAULT):
        return proof.removeprefix(FAULT) in {case.name for case in all_cases()}
    path, _, name = proof.partition("::")
    return path.startswith(("tests/", "lab/tests/")) and name.startswith("test_") and name in names_in(path)


def test_the_check_finds_what_it_is_for() -> None:
    page = "It never\nlies. A forged row is\nrefused."
    assert find_defects(page, {"It never lies": [], "is refused.": []}) == []
    assert [one.partition(":")[0] for one in find_defects(page, {"It never lies": []})] == ["no row for"]
    assert find_defects(page, {"It never": [], "is refused": [], "It always": []}) == ["found 0 times: It always"]
    assert find_defects(page, {"It never": [], "is refused": [], "A forged row": []}) == [
        "no word of promise in: A forged row"
    ]
    assert is_proof("tests/unit/test_promises.py::test_the_check_finds_what_it_is_for")
    assert not is_proof("tests/unit/test_promises.py::test_that_is_not_there")
    assert is_proof(f"{FAULT}F20")
    assert not is_proof(f"{FAULT}F99")


def test_rows_are_of_pages_that_there_are() -> None:
    assert set(ROWS) <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_promises_what_its_rows_prove(page: str) -> None:
    assert find_defects((REPOSITORY / page).read_text(), ROWS.get(page, {})) == []


@pytest.mark.parametrize("page", ROWS)
def test_every_row_names_its_proof_or_says_why_it_is_a_remark(page: str) -> None:
    for text, proof in ROWS[page].items():
        if isinstance(proof, str):
            assert proof.startswith(REMARK), text
            assert len(proof.split()) > 3, f"a remark says why it is none: {text}"
        else:
            assert proof, text
            assert [one for one in proof if not is_proof(one)] == [], text
