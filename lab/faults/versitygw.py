"""The S3 server of the tests: versitygw at a pinned version, built by Go if it is installed. Only tests need it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from rivertwice.core.locks import lock

VERSION = "1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"
NO_GO = f"versitygw {VERSION} is not built, for this machine has no Go; `make setup-dev` builds it where there is one"
_FLAGS = "-buildvcs=false '-gcflags=all=-N -l' '-ldflags=-s -w'"
"""Not optimised: most of a set-up is this build, for a server of a few thousand requests (88 CPU-seconds instead of 124)."""
_PATIENCE_S = 900  # two minutes on two cores, most of it compiling


def _folder(build: Path) -> Path:
    return build / "versitygw" / VERSION


def versitygw_binary(build: Path) -> Path | None:
    """Return the built server, or None."""
    binary = _folder(build) / "versitygw"
    return binary if os.access(binary, os.X_OK) else None


def build_versitygw(build: Path) -> str:
    """Build the server unless it is there; return a text about it. Never an error: tests skip without it.

    Go checks the module's content against its public checksum database. If two processes build at once, the second waits.
    """
    go = shutil.which("go")
    with lock(_folder(build) / "build.lock"):
        if versitygw_binary(build) is not None:
            return f"versitygw {VERSION}, there"
        return NO_GO if go is None else _build(go, build)


def _build(go: str, build: Path) -> str:
    env = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(_folder(build)), "GOFLAGS": _FLAGS}
    try:
        done = subprocess.run(
            [go, "install", MODULE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=env,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"versitygw {VERSION} could not be built ({error}); the tests that need it skip"
    if versitygw_binary(build) is None:
        return f"versitygw {VERSION} could not be built ({done.stderr.strip()[-300:]}); the tests that need it skip"
    return f"versitygw {VERSION}, built"
