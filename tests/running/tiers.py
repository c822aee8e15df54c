"""Which tests `make test` takes: every test that needs no server and no Spark, and of the others those marked `core`.

All other tests are the rest, of which `.ci/run` takes a seventh by their stored durations (`tests/durations.json`, in the
format of pytest-split, renewed by `make durations`). Both are markers, so `-m quick` and `-m "not quick"` choose them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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


def longest_files_first(tests: Iterable[str], durations: Mapping[str, float]) -> list[str]:
    """Return the ids of tests file by file, those first that take longest together, in seconds. Pure.

    Workers that take whole files in this order end at about the same time, and none starts a file's Airflow twice.
    """
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.split("::")[0], []).append(test)
    seconds = Counter({name: sum(durations.get(test, 0.0) for test in own) for name, own in files.items()})
    return [test for name, _ in seconds.most_common() for test in files[name]]


def stored_durations() -> dict[str, float]:
    """Return the seconds of each test, as `make durations` stored them."""
    known: dict[str, float] = json.loads((REPOSITORY / "tests" / "durations.json").read_text())
    return known
