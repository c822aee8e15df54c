"""The class archive: what a driver's JVM loads, laid out once so that every later start maps it instead of parsing it.

JDK class data sharing (JEP 350): a training run dumps its classes at exit, `-XX:SharedArchiveFile` maps them. The JVM
itself refuses an archive of another JVM or another class path and starts without it, so it can slow nothing but set-up.
Ran here on Java 17: from the driver's start to its first planned batch 5.0 s instead of 8.4 s.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.setup.java import java_env

TRAINING_S = 300.0
_TRAINING = "rivertwice.testing.train_jvm"


def archive_file(settings: Settings) -> Path:
    """Return where the archive of this Java and these jars lies; another Java or jar has another file.

    The JVM refuses an archive if a jar of its class path was written anew since, be it with the same bytes.
    """
    home = Path(os.path.realpath(java_env(settings)["JAVA_HOME"]))
    told = [str(home)]
    release = home / "release"
    if release.exists():
        told.append(release.read_text(errors="replace"))
    jars = [*_spark_home().glob("jars/*.jar"), *settings.spark_jars.glob("*.jar")]
    for jar in sorted({os.path.realpath(jar) for jar in jars}):  # a project may link another's jars
        found = os.stat(jar)
        told.append(f"{jar} {found.st_size} {found.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(told).encode()).hexdigest()
    return settings.build / "jvm" / f"spark-{digest[:16]}.jsa"


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else Path()


def class_options(settings: Settings) -> str:
    """Return the JVM options that map the archive; nothing without one, or where a blank would cut its path."""
    archive = archive_file(settings)
    return f"-XX:SharedArchiveFile={archive}" if archive.exists() and " " not in str(archive) else ""


def train_archive(settings: Settings) -> str:
    """Make the archive by a driver's run over a small log of its own, unless it is there. Returns what is to be told.

    An archive is a convenience: a Java that cannot make one is told, and is no error.
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
        [sys.executable, "-m", _TRAINING, str(archive)],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TRAINING_S,
        check=False,
    )
