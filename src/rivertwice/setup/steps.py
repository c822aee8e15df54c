"""Steps of set-up: each prints one line with its result and its duration."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.errors import RivertwiceError


def clone_settings() -> Settings:
    """Return the settings of the clone in the working directory, which set-up prepares."""
    return Settings.from_env({**os.environ, "RIVERTWICE_PROJECT": str(Path.cwd())})


def run_step(name: str, step: Callable[[], str]) -> int:
    """Run a step and print the result that it returns. Return the exit code: 1 if it failed."""
    started = time.monotonic()
    try:
        result = step()
    except RivertwiceError as error:
        sys.stderr.write(f"setup: {name}: {error}\n")
        return 1
    sys.stdout.write(f"setup: {name:<15} {result} ({time.monotonic() - started:.1f} s)\n")
    sys.stdout.flush()
    return 0
