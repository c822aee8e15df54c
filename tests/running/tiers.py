"""Which tests `make test` takes: every test that needs no server and no Spark, and of the others those marked `core`.

All other tests are the rest, of which `.ci/run` takes a seventh by their stored durations (`tests/durations.json`, written by
pytest-split for `make durations`; its own shares cut files apart, so that each would start its Airflow again). Both are markers, so
`-m quick` and `-m "not quick"` choose them.
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


def longest_files_first(tests: Iterable[str], durations: Mapping[str, float]) -> dict[str, float]:
    """Return the files of tests and how long each takes, in seconds, the longest first. Pure.

    Workers that take whole files in this order end at about the same time, and none starts a file's Airflow twice.

    Args:
        tests: ids.
        durations: seconds of those that were measured; each other counts as a tenth of a second.
    """
    seconds: Counter[str] = Counter()
    for test in tests:
        seconds[file_of(test)] += durations.get(test, 0.1)  # type: ignore[assignment] # a Counter of floats
    return dict(seconds.most_common())


def share_of(files: Mapping[str, float], landing: int) -> set[str]:
    """Return the files of the share whose turn it is: each goes where least is so far, the longest first. Pure.

    Args:
        files: as `longest_files_first` gives them.
        landing: number of the landing.
    """
    shares: list[set[str]] = [set() for _ in range(SHARES)]
    filled = [0.0] * SHARES
    for name, seconds in files.items():
        least = filled.index(min(filled))
        shares[least].add(name)
        filled[least] += seconds
    return shares[landing % SHARES]


def file_of(test: str) -> str:
    return test.split("::")[0]


def stored_durations() -> dict[str, float]:
    """Return the seconds of each test, as `make durations` stored them."""
    known: dict[str, float] = json.loads((REPOSITORY / "tests" / "durations.json").read_text())
    return known
