"""Which tests `make test` takes: every test that needs no server and no Spark, and of the others those marked `core`.

All other tests are the rest, of which `.ci/run` takes a seventh by their stored durations (`tests/durations.json`, in the
format of pytest-split, renewed by `make durations`). Both are markers, so `-m quick` and `-m "not quick"` choose them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from homes.project import REPOSITORY

LANDING = int((REPOSITORY / ".ci" / "landing").read_text())
"""Counts the landings: the seed of random histories, which are thus others at each landing and the same at each repetition."""

SHARES = 7
Case = TypeVar("Case")

NEEDS = frozenset({"spark", "kafka", "airflow", "browser", "long", "faults"})
"""Markers that keep a test out of `make test`, unless it is marked `core`."""


def in_turn(cases: Iterable[Case], count: int = 1, landing: int = LANDING) -> list[Case]:
    """Return `count` of the cases, others in each cycle of seven landings. Pure.

    For tests that prove the same claim for many kinds, each of which takes a minute.
    """
    known: Sequence[Case] = list(cases)
    first = landing // SHARES * count
    return [known[(first + number) % len(known)] for number in range(count)]


def is_quick(marks: Iterable[str]) -> bool:
    """Say whether a test with these markers belongs to `make test`. Pure."""
    given = set(marks)
    return "core" in given or not given & NEEDS
