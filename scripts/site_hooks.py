"""Hooks of mkdocs: the home page is README.md, the reference comes from the code, links to files of the repository work.

On the hosting page of the repository, `docs/` is read as it is. What only the site has stands there in comments: `<!-- site: text -->`.
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

log = logging.getLogger("mkdocs.hooks.site")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")
"""A link that leaves `docs/`, in a page that lies directly in it: the others are generated and link among themselves."""
README_LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
SHIM, OWN_SHIM = "https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js"
"""What the plugin `offline` wants for its search; `docs/` has a copy."""
ONLY_HERE = re.compile(r"<!-- site: (.*?) -->", re.DOTALL)


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

    return LINK.sub(replaced, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Load nothing from elsewhere (`SHIM`)."""
    return output.replace(SHIM, get_relative_url(OWN_SHIM, page.url))


def on_post_template(output: str, *, template_name: str, **_: Any) -> str:
    """Load nothing from elsewhere (`SHIM`)."""
    return output.replace(SHIM, get_relative_url(OWN_SHIM, template_name))


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent


def _from_docs(target: str) -> str:
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"
