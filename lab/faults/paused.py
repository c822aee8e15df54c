"""A command that stops right before each overwrite of an archive until it may continue, so that another writer meets it.

Usage: python -m lab.faults.paused FOLDER MODULE ARGUMENTS...

Before overwrite N of this process `FOLDER/PID-N.at` appears; it continues once `FOLDER/PID-N.go` exists, or after half a
minute.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from rivertwice.storage.table import Table

PATIENCE_S = 30.0


def main() -> None:
    """Put the stop before the overwrites, then run the module."""
    folder, module = Path(sys.argv[1]), sys.argv[2]
    replace_rows, count = Table.replace_rows, 0

    def stopping(table: Table, *args: Any, **options: Any) -> int:
        nonlocal count
        if Path(str(table.place)).parent.name == "archive":
            count += 1
            stop_at(folder, f"{os.getpid()}-{count}")
        return replace_rows(table, *args, **options)

    Table.replace_rows = stopping  # type: ignore[assignment,method-assign]
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def stop_at(folder: Path, name: str) -> None:
    """Write where the process has stopped, and wait."""
    (folder / f"{name}.at").touch()
    until = time.monotonic() + PATIENCE_S
    while not (folder / f"{name}.go").exists() and time.monotonic() < until:
        time.sleep(0.005)


if __name__ == "__main__":
    main()
