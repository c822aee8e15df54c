"""Grafana's own schema of dashboards: a program over the SDK that Grafana generates from it, built by Go at a pinned version."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from homes.project import REPOSITORY
from rivertwice.core.locks import lock

SOURCES = Path(__file__).parent / "grafana_schema"
_FLAGS = "-mod=readonly -buildvcs=false '-gcflags=all=-N -l' '-ldflags=-s -w'"


def build_checker(go: str) -> Path:
    """Return the program; it is built once for its sources (9 CPU-seconds), below `.build`."""
    content = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:16]
    program = REPOSITORY / ".build" / "grafana_schema" / content
    program.parent.mkdir(parents=True, exist_ok=True)
    with lock(program.with_suffix(".lock")):
        if not program.exists():
            built = subprocess.run(
                [go, "build", "-o", str(program), "."], cwd=SOURCES, env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": _FLAGS},
                capture_output=True, text=True, timeout=600, check=False,
            )  # fmt: skip
            assert built.returncode == 0, built.stderr[-2000:]
    return program


def find_go() -> str | None:
    return shutil.which("go")


def mistakes(program: Path, dashboard: str) -> list[str]:
    """Return what Grafana's schema has against a dashboard."""
    done = subprocess.run([str(program)], input=dashboard, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) == (not done.stderr), done
    return done.stderr.splitlines()
