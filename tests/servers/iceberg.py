"""Iceberg catalogs as servers, and readers that are not ours: Iceberg's REST catalog, DuckDB, Spark with Iceberg's runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from homes.project import REPOSITORY
from rivertwice.core.ports import held_ports
from rivertwice.core.settings import Settings
from rivertwice.engine.java import java_env
from running.waiting import wait_for

READERS = REPOSITORY / ".build" / "readers"
"""Folders of packages that cannot be installed beside ours: `make iceberg-readers` fills them."""


def missing() -> str | None:
    """Return why no REST catalog can be started here, or None."""
    settings = Settings(REPOSITORY, REPOSITORY)
    if not any(settings.iceberg_jars.glob("iceberg-core-*-tests.jar")):
        return "no jars of Iceberg's REST catalog; `make setup-dev` fetches them"
    if not (Path(java_env(settings)["JAVA_HOME"]) / "bin" / "javac").exists():
        return "no Java compiler for Iceberg's REST catalog; install a JDK"
    return None


@contextmanager
def rest_catalog(folder: Path) -> Iterator[dict[str, str]]:
    """Run Iceberg's REST catalog, and give pyiceberg's properties of it."""
    settings = Settings(REPOSITORY, folder)
    java = java_env(settings)
    said = folder / "rest.log"
    (folder / "warehouse").mkdir(parents=True)
    with held_ports(1) as (port,), said.open("wb") as log:
        command = [str(Path(java["JAVA_HOME"]) / "bin" / "java"), "-Xmx256m", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", f"{settings.iceberg_jars}/*", str(Path(__file__).with_name("IcebergRest.java"))]
        command += [str(port), str(folder / "catalog.db"), str(folder / "warehouse")]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **java}
        )
        uri = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            assert process.poll() is None, f"the catalog ended: {said.read_text()[-3000:]}"
            try:
                with urllib.request.urlopen(f"{uri}/v1/config", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        try:
            wait_for("Iceberg's REST catalog", answers, 90, every=0.1, seen=said.read_text)
            yield {"type": "rest", "uri": uri}
        finally:
            process.terminate()
            process.wait(20)


def why_no_reader(name: str) -> str | None:
    """Return why a reader cannot be run here, or None."""
    return None if (READERS / name).is_dir() else f"no {name} beside our packages; `make iceberg-readers` fetches it"


def read_by(name: str, uri: str, *questions: tuple[str, str]) -> list[list[list[Any]]]:
    """Return what another reader finds in a REST catalog, for each table and condition: window start (seconds), key, value, sorted."""
    program = str(Path(__file__).with_name(f"read_by_{name}.py"))
    process = subprocess.run(
        [sys.executable, program, str(READERS / name), uri, json.dumps(questions)],
        capture_output=True, text=True, timeout=600, env=_environment(name),
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    return [sorted(rows) for rows in json.loads(process.stdout.splitlines()[-1])]


def _environment(name: str) -> Mapping[str, str]:
    own = {"PYTHONPATH": str(READERS / name), "PYSPARK_PYTHON": sys.executable}
    java = java_env(Settings(REPOSITORY, REPOSITORY))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    return {**kept, **java, **own}
