"""docs: the pages that messages name, from the installed package."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import click

from rivertwice.cli.asking import is_terminal
from rivertwice.cli.frame import Frame, as_table, example, pass_frame
from rivertwice.core import RequestError, did_you_mean, find_shipped

_BLOCK_OR_HEADING = re.compile(
    r"^ *(?P<fence>`{3,}|~{3,})[^\n]*\n.*?(?:^ *(?P=fence)|\Z)|^#{1,3} (?P<heading>[^\n]+)$", re.MULTILINE | re.DOTALL
)
"""A fenced block is matched as a whole, so that a comment of its code is not taken for a heading."""
MOST_HITS = 20
_ENOUGH = 15
"""More of one word does not make a section fit better: a long table would always come first."""
_LITTLE = re.compile(
    r"\b(a|an|and|are|as|at|be|by|can|do|does|for|from|how|i|if|in|is|it|me|my|need|not|of|on|or|our|the|there|this|to|us|use|was|we|what|when|where|"
    r"which|who|why|with|you|your)\b"
)
"""Words of a question that no section is chosen by."""


@click.command(
    epilog=example("rivertwice docs", "rivertwice docs howto-correct", "rivertwice docs --search 'late records'")
)
@click.argument("page", required=False)
@click.option(
    "--search",
    metavar="TEXT",
    help="List the sections that have most words of TEXT, the best first; a question will do.",
)
@pass_frame
def docs(frame: Frame, page: str | None, search: str | None) -> None:
    """Show a page of the documentation, or find one.

    Without PAGE all pages are listed. Where the pages of this version are published, a page ends with its address.
    """
    folder = find_shipped(None, "docs/concepts.md").parent  # the `docs` of a project are its own
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    site = published_site()
    if search is not None:
        hits = find_sections(texts, search)
        shown = [
            {"page": name, "section": heading, "fit": fit, "address": address_of(site, name)}
            for name, heading, fit in hits
        ]
        none = f"no section has a word of {search!r}; try others"
        frame.emit(shown, lambda: as_table(("page", "section"), [hit[:2] for hit in hits]) if hits else none)
        return
    if page is None:
        titles = [
            {"page": name, "title": title_of(text), "address": address_of(site, name)} for name, text in texts.items()
        ]
        rows = [(each["page"], each["title"]) for each in titles]
        frame.emit(titles, lambda: as_table(("page", "what it says"), rows))
        return
    name = Path(page).stem
    if name not in texts:
        message = f"there is no page {name}; {did_you_mean(name, texts)}"
        raise RequestError(message)
    address = address_of(site, name)
    text = texts[name] if address is None else f"{texts[name]}\n{address}"
    if frame.output == "text" and is_terminal():
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        with console.pager(styles=True):
            console.print(Markdown(text))
        return
    frame.emit({"page": name, "text": texts[name], "address": address}, text)


def published_site() -> str | None:
    """Return where the pages of this version are published, as the installed package says; None if its build was not told."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata("rivertwice").get_all("Project-URL", [])
    except PackageNotFoundError:
        return None
    return next((url.partition(", ")[2] for url in urls if url.startswith("Documentation, ")), None)


def address_of(site: str | None, page: str) -> str | None:
    """Return the address of a page; None if the site is not known."""
    return None if site is None else f"{site}/{page}.html"


def title_of(text: str) -> str:
    """Return the first heading of a page."""
    return next((match["heading"] for match in _headings(text)), "")


def _headings(text: str) -> list[re.Match[str]]:
    return [match for match in _BLOCK_OR_HEADING.finditer(text) if match["heading"] is not None]


def find_sections(texts: dict[str, str], search: str) -> list[tuple[str, str, int]]:
    """Return page, heading and how well they fit of the sections that have the most of the words, or words that begin so, the best first. Pure."""
    asked = re.findall(r"[\w@./-]+", search.lower())
    words = [re.compile(rf"(?<!\w){re.escape(word)}") for word in asked if not _LITTLE.fullmatch(word)] or [
        re.compile(rf"(?<!\w){re.escape(word)}(?!\w)") for word in asked
    ]
    found = []
    for name, text in texts.items():
        starts = [*(match.start() for match in _headings(text)), len(text)]
        for start, end in itertools.pairwise(starts):
            section = text[start:end].lower()
            heading = title_of(text[start:end])
            counts = [len(word.findall(section)) for word in words]
            if any(counts):
                named = sum(10 for word in words if word.search(heading.lower()))
                fit = sum(min(count, _ENOUGH) for count in counts) + named
                found.append((sum(map(bool, counts)), fit, name, heading))
    most = max((each[0] for each in found), default=0)
    best = sorted((each for each in found if each[0] == most), key=lambda hit: -hit[1])
    return [(name, heading, fit) for _, fit, name, heading in best[:MOST_HITS]]
