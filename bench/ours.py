"""Our side of a comparison: a project and a home of its own around the definition that is measured."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import yaml

from rivertwice.config import Settings

PIPELINE = "flight_delays"


def make_project(settings: Settings, folder: Path, topic: str, limit: int) -> Settings:
    """Return settings of a project whose one pipeline reads `topic` in batches of `limit` records."""
    project = folder / "project"
    target = project / "pipelines" / PIPELINE
    shutil.copytree(settings.definitions / PIPELINE, target)
    (project / ".build").symlink_to(settings.build)
    document = yaml.safe_load((target / "pipeline.yaml").read_text())
    document["sources"]["flights"]["topic"] = topic
    document["stream"]["max_offsets_per_trigger"] = limit
    (target / "pipeline.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return Settings(
        project=project, home=folder / "home", bootstrap=settings.bootstrap_servers(), spark_master="local[2]"
    )


def our_command(own: Settings) -> tuple[list[str], dict[str, str]]:
    """Return the driver's command and environment."""
    command = [sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", PIPELINE, "--until-end"]
    return command, {**os.environ, **own.to_env()}


def hand_command(settings: Settings, folder: Path, topic: str, limit: int) -> tuple[list[str], dict[str, str]]:
    """Return the hand-written job's command and environment."""
    arguments = [settings.bootstrap_servers(), topic, str(folder), str(limit)]
    command = [sys.executable, "-m", "bench.by_hand", *arguments]
    return command, {**os.environ, "RIVERTWICE_PROJECT": str(settings.project)}
