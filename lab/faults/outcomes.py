"""The outcomes of a campaign's runs: a line of JSON each, with a mark of the code that ran, so that codes never mix."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import lab
import rivertwice
from rivertwice.core.instants import parse_iso

LOG = logging.getLogger(__name__)
OURS, CONTROL = "rivertwice", "control"
OF_THE_LAB = ("control", "faults", "oracle")
"""Packages of the lab whose code decides how a run ends."""
FORMAT = 3
"""2 has `began` and `product`, 3 `release` and `commit`; an older line reads as one without them."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one (case, seed).

    Attributes:
        job: `rivertwice`, or `control` for the hand-written script.
        kills: processes that were really killed with SIGKILL.
        figures: what the oracle counted and what the case measured.
        ok: nothing lost, duplicated, wrong or unexplained, and all that the case demands holds.
        detail: why it is not ok.
        began: ISO instant, or empty in older outcomes, which did not record it.
        product: mark of the code that ran, see `product_mark`.
        release, commit: of the same code, see `this_code`.
    """

    case: str
    seed: int
    job: str
    kills: int
    lost: int
    duplicated: int
    wrong: int
    unexplained: int
    ok: bool
    seconds: float
    detail: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    began: str = ""
    product: str = ""
    release: str = ""
    commit: str = ""

    def to_line(self) -> str:
        """Return the outcome as one line of JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, ensure_ascii=False, default=str)

    @classmethod
    def from_line(cls, line: str) -> Outcome:
        """Read a line."""
        return cls(**{key: value for key, value in json.loads(line).items() if key != "format"})


def read_outcomes(path: Path) -> list[Outcome]:
    """Return the outcomes recorded so far; a line that a kill cut short does not count."""
    outcomes = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            outcomes.append(Outcome.from_line(line))
        except json.JSONDecodeError:
            LOG.warning("a line of %s is cut short; that run is made again", path)
    return outcomes


def append_outcome(path: Path, outcome: Outcome) -> None:
    """Record an outcome."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a") as file:
        file.write(("\n" if torn else "") + outcome.to_line() + "\n")


@functools.cache
def product_mark() -> str:
    """Return twelve hex digits of the SHA-256 of all Python files of the product and of its lab: equal if the same code runs."""
    roots = (Path(rivertwice.__file__).parent, *(Path(lab.__file__).parent / name for name in OF_THE_LAB))
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root.parent).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


@functools.cache
def this_code() -> dict[str, Any]:
    """Return `product`, `release` and `commit` of an outcome of this very code.

    The commit has eight hex digits, and `+` behind them if the clone has changes; it is empty outside of a clone.
    """
    here = Path(lab.__file__).parent.parent
    commit = ""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        commit = _git(here, "rev-parse", "--short=8", "HEAD")
        commit += "+" if _git(here, "status", "--porcelain", "--untracked-files=no", "--", "src", "lab") else ""
    return {"product": product_mark(), "release": rivertwice.__version__, "commit": commit}


def _git(folder: Path, *command: str) -> str:
    return subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S607 (the user's git)


def of_this_code(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes of this very code."""
    return [each for each in outcomes if each.product == product_mark()]


def wall_seconds(outcomes: Iterable[Outcome]) -> float:
    """Return for how many seconds at least one of the runs was under way; those without a known begin are left out."""
    spans = sorted((parse_iso(each.began), timedelta(seconds=each.seconds)) for each in outcomes if each.began)
    total, until = timedelta(), None
    for begin, length in spans:
        end: datetime = begin + length
        total += length if until is None or begin >= until else max(timedelta(), end - until)
        until = end if until is None else max(until, end)
    return total.total_seconds()
