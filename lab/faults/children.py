"""The end of a server that a test has started. Of the standard library alone, as the set-up runs it before packages are there."""

from __future__ import annotations

import signal
import subprocess
from typing import Any


def end(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end, kill it if it does not, and wait until it has ended."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
