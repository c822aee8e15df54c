"""Which registry a project uses: the one at an address, or the folder `schemas/`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rivertwice.schemas.registry import URL_ENV, Registry


def open_registry(project: Path, env: Mapping[str, str] | None = None) -> Registry:
    """Return the registry at RIVERTWICE_SCHEMA_REGISTRY; without it the folder `schemas/` of the project.

    Raises:
        ConfigError: the address is not allowed.
    """
    from rivertwice.schemas.confluent import ConfluentRegistry
    from rivertwice.schemas.folder import FolderRegistry

    env = os.environ if env is None else env
    url = env.get(URL_ENV)
    return ConfluentRegistry.from_env(url, env) if url else FolderRegistry(project / "schemas")
