"""A folder of a new user: nothing in it, its own services, and the commands in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from homes.project import REPOSITORY, link

Run = Callable[..., Any]


@contextmanager
def own_folder(folder: Path) -> Iterator[Run]:
    """Give what runs a command line in a folder and returns its JSON; all services are taken down in the end."""
    link(folder, [".build"])
    env = {name: value for name, value in os.environ.items() if not name.startswith("RIVERTWICE")}
    env |= {"PYTHONPATH": str(REPOSITORY / "src"), "RIVERTWICE_SPARK_MASTER": "local[2]"}

    def command(*arguments: str, code: int | None = 0) -> Any:
        argv = [sys.executable, "-m", "rivertwice.cli.main", "--output", "json", *arguments]
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False)
        assert code in (None, done.returncode), (arguments, done.stdout[-3000:], done.stderr[-3000:])
        return json.loads(done.stdout) if done.stdout.strip() else None

    try:
        yield command
    finally:
        command("down", code=None)
