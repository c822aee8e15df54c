"""The site as it is built, and its pages as a reader's browser has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from homes.project import REPOSITORY

VERSION = re.findall(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)[0].lower()
"""What this clone is: `unreleased`, or the number of a release."""


def build_site(folder: Path, clone: Path = REPOSITORY, **env: str) -> Path:
    """Build the site of a clone into the folder and return that of its version; a warning of mkdocs (a broken link) fails.

    With `--quiet` mkdocs would not count its warnings.
    """
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        [*command, "--config-file", str(clone / "mkdocs.yml")], env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **env},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-3000:]
    (home,) = folder.glob("*/index.html")
    return home.parent


def clone_with(folder: Path, *own: str) -> Path:
    """Return a clone in the folder, of links to this one; the files and folders that are named, and `mkdocs.yml`, are copies."""
    folder.mkdir()
    for path in REPOSITORY.iterdir():
        if path.name in (*own, "mkdocs.yml"):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.name)
        elif path.name not in (".build", ".git"):
            (folder / path.name).symlink_to(path)
    return folder


@dataclass(frozen=True)
class Block:
    """A block of code: its language (`text` if the page names none) and its text, as the copy button takes it."""

    language: str
    text: str


@dataclass
class Page(HTMLParser):
    """What a page links to, loads and holds.

    Attributes:
        links: what its links lead to. loads: scripts, styles, pictures. names: what a `#` can name. tags: how often each tag comes.
        blocks: the blocks of code, in order.
    """

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    tags: dict[str, int] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._language: str | None = None
        self._code: list[str] | None = None
        self._in_article = False

    @classmethod
    def read(cls, path: Path) -> Page:
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        page.close()
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {value for value in (given.get("id"), given.get("name")) if value}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        elif (tag == "link" and given.get("rel") in ("stylesheet", "icon")) or tag in ("script", "img", "iframe"):
            self.loads += [value for value in (given.get("href"), given.get("src")) if value]
        if tag == "article":
            self._in_article = True
        if self._in_article:
            self.tags[tag] = self.tags.get(tag, 0) + 1
        if tag == "div" and "highlight" in (given.get("class") or "").split():
            classes = (given.get("class") or "").split()
            self._language = next(
                (name.removeprefix("language-") for name in classes if name.startswith("language-")), "text"
            )
        elif tag == "code" and self._language is not None:
            self._code = []

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._in_article = False
        elif tag == "code" and self._code is not None:
            self.blocks.append(Block(self._language or "text", "".join(self._code)))
            self._language = self._code = None

    def handle_data(self, data: str) -> None:
        if self._code is not None:
            self._code.append(data)
