"""`rivertwice docs`: the pages that messages name, from the installed package."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from homes.project import REPOSITORY
from rivertwice.cli.docs import find_sections, title_of
from rivertwice.cli.main import cli


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(words))
    return result.exit_code, result.output


def test_every_page_that_a_message_names_can_be_shown() -> None:
    named = {
        page
        for path in (REPOSITORY / "src").rglob("*.py")
        for page in re.findall(r"`rivertwice docs ([\w-]+)", path.read_text())
    }
    assert len(named) > 8
    for page in sorted(named):
        assert run("docs", page)[0] == 0, page


def test_pages_are_listed_and_close_names_are_told() -> None:
    pages = json.loads(run("--output", "json", "docs")[1])
    assert {"page": "concepts", "title": "Concepts", "address": None} in pages
    assert json.loads(run("--output", "json", "docs", "concepts")[1])["text"].startswith("# Concepts")
    assert run("docs", "howto-wach") == (1, "rivertwice: there is no page howto-wach; did you mean howto-watch?\n")


@pytest.mark.parametrize(
    ("words", "page"), [("late records", "howto-correct"), ("heartbeat", "howto-stream"), ("gzip", "howto-init")]
)
def test_a_section_is_found_by_its_words(words: str, page: str) -> None:
    assert page in [hit["page"] for hit in json.loads(run("--output", "json", "docs", "--search", words)[1])]


def test_a_section_has_all_words_and_one_in_its_heading_counts_more() -> None:
    texts = {
        "a": "# One\n\nsavepoint savepoint restore\n\n## Two\nsavepoint\n",
        "b": "# Restore a savepoint\n\nrestore\n",
    }
    assert find_sections(texts, "savepoint restore") == [("b", "Restore a savepoint", 23), ("a", "One", 3)]
    assert find_sections(texts, "nowhere") == find_sections(texts, "") == []


@pytest.mark.parametrize("fence", ["```", "~~~~", "   ```"])
def test_a_comment_in_a_code_block_is_not_a_heading(fence: str) -> None:
    page = f"{fence}sh\n# not the title\n{fence}\n# Title\n\n{fence}\n# savepoint\nls\n{fence}\n## Next\nsavepoint\n{fence}\n# cut"
    assert title_of(page) == "Title"
    assert find_sections({"a": page}, "savepoint") == [("a", "Title", 1), ("a", "Next", 1)]
