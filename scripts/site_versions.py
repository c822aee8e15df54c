"""Which version the pages are of, which other versions lie beside them, and the addresses that a build is given.

Each version of the site is a folder: `0.2.0/`, `unreleased/`. Beside them are `versions.js`, which the pages of all versions load, so
that a page of an old version knows the newest one, and an `index.html` that leads to it. No server and no network is needed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

UNRELEASED = "unreleased"
DOCS_URL, REPOSITORY_URL = "RIVERTWICE_DOCS_URL", "RIVERTWICE_REPOSITORY_URL"
"""Where the site and the repository are published; a build that is not given them makes no link to them."""
_HEADING = re.compile(r"^## (\S+)", re.MULTILINE)
_NUMBER = re.compile(r"\d+(\.\d+)*")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def version_of(root: Path) -> str:
    """Return the version that a clone is: the number of the changelog's first section, or `unreleased`."""
    found = _HEADING.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    name = found[1].lower() if found else UNRELEASED
    if name != UNRELEASED and f'__version__ = "{name}"' not in (root / "src/rivertwice/__init__.py").read_text():
        message = f"CHANGELOG.md begins with {name}, which is not the package's version: correct one of them"
        raise ValueError(message)
    return name


def url_of(name: str, env: Mapping[str, str] = os.environ) -> str:
    """Return an address that the build was given, without the slash at its end; empty if it was given none."""
    return env.get(name, "").rstrip("/")


def docs_url(root: Path, env: Mapping[str, str] = os.environ) -> str:
    """Return where this version's pages are published; empty if the build was not told."""
    base = url_of(DOCS_URL, env)
    return f"{base}/{version_of(root)}" if base else ""


def project_urls(root: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the addresses for the package's metadata; none of what the build was not told."""
    known = {"Documentation": docs_url(root, env), "Repository": url_of(REPOSITORY_URL, env)}
    return {name: url for name, url in known.items() if url}


def with_addresses(readme: str, root: Path, env: Mapping[str, str] = os.environ) -> str:
    """Return the README for a page outside the repository: its links as addresses, or as text; pictures need an address."""
    docs, repository = docs_url(root, env), url_of(REPOSITORY_URL, env)

    def replaced(found: re.Match[str]) -> str:
        picture, label, path, place = found[1], found[2], found[3], found[4] or ""
        if docs and path.startswith("docs/"):
            target = re.sub(r"\.md$", ".html", path.removeprefix("docs/"))
            return f"{picture}[{label}]({docs}/{target}{place})"
        if repository:
            return f"{picture}[{label}]({repository}/{'raw' if picture else 'blob'}/main/{path}{place})"
        return "" if picture else label

    return _LINK.sub(replaced, readme)


def write_versions(site: Path) -> None:
    """Write what the pages of all versions share: which versions there are, the newest first, and the way to the newest."""
    folders = {path.parent.name: path.parent for path in site.glob("*/index.html")}
    released = sorted(filter(_NUMBER.fullmatch, folders), key=lambda name: [*map(int, name.split("."))], reverse=True)
    names = [*released, *([UNRELEASED] if UNRELEASED in folders else [])]
    pages = {
        name: sorted(path.relative_to(folders[name]).as_posix() for path in folders[name].rglob("*.html"))
        for name in names
    }
    listed = [{"name": name, "pages": pages[name]} for name in names]
    (site / "versions.js").write_text(f"window.rivertwiceVersions = {json.dumps(listed)}\n", encoding="utf-8")
    newest = names[0]
    (site / "index.html").write_text(
        f'<!doctype html>\n<meta charset="utf-8">\n<meta http-equiv="refresh" content="0; url={newest}/index.html">\n'
        f'<title>rivertwice</title>\n<a href="{newest}/index.html">rivertwice {newest}</a>\n',
        encoding="utf-8",
    )
