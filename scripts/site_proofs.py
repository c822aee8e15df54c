"""The page of the reference that says which section of the docs is proved by which test, and which of them `make test` runs.

A test says what it proves by its marker: `@pytest.mark.proves("howto-correct.md#the-queue")`. The page is made from the sources
of the tests, without collecting them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown.extensions.toc import slugify

PROJECT = Path(__file__).resolve().parent.parent
DOCS = PROJECT / "docs"
sys.path.insert(0, str(PROJECT / "tests"))

from lab.faults.cases import all_cases  # noqa: E402
from running.tiers import is_quick  # noqa: E402 (the tests' folder is on no path of a script)

HEAD = """# What proves what

Made from the tests when this site is built. A test names the sections that it proves
(`@pytest.mark.proves("PAGE#SECTION")`). `make test` runs the tests of the first column each time;
those of the second run in turn, a seventh with each run of `.ci/run`, all of them by `make test-all`.
The third column has cases of the fault lab, which `make test-faults` runs.
"""
QUICK, SHARES, CAMPAIGN = range(3)


@dataclass(frozen=True)
class Proof:
    """A section, as `page#anchor`, what proves it, and its column: by whom it is run."""

    section: str
    test: str
    column: int


def headings(page: Path) -> dict[str, str]:
    """Return the anchors of a page's headings, as mkdocs makes them, with their texts."""
    found: dict[str, str] = {}
    is_code = False
    for line in page.read_text(encoding="utf-8").splitlines():
        is_code ^= line.lstrip().startswith("```")
        title = re.match(r"#+ +(.*?)\s*(?:\{#([\w-]+)\})?$", line)
        if title and not is_code:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title[1])
            anchor = base = title[2] or slugify(text.replace("`", ""), "-")
            number = 0
            while anchor in found:
                number += 1
                anchor = f"{base}_{number}"
            found[anchor] = text
    return found


def page_path(name: str) -> Path:
    """Return where a page is: README.md at the top, `lab/docs/PAGE` in the lab, every other one in docs."""
    return PROJECT / name if name == "README.md" or name.startswith("lab/") else DOCS / name


def _marks(nodes: list[ast.expr]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        for inner in ast.walk(node):
            if (
                isinstance(inner, ast.Attribute)
                and isinstance(inner.value, ast.Attribute)
                and inner.value.attr == "mark"
            ):
                yield inner.attr, node


def proofs_in(path: Path) -> Iterator[Proof]:
    """Yield what the tests of a file prove; a file whose marks come from another one (`pytestmark = LIVE_MARKS`) is not quick."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_file: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id == "pytestmark" for one in node.targets
        ):
            of_file = {name for name, _ in _marks([node.value])} or {"airflow"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        marks = of_file | {name for one in node.decorator_list if not _is_parameters(one) for name, _ in _marks([one])}
        for decorator in node.decorator_list:
            if (
                isinstance(decorator, ast.Call)
                and isinstance(decorator.func, ast.Attribute)
                and decorator.func.attr == "proves"
            ):
                for argument in decorator.args:
                    name = f"{str(path.relative_to(PROJECT)).removeprefix('tests/')}::{node.name}"
                    yield Proof(ast.literal_eval(argument), name, QUICK if is_quick(marks) else SHARES)


def _is_parameters(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parametrize"


def all_proofs() -> list[Proof]:
    """Return every proof of the repository, ordered by page, section and test."""
    files = [path for folder in ("tests", "lab") for path in (PROJECT / folder).rglob("test_*.py")]
    cases = (Proof(section, f"faults run --case {one.name}", CAMPAIGN) for one in all_cases() for section in one.proves)
    return sorted(
        [*cases, *(one for path in files for one in proofs_in(path))], key=lambda one: (one.section, one.test)
    )


def wrong_sections(proofs: list[Proof]) -> list[str]:
    """Return the sections that tests name and no page has."""
    there = {
        page: headings(page_path(page))
        for page in {one.section.partition("#")[0] for one in proofs}
        if page_path(page).exists()
    }
    return sorted(
        {
            one.section
            for one in proofs
            if one.section.partition("#")[2] not in there.get(one.section.partition("#")[0], {})
        }
    )


NAMED = re.compile(r"\[([^\]]+)\]\(\.\./((?:lab/)?tests/[\w/]+\.py)\)|`(F\d+(?:/[\w-]+)?)`")
"""A test that a page names: its sentence, which leads to its file; or a case of the fault lab."""


def named_in(text: str) -> set[str]:
    """Return the tests that a text names, as `Proof.test` has them."""
    return {
        f"{found[2].removeprefix('tests/')}::test_{found[1].replace(' ', '_')}"
        if found[2]
        else f"faults run --case {found[3]}"
        for found in NAMED.finditer(text)
    }


def sections(page: Path) -> dict[str, str]:
    """Return the anchors of a page's headings, each with the text below it, up to the next heading."""
    anchors = headings(page)
    parts = re.split(r"^#+ .*$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(anchors, parts[1:], strict=True))


def rows_without_a_test(text: str) -> list[str]:
    """Return the rows of the tables with a column `shown by` whose last cell names no test."""
    bare, is_shown = [], False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            is_shown = False
        elif cells[-1] == "shown by":
            is_shown = True
        elif is_shown and set("".join(cells)) != {"-"} and not named_in(cells[-1]):
            bare.append(line)
    return bare


def unproved(page: str, proofs: list[Proof]) -> list[str]:
    """Return where a page and the marks of the tests contradict each other.

    That is: a row without a test, a named test that does not exist or does not say that it proves the section, and a test that says
    so and is not named there.
    """
    wrong = []
    for anchor, text in sections(page_path(page)).items():
        named = named_in(text)
        marked = {one.test for one in proofs if one.section == f"{page}#{anchor}"}
        wrong += [f"{anchor}: no test: {row}" for row in rows_without_a_test(text)]
        wrong += [f"{anchor}: {test} does not say that it proves this section" for test in sorted(named - marked)]
        wrong += [f"{anchor}: {test} is not named" for test in sorted(marked - named)]
    return wrong


def proofs() -> str:
    """Return the page."""
    found = all_proofs()
    lines = [HEAD]
    for page in sorted({one.section.partition("#")[0] for one in found}):
        titles = headings(page_path(page))
        link = "../index.md" if page == "README.md" else f"../{page}"
        is_on_site = not page.startswith("lab/")
        lines += [
            f"\n## {next(iter(titles.values()))}\n",
            "| section | `make test` | by shares | fault lab |",
            "|---|---|---|---|",
        ]
        for anchor, title in titles.items():
            here = [one for one in found if one.section == f"{page}#{anchor}"]
            if here:
                columns = ("<br>".join(f"`{one.test}`" for one in here if one.column == number) for number in range(3))
                shown = f"[{title}]({link}#{anchor})" if is_on_site else title
                lines.append(f"| {shown} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"
