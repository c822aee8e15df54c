"""The register of fault cases. A case is a function over a Lab; modules named `cases_*` of this package hold them."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lab.faults
from lab.faults.errors import CaseFailedError, LabError, require
from rivertwice.core.errors import RequestError

if TYPE_CHECKING:
    from lab.faults.lab import Lab

__all__ = ["Case", "CaseFailedError", "LabError", "all_cases", "case", "main_cases", "require", "select_cases"]

_NAME = re.compile(r"^F([0-9]{1,2})(/[a-z0-9_-]{1,40})?$")
_CASES: dict[str, Case] = {}


@dataclass(frozen=True)
class Case:
    """One way to break the product, and what must hold afterwards.

    Attributes:
        name: fault id of the matrix, perhaps with a variant: `F4`, `F24/commits`.
        title: what is done, in words.
        run: does it; raises CaseFailedError if something does not hold.
        seeds: seeds of a campaign that asks for no other number.
        kills: process kills of one run, as planned.
        control: the control job goes through the same fault.
        quick: belongs to the quick part that every test run has.
        spark: starts a driver (a Spark JVM).
        judge: the oracle judges the end.
        proves: the sections of the docs that it proves, as `PAGE#SECTION`.
    """

    name: str
    title: str
    run: Callable[[Lab], None]
    seeds: int
    kills: int
    control: bool
    quick: bool
    spark: bool
    judge: bool
    proves: tuple[str, ...] = ()

    @property
    def fault(self) -> str:
        """The fault id without its variant."""
        return self.name.partition("/")[0]

    @property
    def order(self) -> tuple[int, str]:
        """Cases are run in the matrix's order."""
        return int(self.fault[1:]), self.name


def case(
    name: str,
    title: str,
    *,
    seeds: int = 3,
    kills: int = 0,
    control: bool = False,
    quick: bool = False,
    spark: bool = True,
    judge: bool = True,
    proves: tuple[str, ...] = (),
) -> Callable[[Callable[[Lab], None]], Callable[[Lab], None]]:
    """Register the decorated function as a case.

    Raises:
        RequestError: the name is no fault id, or is taken.
    """

    def register(run: Callable[[Lab], None]) -> Callable[[Lab], None]:
        if not _NAME.match(name):
            message = f"{name!r} names no fault; write the matrix's id, perhaps with a variant: F4 or F24/commits"
            raise RequestError(message)
        if name in _CASES and _CASES[name].run.__qualname__ != run.__qualname__:
            message = f"two cases are named {name}; an outcome names its case, so give one of them a variant: {name}/x"
            raise RequestError(message)
        _CASES[name] = Case(name, title, run, seeds, kills, control, quick, spark, judge, proves)
        return run

    return register


def all_cases() -> list[Case]:
    """Return every case of this package's `cases_*` modules, in the matrix's order."""
    for module in pkgutil.iter_modules(lab.faults.__path__):
        if module.name.startswith("cases_"):
            importlib.import_module(f"{lab.faults.__name__}.{module.name}")
    return sorted(_CASES.values(), key=lambda each: each.order)


def main_cases(cases: Sequence[Case], controls: Sequence[Case]) -> list[Case]:
    """Return one case of each fault, in order: the one on the control job's line, else the first; the others are variants."""
    lines = {each.name for each in controls}
    chosen: dict[str, Case] = {}
    for each in sorted(cases, key=lambda each: (each.name not in lines, each.order)):
        chosen.setdefault(each.fault, each)
    return sorted(chosen.values(), key=lambda each: each.order)


def select_cases(cases: list[Case], wanted: str | None, *, exact: bool = False) -> list[Case]:
    """Return the cases of `wanted` (comma-separated fault ids or names; None: all), in order.

    Args:
        cases: to choose from.
        wanted: `F24` means F24 and all its variants.
        exact: `F4` means the case of that very name, if there is one.

    Raises:
        RequestError: a wanted one does not exist.
    """
    if wanted is None:
        return cases
    chosen: list[Case] = []
    for name in (part.strip() for part in wanted.split(",")):
        same = [each for each in cases if each.name == name]
        matching = same if exact and same else [each for each in cases if name in (each.name, each.fault)]
        if not matching:
            message = f"no case {name!r}; `rivertwice faults list` shows them"
            raise RequestError(message)
        chosen.extend(each for each in matching if each not in chosen)
    return sorted(chosen, key=lambda each: each.order)
