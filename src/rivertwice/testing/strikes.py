"""Kill a command or a driver at a call of one of its functions: a step that leaves no file of its own, exactly struck."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rivertwice.testing.errors import require
from rivertwice.testing.lab import DRIVER, Lab
from rivertwice.testing.processes import end_group, start_process

BEFORE, AFTER, IN_WORKER = "before", "after", "in_worker"
STRUCK = (sys.executable, "-m", "rivertwice.testing.struck")


@dataclass(frozen=True)
class Strike:
    """Where a process is killed.

    Attributes:
        name: for the outcome.
        function: `module:function`, or `module:Class.method`, under the name by which it is called.
        when: right before the call, right after it, or in a Python worker of Spark that runs what the call was given.
        count: which call; in a worker: how many workers are killed, one after another.
        values: `module:CONSTANT` to another value, as JSON.
    """

    name: str
    function: str
    when: str = AFTER
    count: int = 1
    values: Mapping[str, Any] = field(default_factory=dict)

    def program(self, folder: str) -> tuple[str, ...]:
        """Return the words before a module that is struck; workers that were killed leave a file in the folder."""
        return (*STRUCK, json.dumps({**asdict(self), "folder": folder}))


def start_struck(lab: Lab, strike: Strike, *words: str) -> subprocess.Popen[bytes]:
    """Start a command of the command line that will be struck."""
    program = (*strike.program(str(lab.folder)), "rivertwice.cli", "--output", "json", *words)
    process = start_process(program, log=lab.folder / "commands.log", env=lab.env(), cwd=lab.settings.project)
    lab.at_end(lambda: end_group(process))
    return process


def strike_command(lab: Lab, strike: Strike, *words: str) -> None:
    """Run a command, and require that it was killed at the call."""
    _require_killed(lab, lab.wait(start_struck(lab, strike, *words)), strike)


def strike_driver(lab: Lab, strike: Strike, env: Mapping[str, str] | None = None) -> None:
    """Run a driver, and require that it was killed at the call."""
    program = (*strike.program(str(lab.folder)), DRIVER[2])
    _require_killed(lab, lab.wait(lab.start_driver(until_end=True, env=env, program=program)), strike)


def _require_killed(lab: Lab, code: int, strike: Strike) -> None:
    log = lab.folder / "commands.log"
    text = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    require(
        code == -signal.SIGKILL, f"it ended with {code} and was not killed at '{strike.name}'; {lab.log_end()}; {text}"
    )
    lab.kills += 1
