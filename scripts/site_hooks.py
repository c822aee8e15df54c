"""Hooks of mkdocs: the home page is README.md, the reference comes from the code, links to files of the repository work.

On the hosting page of the repository, `docs/` is read as it is. What only the site shows is written there in comments: `<!-- site: text -->`.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

sys.path.insert(0, str(Path(__file__).parent))
import site_reference
import site_versions
import site_words

log = logging.getLogger("mkdocs.hooks.site")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")
"""A link that leaves `docs/`, in a page that lies directly in it: the others are generated and link among themselves."""
README_LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
FILE_AS_LABEL = re.compile(r"\[([\w-]+\.md)\]\(\1(#[^)\s]*)?\)")
"""Where the name of a file is the text of its link; the site shows the page's title."""
SHIM, OWN_SHIM = "https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js"
"""What the plugin `offline` wants for its search; `docs/` has a copy."""
CODE_IN_ROW = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
"""Code in a row of a table with an escaped `|`: hosting pages unescape it, the site's Markdown splits no code and would show the `\\`."""
ONLY_HERE = re.compile(r"<!-- site: (.*?) -->", re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build into the folder of this version (`site_versions`)."""
    version, url = site_versions.version_of(_root(config)), site_versions.docs_url(_root(config))
    config.site_dir = str(Path(config.site_dir) / version)
    config.extra["site"] = config.site_name
    config.site_name += f" {version}"
    config.site_url = f"{url}/" if url else ""
    return config


def on_post_build(config: MkDocsConfig) -> None:
    """Say to the pages of all versions which there are."""
    site_versions.write_versions(Path(config.site_dir).parent)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file of `docs/` holds."""
    readme = (_root(config) / "README.md").read_text(encoding="utf-8")
    home = README_LINK.sub(lambda found: f"]({_from_docs(found[1])})", readme)
    files.append(File.generated(config, "index.md", content="---\nhide: [navigation]\n---\n" + home))
    for name, make in site_reference.PAGES.items():
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, **_: Any) -> str:
    """Show what only the site has, and turn links to files of the repository into links to it, or into text."""
    root = _root(config)
    markdown = ONLY_HERE.sub(lambda found: found[1], markdown)
    markdown = "\n".join(
        CODE_IN_ROW.sub(lambda found: found[0].replace("\\|", "|"), line) if line.startswith("|") else line
        for line in markdown.split("\n")
    )
    if "/" in page.file.src_uri:
        return markdown

    def replaced(found: re.Match[str]) -> str:
        label, path = found[1], found[2].removeprefix("../").rstrip("/")
        if not (root / path).exists():
            log.warning("%s links to %s, which is not in the repository", page.file.src_uri, path)
        if not config.repo_url:
            return label
        kind = "tree" if (root / path).is_dir() else "blob"
        return f"[{label}]({config.repo_url.rstrip('/')}/{kind}/main/{path}{found[3] or ''})"

    markdown = FILE_AS_LABEL.sub(
        lambda found: f"[{_title(root / 'docs' / found[1])}]({found[1]}{found[2] or ''})", LINK.sub(replaced, markdown)
    )
    glossary = (root / "docs" / site_words.PAGE).read_text(encoding="utf-8")
    if page.file.src_uri == site_words.PAGE:
        return site_words.with_places(markdown)
    return site_words.with_links(markdown, site_words.names(glossary))


def on_post_page(output: str, *, page: Any, config: MkDocsConfig, **_: Any) -> str:
    """Load nothing from elsewhere (`SHIM`), and what all versions share."""
    root = "../" * (page.url.count("/") + 1)
    shared = (
        f'<script src="{root}versions.js" data-root="{root}" data-page="{page.url}" '
        f'data-version="{Path(config.site_dir).name}" data-site="{config.extra["site"]}"></script>\n</head>'
    )
    return output.replace(SHIM, get_relative_url(OWN_SHIM, page.url)).replace("</head>", shared, 1)


def on_post_template(output: str, *, template_name: str, **_: Any) -> str:
    """Load nothing from elsewhere (`SHIM`)."""
    return output.replace(SHIM, get_relative_url(OWN_SHIM, template_name))


def _title(page: Path) -> str:
    """Return the first heading of a page; of one that is not there its name, and mkdocs warns of the link."""
    return page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") if page.is_file() else page.name


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent


def _from_docs(target: str) -> str:
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"
