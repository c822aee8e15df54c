"""Put what a project may have of its own into the wheel (`rivertwice.core.installed`); an editable installation finds it in the clone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = ("dags", "expectations", "locks", "pipelines/examples", "plugins", "requirements-java.lock", "spark_jobs")


class WheelFiles(BuildHookInterface):
    """Adds folders of the clone and the pages of its docs to the wheel, as `rivertwice/shipped`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files, unless the build is of an editable installation."""
        if version == "standard":
            pages = [f"docs/{page.name}" for page in Path(self.root, "docs").glob("*.md")]
            build_data["force_include"] |= {name: f"rivertwice/shipped/{name}" for name in (*SHIPPED, *pages)}
