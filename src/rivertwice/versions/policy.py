"""Who lets a version serve: a person, or Airflow's DAG by itself. A key of the change file, `changes/vN.yaml`.

Reads the file as text and nothing else, because Airflow asks each time it parses a DAG file.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from rivertwice.config import Settings
from rivertwice.config.versions import split_version
from rivertwice.yaml_text import read_yaml

FOLDER = "changes"
MAX_FILE_BYTES = 1_000_000
APPROVAL, AUTOMATIC = "approval", "automatic"


def changes_path(settings: Settings, version: str) -> Path:
    """Return the path of the change file of a version."""
    pipeline, number = split_version(version)
    return settings.definitions / pipeline / FOLDER / f"v{number}.yaml"


def switches_by_itself(settings: Settings, version: str) -> bool:
    """Say whether the change file of a version lets the DAG switch by itself. A file that cannot be read does not."""
    path = changes_path(settings, version)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return False
        data = read_yaml(path.read_bytes())
    except (OSError, yaml.YAMLError):
        return False
    return isinstance(data, dict) and data.get("switch") == AUTOMATIC
