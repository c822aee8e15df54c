"""Jars by lock and SHA-256, downloaded with the Ivy that is part of pyspark.

Ivy asks Maven Central, or the repository in MAVEN_REPO_URL. It is not asked if every jar exists with the right hash.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from rivertwice.errors import ServiceError
from rivertwice.progress import Measured, Progress, report_nothing

_POLL_S = 1.0


@dataclass(frozen=True)
class Jar:
    """One line of a jar lock."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the file in the folder of jars."""
        return f"{self.artifact}-{self.version}.jar"


def load_lock(path: Path) -> list[Jar]:
    """Read a jar lock."""
    return [Jar(row["g"], row["a"], row["v"], row["sha256"]) for row in json.loads(path.read_text())]


def select_wrong(jars: Sequence[Jar], have: Mapping[str, str]) -> list[Jar]:
    """Return the jars that are missing or differ; `have` maps file name to SHA-256."""
    return [jar for jar in jars if have.get(jar.file_name) != jar.sha256]


def select_strangers(jars: Sequence[Jar], have: Mapping[str, str]) -> list[str]:
    """Return the files in the folder that the lock does not name: they would also be on the class path."""
    return sorted(set(have) - {jar.file_name for jar in jars})


def hash_jars(folder: Path) -> dict[str, str]:
    """Return file name to SHA-256 of the jars in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.jar"))}


def fetch_jars(
    lock: Path, folder: Path, java: Mapping[str, str], *, cache: Path, progress: Progress = report_nothing
) -> int:
    """Make `folder` hold exactly the lock's jars; return how many were downloaded.

    Args:
        lock: the jar lock.
        folder: folder of the jars; jars that the lock does not name are removed.
        java: environment with JAVA_HOME, from `java_env`.
        cache: Ivy's cache.
        progress: is called every second with how many jars are there.

    Raises:
        ServiceError: a jar could not be downloaded or its hash differs; no wrong jar stays in the folder.
    """
    jars = load_lock(lock)
    folder.mkdir(parents=True, exist_ok=True)
    have = hash_jars(folder)
    for name in select_strangers(jars, have):
        (folder / name).unlink()
    wanted = select_wrong(jars, have)
    for jar in wanted:  # Ivy does not overwrite a file that is newer than its own
        (folder / jar.file_name).unlink(missing_ok=True)
    if wanted:
        _run_ivy(wanted, folder, java, cache, progress)
    still_wrong = select_wrong(jars, hash_jars(folder))
    for jar in still_wrong:
        (folder / jar.file_name).unlink(missing_ok=True)
    if still_wrong:
        names = ", ".join(jar.file_name for jar in still_wrong)
        message = (
            f"{len(still_wrong)} jars of {lock.name} were not fetched or have another SHA-256 ({names}), so they were not "
            "kept; check the network or MAVEN_REPO_URL, then run `rivertwice setup` again"
        )
        raise ServiceError(message)
    return len(wanted)


def _run_ivy(jars: Sequence[Jar], folder: Path, java: Mapping[str, str], cache: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        module, settings = Path(scratch, "ivy.xml"), Path(scratch, "settings.xml")
        module.write_text(_module_xml(jars))
        settings.write_text(_settings_xml(cache, os.environ.get("MAVEN_REPO_URL")))
        command = [str(Path(java["JAVA_HOME"]) / "bin" / "java"), "-jar", str(_ivy_jar()), "-warn"]
        command += ["-settings", str(settings), "-ivy", str(module), "-confs", "d", "-types", "jar"]
        command += ["-retrieve", str(folder / "[artifact]-[revision].[ext]")]
        said = Path(scratch, "ivy.log")
        with said.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=os.environ | java
            )
            _await(process, jars, cache, progress)
        text = said.read_text(errors="replace")
    if process.returncode != 0:
        message = f"Ivy could not fetch the jars for {folder}: {text[-1500:]}; check the network"
        raise ServiceError(message)


def _await(process: subprocess.Popen[bytes], jars: Sequence[Jar], cache: Path, progress: Progress) -> None:
    """Wait for Ivy, which downloads into its cache first, and report every second what is there."""
    wanted = {jar.file_name for jar in jars}
    while True:
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            there = len(wanted & {path.name for path in cache.rglob("*.jar")})
            progress(Measured(f"{there} of {len(wanted)} jars", "jars", there, len(wanted)))
        except BaseException:
            process.kill()
            raise
        else:
            return


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    ivy_jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not ivy_jars:
        message = "pyspark is not installed or carries no Ivy, so jars cannot be fetched; run `rivertwice setup`"
        raise ServiceError(message)
    return ivy_jars[0]


def _module_xml(jars: Sequence[Jar]) -> str:
    lines = "".join(
        f"<dependency org={quoteattr(jar.group)} name={quoteattr(jar.artifact)} rev={quoteattr(jar.version)} "
        'force="true" transitive="false" conf="d->default"/>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="rivertwice" module="jars"/>'
        f'<configurations><conf name="d"/></configurations><dependencies>{lines}</dependencies></ivy-module>'
    )


def _settings_xml(cache: Path, root: str | None) -> str:
    where = f"root={quoteattr(root)}" if root else ""
    return (
        '<ivysettings><settings defaultResolver="central"/>'
        f'<caches defaultCacheDir={quoteattr(str(cache))} useOrigin="false"/><resolvers>'
        f'<ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false" {where}/>'
        "</resolvers></ivysettings>"
    )
