"""One process per fast path on a host: a lock that the operating system releases with the process, and its holder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rivertwice.config import PipelineHome
from rivertwice.errors import LeaseLostError
from rivertwice.fast.runs import fast_folder
from rivertwice.locks import open_locked
from rivertwice.processes import Started, is_alive, own_start
from rivertwice.store.files import read_json, replace_json

FORMAT = 1


@dataclass(frozen=True)
class FastOwner:
    """The process that runs a fast path."""

    pid: int
    pid_started: Started


def read_fast_owner(home: PipelineHome) -> FastOwner | None:
    """Return the process that runs the fast path, or None if there is none."""
    folder = fast_folder(home)
    data = read_json(folder / "owner.json")
    if data is None or not is_alive(data["pid"], data["pid_started"], lock=folder / "lock"):
        return None
    return FastOwner(data["pid"], data["pid_started"])


def take_fast_lock(home: PipelineHome) -> TextIO:
    """Return the held lock; it is released when it is closed, or when the process ends.

    Raises:
        LeaseLostError: another process holds it.
    """
    folder: Path = fast_folder(home)
    file = open_locked(folder / "lock")
    if file is None:
        owner = read_fast_owner(home)
        holder = "another process" if owner is None else f"pid {owner.pid}"
        message = f"the fast path of {home.root.name} is run by {holder} already; `rivertwice stop` ends it, or wait"
        raise LeaseLostError(message)
    replace_json(folder / "owner.json", {"format": FORMAT, "pid": os.getpid(), "pid_started": own_start()})
    return file
