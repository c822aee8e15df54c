"""`python -m rivertwice.testing.class_archive`: makes the class archive of a clone by a training run of the lab."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.setup.class_archive import archive_file
from rivertwice.setup.java import java_env
from rivertwice.setup.steps import clone_settings, run_step

TRAINING_S = 300.0


def train_archive(settings: Settings) -> str:
    """Make the archive by a driver's run over a small log of its own, unless it exists. Returns what to print.

    An archive is a convenience: a Java that cannot make one is reported, and is no error.
    """
    archive = archive_file(settings)
    if archive.exists():
        return "there"
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        done = _training(settings, part)
    except subprocess.TimeoutExpired:
        return f"none: the training run did not end within {TRAINING_S:.0f} s; starts take a few seconds longer"
    if done.returncode != 0 or not part.exists():
        reason = (done.stderr.strip().splitlines() or ["no words"])[-1][:300]
        return f"none: {reason}; starts take a few seconds longer"
    for old in archive.parent.glob("spark-*.jsa"):
        old.unlink()
    part.rename(archive)
    return f"{archive.stat().st_size / 1e6:.0f} MB"


def _training(settings: Settings, archive: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **java_env(settings), "RIVERTWICE_PROJECT": str(settings.project)}
    return subprocess.run(
        [sys.executable, "-m", "rivertwice.testing.train_jvm", str(archive)],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TRAINING_S,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(run_step("class archive", lambda: train_archive(clone_settings())))
