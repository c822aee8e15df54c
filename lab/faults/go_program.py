"""A program in Go that only tests need: built at a pinned version if Go is installed, and kept under the build folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rivertwice.core.locks import lock

_FLAGS = "-buildvcs=false '-gcflags=all=-N -l' '-ldflags=-s -w'"
"""Not optimised: most of a set-up is these builds, for servers of a few thousand requests (versitygw: 88 CPU-seconds, not 124)."""
_PATIENCE_S = 900  # two minutes on two cores, most of it compiling


@dataclass(frozen=True)
class GoProgram:
    """A program of a Go module."""

    name: str
    version: str
    module: str

    @property
    def no_go(self) -> str:
        """What is said where there is no Go."""
        return f"{self.name} {self.version} is not built, for this machine has no Go; `make setup-dev` builds it where there is one"

    def _folder(self, build: Path) -> Path:
        return build / self.name / self.version

    def binary(self, build: Path) -> Path | None:
        """Return the built program, or None."""
        binary = self._folder(build) / self.name
        return binary if os.access(binary, os.X_OK) else None

    def build(self, build: Path) -> str:
        """Build the program unless it is there; return a text about it. Never an error: tests skip without it.

        Go checks the module's content against its public checksum database. If two processes build at once, the second waits.
        """
        go = shutil.which("go")
        with lock(self._folder(build) / "build.lock"):
            if self.binary(build) is not None:
                return f"{self.name} {self.version}, there"
            return self.no_go if go is None else self._build(go, build)

    def _build(self, go: str, build: Path) -> str:
        env = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(self._folder(build)), "GOFLAGS": _FLAGS}
        try:
            done = subprocess.run(
                [go, "install", f"{self.module}@v{self.version}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=env,
                timeout=_PATIENCE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self.name} {self.version} could not be built ({error}); the tests that need it skip"
        if self.binary(build) is None:
            said = done.stderr.strip()[-300:]
            return f"{self.name} {self.version} could not be built ({said}); the tests that need it skip"
        return f"{self.name} {self.version}, built"
