"""The site over docs/: every page has its place, every link leads somewhere, nothing is loaded from elsewhere.

`tests/unit/test_site_versions.py` has what several versions share.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

from homes.project import REPOSITORY
from rivertwice.agent.prometheus import described
from rivertwice.cli.main import cli
from rivertwice.core.settings import VARIABLES
from running.site import Page, build_site, clone_with

pytestmark = pytest.mark.long
DOCS = REPOSITORY / "docs"
MARKDOWN = MarkdownIt("commonmark").enable("table")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page.read(path) for path in sorted(site.rglob("*.html"))}


def test_every_page_of_the_docs_is_on_the_site_and_in_its_navigation(site: Path, pages: dict[Path, Page]) -> None:
    reached = {(site / "index.html").parent / urlsplit(link).path for link in pages[site / "index.html"].links}
    wanted = {site / f"{path.stem}.html" for path in DOCS.glob("*.md")}
    assert len(wanted) > 25
    assert sorted(path.name for path in wanted - reached) == []


def test_every_link_and_picture_leads_to_a_page_and_a_place_in_it(site: Path, pages: dict[Path, Page]) -> None:
    broken, looked_at = [], 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its addresses begin at the server's root
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                continue
            looked_at += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            if not target.exists() or (place and target in pages and place not in pages[target].names):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert looked_at > 1_000
    assert broken == []


def test_a_link_to_elsewhere_is_an_address(pages: dict[Path, Page]) -> None:
    links = {
        link for page in pages.values() for link in page.links if urlsplit(link).scheme not in ("", "http", "https")
    }
    hosts = {urlsplit(link).netloc for page in pages.values() for link in page.links if urlsplit(link).scheme}
    assert links == set()
    assert [host for host in hosts if not re.fullmatch(r"[\w.-]+(:\d+)?", host)] == []


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    loaded = {load for page in pages.values() for load in page.loads}
    assert any(load.endswith("iframe-worker.js") for load in loaded)
    assert [load for load in loaded if urlsplit(load).scheme not in ("", "data") or load.startswith("//")] == []
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert styles
    assert [found for style in styles for found in re.findall(r"(?:@import|url\()\s*['\"]?https?:[^)]*", style)] == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_has_the_lists_tables_and_blocks_of_its_text(page: Path, site: Path, pages: dict[Path, Page]) -> None:
    """The site's Markdown is not the one of hosting pages: an item or a block that it reads otherwise would be lost."""
    expected = Page()
    expected.feed(f"<article>{MARKDOWN.render(page.read_text())}</article>")
    shown = pages[site / f"{page.stem}.html"].tags
    for tag in ("h2", "h3", "li", "pre", "table", "tr", "ol", "ul", "img"):
        assert shown.get(tag, 0) == expected.tags.get(tag, 0), tag


def test_code_in_a_table_has_no_sign_of_an_escape(site: Path) -> None:
    """Hosting pages need `\\|` in the code of a row."""
    assert [
        path.name for path in site.rglob("*.html") if re.search(r"<code>[^<]*\\\|[^<]*</code>", path.read_text())
    ] == []
    assert "<code>--output text|json</code>" in (site / "cli.html").read_text()


def test_the_home_page_is_the_readme(site: Path, pages: dict[Path, Page]) -> None:
    home = pages[site / "index.html"]
    assert "the-loop" in home.names
    assert "tutorial.html" in home.links
    assert [link for link in home.links if link.endswith(".md")] == []


def test_a_link_says_the_title_of_a_page_and_not_the_name_of_its_file(site: Path) -> None:
    assert [
        path.name for path in site.rglob("*.html") if re.search(r"<a href=[^>]*>[\w-]+\.md</a>", path.read_text())
    ] == []
    assert '<a href="howto-stream.html">How to run a stream, and' in (site / "howto-deploy.html").read_text()


def test_the_reference_has_every_command_setting_metric_and_key(site: Path, pages: dict[Path, Page]) -> None:
    reference = site / "reference" / "code.html"
    commands = "\n".join(block.text for block in pages[reference].blocks)
    assert [name for name in cli.commands if f"Usage: rivertwice {name}" not in commands] == []
    text, keys = reference.read_text(), json.loads((DOCS / "pipeline.schema.json").read_text())["properties"]
    named = [*(each.name for each in VARIABLES), *(each.name for each in described()), *keys]
    assert [name for name in named if f"<code>{name}</code>" not in text] == []
    assert {"rivertwice.open", "rivertwice.read.project.Project.served"} <= pages[reference].names


def test_a_broken_link_fails_the_build_and_is_named(tmp_path: Path) -> None:
    clone = clone_with(tmp_path / "clone", "docs")
    broken = ("no-such-page.md", "tutorial.md#no-such-place", "../src/no_such_file.py", "img/none.png")
    with (clone / "docs" / "security.md").open("a") as page:
        page.writelines(
            f"\n![A link]({link})\n" if link.endswith("png") else f"\n[A link]({link})\n" for link in broken
        )
    (clone / "docs" / "no-place.md").write_text("# A page that nothing leads to\n")
    with pytest.raises(AssertionError) as failure:
        build_site(tmp_path / "site", clone)
    assert [link for link in (*broken, "no-place.md") if link.removeprefix("../") not in str(failure.value)] == []


def test_a_word_leads_to_the_glossary_the_first_time_a_page_uses_it(site: Path, pages: dict[Path, Page]) -> None:
    late = pages[site / "howto-correct.html"]
    assert late.links.count("glossary.html#word-watermark") == 1
    assert "word-watermark" in pages[site / "glossary.html"].names
    text = (site / "howto-correct.html").read_text()
    assert re.findall(r"<(?:h[1-6]|code|pre)[^>]*>[^<]*<a[^>]*class=\"word\"", text) == []
    linked = {link for page in pages.values() for link in page.links if "glossary.html#word-" in link}
    assert len(linked) > 25


def test_the_first_verdict_of_the_tutorial_takes_five_commands(pages: dict[Path, Page]) -> None:
    """No script is typed on the way. The virtual environment does not count: there may be one."""
    (page,) = (page for path, page in pages.items() if path.name == "tutorial.html")
    commands = [line for block in page.blocks if block.language == "sh" for line in block.text.splitlines()]
    first = commands.index("rivertwice reconcile orders") + 1
    assert sum(not line.startswith("python -m venv") for line in commands[:first]) == 5
    assert {block.language for block in page.blocks} == {"sh", "text"}
