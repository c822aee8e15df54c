"""Kill or stop a command or a driver at a call of one of its functions: a step that leaves no file of its own, exactly struck."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.faults.errors import require
from lab.faults.lab import DRIVER, Lab
from lab.faults.processes import end_group, start_process
from rivertwice.core.settings import Settings
from rivertwice.storage.local import read_json

BEFORE, AFTER, IN_WORKER = "before", "after", "in_worker"
HELD, GO = "held", "go"
"""Files by which a process that is held and the lab know of each other."""
STRUCK = (sys.executable, "-m", "lab.faults.struck")


@dataclass(frozen=True)
class Strike:
    """Where a process is killed.

    Attributes:
        name: for the outcome.
        function: `module:function`, or `module:Class.method`, under the name by which it is called.
        when: right before the call, right after it, or in a Python worker of Spark that runs what the call was given.
        count: which call, 0 for none; in a worker: how many workers are killed, one after another.
        values: `module:CONSTANT` to another value, as JSON; a list becomes a tuple.
        holds: the process is stopped there instead, until it may continue; see `Hold`.
    """

    name: str
    function: str
    when: str = AFTER
    count: int = 1
    values: Mapping[str, Any] = field(default_factory=dict)
    holds: bool = False

    def plain(self, folder: str) -> dict[str, Any]:
        """Return it as a program reads it; workers that were killed, and a process that is held, leave a file in the folder."""
        return {**asdict(self), "folder": folder}

    def program(self, folder: str) -> tuple[str, ...]:
        """Return the words before a module that is struck; see `plain`."""
        return (*STRUCK, json.dumps(self.plain(folder)))


class Hold:
    """A process that stops at a call of one of its functions, so that others can be killed meanwhile.

    Attributes:
        strike: where it stops.
        folder: of the files by which it is known.
    """

    def __init__(self, lab: Lab, strike: Strike) -> None:
        """Make the folder; nothing is held yet."""
        self.strike = replace(strike, holds=True)
        self.folder = Path(tempfile.mkdtemp(prefix="hold-", dir=lab.folder))
        self._lab = lab
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str, settings: Settings | None = None) -> subprocess.Popen[bytes]:
        """Start a command of the command line that will be held."""
        self._process = start_struck(self._lab, self.strike, *words, folder=self.folder, settings=settings)
        return self._process

    def await_held(self, patience_s: float = 300.0) -> int:
        """Wait until the process stands at the call, and return its id.

        Raises:
            LabError: it did not get there in time.
            CaseFailedError: it ended before.
        """
        held, process = self.folder / HELD, self._process
        self._lab.until(
            lambda: held.exists() or (process is not None and process.poll() is not None),
            patience_s,
            f"the stop at '{self.strike.name}'",
        )
        require(held.exists(), f"it ended before '{self.strike.name}'")
        return int((read_json(self.folder / HELD) or {})["pid"])

    def release(self) -> None:
        """Let the process continue."""
        (self.folder / GO).touch()


def start_struck(
    lab: Lab, strike: Strike, *words: str, folder: Path | None = None, settings: Settings | None = None
) -> subprocess.Popen[bytes]:
    """Start a command of the command line that will be struck.

    Args:
        lab: the run.
        strike: where.
        words: of the command.
        folder: of its files, instead of the lab's.
        settings: instead of the run's own (another host's home).
    """
    program = (*strike.program(str(folder or lab.folder)), "rivertwice.cli.main", "--output", "json", *words)
    process = start_process(
        program, log=lab.folder / "commands.log", env=lab.env(settings=settings), cwd=lab.settings.project
    )
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
