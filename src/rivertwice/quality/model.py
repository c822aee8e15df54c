"""What an expectation said of rows, and which windows fail still. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rivertwice.core import iso_of_ms
from rivertwice.timeline import Ranges, joined, merged

WINDOWS, CORRECTIONS = "windows", "corrections"
SUBJECTS = (WINDOWS, CORRECTIONS)
CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)

PASSED, FAILED, STILL_FAILS, ERRORED, ACCEPTED = "passed", "failed", "still fails", "errored", "accepted"
"""What a stored result is. STILL_FAILS: its own rows passed, windows that were judged before and not since fail. ACCEPTED: a person
said that what failed is known."""

MOST_EXAMPLES = 10
"""So many rows are named for an expectation."""
MOST_RANGES = 32
"""So many stretches of failing windows are kept for an expectation; the nearest ones are joined."""


@dataclass(frozen=True)
class Judgement:
    """What one expectation says of the rows of one run.

    Attributes:
        id: of the expectation: what it asks, whatever its name in the file (`expectation_id`).
        type: of Great Expectations. column: the column that it is about, empty if it is about none or several.
        severity: `critical`, `warning` or `info`.
        state: one of the states above.
        because: why somebody expects it, from `meta.because`; else its type.
        observed: what was found, as JSON; None: nothing was.
        unexpected: how many rows are not as expected; None: it is not about single rows.
        examples: some of these rows, as window, key and value.
        failing: starts of windows (epoch ms) that fail, those of earlier runs too that were not judged since.
        since: the run that found the first of them.
        error: why it could not be judged; empty if it could.
    """

    id: str
    type: str
    column: str
    severity: str
    state: str
    because: str
    observed: str | None = None
    unexpected: int | None = None
    examples: tuple[Mapping[str, Any], ...] = ()
    failing: tuple[tuple[int, int], ...] = ()
    since: str = ""
    error: str = ""

    @property
    def fails(self) -> bool:
        """Whether something of it fails, now or still."""
        return self.state in (FAILED, STILL_FAILS, ERRORED)

    @property
    def blocks(self) -> bool:
        """Whether it makes a gate fail: it fails and is critical, or could not be judged."""
        return self.fails and (self.severity == CRITICAL or self.state == ERRORED)

    def describe(self) -> str:
        """Return it as one sentence: what was expected, what was found, in which windows.

        No keys and values of rows are in it, because it is stored in many places: an erasure finds those in the table `quality`.
        """
        place = f"{self.type}{f' on {self.column}' if self.column else ''}"
        if self.state == ERRORED:
            return f"{self.because} [{place}] could not be judged: {self.error}"
        return f"{self.because} [{place}]: {'; '.join(self._found())}"

    def _found(self) -> list[str]:
        found = []
        if self.unexpected:
            found.append(f"{self.unexpected} rows are not so")
        if self.observed is not None and self.observed[:1] not in ("[", "{"):
            found.append(f"observed {self.observed}")
        if self.failing:
            found.append(f"windows that start in {describe_ranges(self.failing)}")
        return found or ["it does not hold"]

    def example_texts(self) -> list[str]:
        """Return each example as a text: window, key and value."""
        return [" ".join(f"{name}={value}" for name, value in row.items()) for row in self.examples]


def describe_ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """Return ranges of window starts for people: the first ones, and how many more there are."""
    shown = " and ".join(f"[{iso_of_ms(start)}, {iso_of_ms(end)})" for start, end in ranges[:2])
    return shown if len(ranges) <= 2 else f"{shown} and {len(ranges) - 2} more ranges"


def expectation_id(entry: Mapping[str, Any]) -> str:
    """Return what names an expectation of a suite: a hash of its type, its arguments and its severity.

    An expectation that is changed is another one: what the old one found is over.
    """
    asked = [entry.get("type"), entry.get("kwargs") or {}, entry.get("severity") or CRITICAL]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:12]


def without(ranges: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]) -> Ranges:
    """Return the parts of half-open ranges that are in none of some others."""
    left = merged(ranges)
    for low, high in merged(taken):
        left = [
            part
            for start, end in left
            for part in ((start, min(end, low)), (max(start, high), end))
            if part[0] < part[1]
        ]
    return merged(left)


def continue_from(
    before: Sequence[Judgement], now: Sequence[Judgement], judged: Sequence[tuple[int, int]], run: str
) -> list[Judgement]:
    """Return what is true after a run: its own judgements, with the windows that failed before and were not judged again.

    Args:
        judged: starts of the windows that it judged (epoch ms).
    """
    failed = {each.id: each for each in before if each.fails}
    return [_continued(failed.get(each.id), each, judged, run) for each in now]


def _continued(before: Judgement | None, now: Judgement, judged: Sequence[tuple[int, int]], run: str) -> Judgement:
    left = [] if before is None else without(before.failing, judged)
    if before is None or not left:
        return replace(now, since=run) if now.fails else now
    if not now.fails:
        return replace(
            now,
            state=STILL_FAILS,
            observed=before.observed,
            unexpected=before.unexpected,
            examples=before.examples,
            failing=tuple(left),
            since=before.since,
        )
    failing = joined(merged([*left, *now.failing]), MOST_RANGES)
    return replace(now, failing=tuple(failing), since=before.since)


def still_true(before: Sequence[Judgement], ids: Sequence[str]) -> list[Judgement]:
    """Return what is still true of a suite when nothing was judged: of the expectations that it still has."""
    wanted = set(ids)
    return [each for each in before if each.id in wanted]
