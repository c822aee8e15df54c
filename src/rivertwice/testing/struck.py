"""A module of the platform that is killed with SIGKILL, with all that it started, right before or after a call of a function.

Usage: python -m rivertwice.testing.struck STRIKE MODULE ARGUMENTS...

STRIKE is the JSON of `strikes.Strike`. The process must be the leader of its group. In a Python worker of Spark, the worker alone is
killed: right before it runs a function that the call was given.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from rivertwice.testing.strikes import AFTER, BEFORE, IN_WORKER


def main() -> None:
    """Put the kill around the function, set the values, then run the module."""
    strike, module = json.loads(sys.argv[1]), sys.argv[2]
    for name, value in strike["values"].items():
        owner, last = owner_of(name)
        setattr(owner, last, value)
    owner, last = owner_of(strike["function"])
    real = getattr(owner, last)
    if strike["when"] == IN_WORKER:
        setattr(owner, last, killing_workers(real, Path(strike["folder"]), strike["count"]))
    else:
        setattr(owner, last, killed_around(real, strike["when"], strike["count"]))
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def owner_of(name: str) -> tuple[Any, str]:
    """Return the module or class that has a name, and the name's last word."""
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), last


def killed_around(real: Callable[..., Any], when: str, count: int) -> Callable[..., Any]:
    """Return a function that ends the process group before or after its call with this number."""
    calls = 0

    @functools.wraps(real)
    def dying(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and when == BEFORE:
            os.killpg(0, signal.SIGKILL)
        result = real(*args, **named)
        if calls == count and when == AFTER:
            os.killpg(0, signal.SIGKILL)
        return result

    return dying


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
