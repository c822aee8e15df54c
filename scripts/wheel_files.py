"""What a build of the package adds: what a project may have of its own (`rivertwice.core.installed`), and the addresses it was given.

An editable installation finds the files in the clone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, str(Path(__file__).parent))
import site_versions

SHIPPED = ("dags", "expectations", "locks", "pipelines/examples", "plugins", "requirements-java.lock", "spark_jobs")


class WheelFiles(BuildHookInterface):
    """Adds folders of the clone and the pages of its docs to the wheel, as `rivertwice/shipped`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files, unless the build is of an editable installation."""
        if version == "standard":
            pages = [f"docs/{page.name}" for page in Path(self.root, "docs").glob("*.md")]
            build_data["force_include"] |= {name: f"rivertwice/shipped/{name}" for name in (*SHIPPED, *pages)}


class Addresses(MetadataHookInterface):
    """Gives the package the addresses of its site and its repository, and a README whose links lead there."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields that `pyproject.toml` calls dynamic."""
        root = Path(self.root)
        readme = (root / "README.md").read_text(encoding="utf-8")
        metadata["urls"] = site_versions.project_urls(root)
        metadata["readme"] = {"content-type": "text/markdown", "text": site_versions.with_addresses(readme, root)}
