"""Our side of a comparison: a project and a home of its own around the definition that is measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rivertwice.core.settings import Settings
from streams.flights import PIPELINE, make_flights_project


def make_own_project(settings: Settings, folder: Path, topic: str, limit: int) -> Settings:
    """Return settings of a project whose one pipeline reads `topic` in batches of `limit` records."""
    pins = {"max_offsets_per_trigger": limit}
    return make_flights_project(folder, bootstrap=settings.bootstrap_servers(), topic=topic, pins=pins)


def our_command(own: Settings) -> tuple[list[str], dict[str, str]]:
    """Return the driver's command and environment."""
    command = [sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", PIPELINE, "--until-end"]
    return command, {**os.environ, **own.to_env()}


def hand_command(settings: Settings, folder: Path, topic: str, limit: int) -> tuple[list[str], dict[str, str]]:
    """Return the hand-written job's command and environment."""
    arguments = [settings.bootstrap_servers(), topic, str(folder), str(limit)]
    command = [sys.executable, "-m", "lab.bench.by_hand", *arguments]
    return command, {**os.environ, "RIVERTWICE_PROJECT": str(settings.project)}
