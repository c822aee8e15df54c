"""A module of the platform that is killed with SIGKILL, with all that it started, right before or after a call of a function.

Usage: python -m lab.faults.struck STRIKE MODULE ARGUMENTS...

STRIKE is the JSON of `strikes.Strike`. The process must be the leader of its group. In a Python worker of Spark, the worker alone is
killed: right before it runs a function that the call was given. A strike that holds stops the process at the call instead: it
writes its id to `FOLDER/held`, and continues once `FOLDER/go` exists.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from lab.faults.strikes import AFTER, BEFORE, GO, HELD, IN_WORKER
from rivertwice.storage.local import replace_json

HOLD_S = 600.0


def main() -> None:
    """Put the kill around the function, set the values, then run the module."""
    strike, module = json.loads(sys.argv[1]), sys.argv[2]
    put_strike(strike)
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def put_strike(strike: Mapping[str, Any]) -> None:
    """Set a strike's values, and put its kill or its stop around its function, in this process.

    Args:
        strike: fields of `strikes.Strike`, and `folder`.
    """
    for name, value in strike["values"].items():
        owner, last = owner_of(name)
        setattr(owner, last, tuple(value) if isinstance(value, list) else value)  # JSON has no tuples
    owner, last = owner_of(strike["function"])
    real, folder = getattr(owner, last), Path(strike["folder"])
    if strike["when"] == IN_WORKER:
        setattr(owner, last, killing_workers(real, folder, strike["count"]))
    else:
        act = partial(hold, folder) if strike["holds"] else kill_group
        setattr(owner, last, acting_around(real, strike["when"], strike["count"], act))


def put_strike_of(file: Path) -> None:
    """Put the strike that a file contains, if there is such a file."""
    try:
        strike = json.loads(file.read_text())
    except FileNotFoundError:
        return
    put_strike(strike)


def kill_group() -> None:
    """Kill this process and all of its group."""
    os.killpg(0, signal.SIGKILL)


def hold(folder: Path) -> None:
    """Write where this process has stopped, and wait until it may continue.

    Raises:
        TimeoutError: nobody let it.
    """
    replace_json(folder / HELD, {"pid": os.getpid()})
    until = time.monotonic() + HOLD_S
    while not (folder / GO).exists():
        if time.monotonic() > until:
            message = f"process {os.getpid()} was held for {HOLD_S:.0f} s, and nobody let it continue"
            raise TimeoutError(message)
        time.sleep(0.01)


def owner_of(name: str) -> tuple[Any, str]:
    """Return the module or class that has a name, and the name's last word."""
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), last


def acting_around(real: Callable[..., Any], when: str, count: int, act: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that does something before or after its call with this number."""
    calls = 0

    @functools.wraps(real)
    def acting(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and when == BEFORE:
            act()
        result = real(*args, **named)
        if calls == count and when == AFTER:
            act()
        return result

    return acting


def killing_workers(real: Callable[..., Any], folder: Path, count: int) -> Callable[..., Any]:
    """Return a function whose functions among its arguments end the first `count` workers that run them."""

    def deadly(work: Any) -> Any:
        if not isinstance(work, FunctionType):
            return work

        def dying(*args: Any) -> Any:
            for number in range(count):
                try:
                    os.close(os.open(folder / f"worker-{number}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*args)

        return dying

    @functools.wraps(real)
    def spreading(*args: Any, **named: Any) -> Any:
        return real(*(deadly(each) for each in args), **{name: deadly(each) for name, each in named.items()})

    return spreading


if __name__ == "__main__":
    main()
