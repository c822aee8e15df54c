"""Break the effects of operations, wherever the product has imported them."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import pytest

from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.savepoint import feed, prove_origin
from rivertwice.savepoint.catalogue import Savepoint
from rivertwice.savepoint.operations import effects, fall_back, fork, restore, restore_checks, rewind
from rivertwice.savepoint.operations import fork as drain
from rivertwice.savepoint.operations import restore as restore_show
from rivertwice.savepoint.operations import restore_checks as planned
from rivertwice.savepoint.operations import rewind as catch_up
from rivertwice.savepoint.operations import rewind as rewind_observe

MODULES: tuple[ModuleType | type, ...] = (
    effects,
    feed,
    prove_origin,
    drain,
    fork,
    planned,
    restore,
    restore_checks,
    restore_show,
    rewind,
    rewind_observe,
    catch_up,
    fall_back,
    Savepoint,
)


class World(NamedTuple):
    """A home in which operations run: its proved savepoint, and where its topic's log begins, by partition."""

    settings: Settings
    home: PipelineHome
    taken: Savepoint
    begin: dict[int, int]


class Crash(BaseException):
    """The process dies here."""


def patch_effect(patch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Let a function, or a method of a savepoint, of that name be another one in every module of the operations that has it.

    Raises:
        AssertionError: none has it, so the test would break nothing.
    """
    having = [module for module in MODULES if hasattr(module, name)]
    assert having, f"no module of the operations has {name}"
    for module in having:
        patch.setattr(module, name, value)


def die_around(patch: pytest.MonkeyPatch, name: str, *, after: bool = False, count: int = 1) -> None:
    """Let the process die before, or right after, the call of an effect; of several the one with this number."""
    real = next(getattr(module, name) for module in MODULES if hasattr(module, name))
    seen: list[int] = []

    def dying(*args: Any, **named: Any) -> Any:
        seen.append(1)
        if len(seen) < count:
            return real(*args, **named)
        if after:
            real(*args, **named)
        raise Crash

    patch_effect(patch, name, dying)
