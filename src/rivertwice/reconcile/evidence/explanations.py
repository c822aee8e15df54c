"""Why a row differs from the truth, in words and by count. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rivertwice.reconcile.model import RowColumns, Values
from rivertwice.verdicts import AGREES, DEFECT, LATE

WHOLE_ROW = "the whole row"


class Explained(NamedTuple):
    """A verdict with its reason.

    Attributes:
        records: for LATE how many records are missing, where that is counted; else how many nothing explains.
    """

    verdict: str
    reason: str
    records: int = 0


def explain(
    shape: RowColumns, expected: Values | None, truth: Values | None, late: int, amended: int, *, dirty: bool
) -> Explained:
    """Explain how what the stream correctly emitted differs from the truth."""
    names = differing(shape, expected, truth) if dirty else []
    missing = shape.count(truth) - shape.count(expected)
    caused = late + amended
    if not names and missing == caused == 0:
        return Explained(AGREES, "")
    if caused and missing == caused:
        return Explained(LATE, say_counts(late, amended, shape.count(truth), "came after the window closed"))
    detail = (
        f"the late rule and amendments explain {caused} of {missing} missing records"
        if missing != caused
        else "no record explains it"
    )
    reason = f"the truth differs in {', '.join(names) or 'nothing'}, but {detail}"
    return Explained(DEFECT, reason, missing - caused)


def say_counts(late: int, amended: int, total: int, phrase: str) -> str:
    """Return how many records came too late, and how many were amended."""
    parts = [f"{late} of {total} records {phrase}"] if late else []
    if amended:
        parts.append(f"{amended} of {total} were dead letters and have been amended")
    return "; ".join(parts)


def differing(shape: RowColumns, left: Values | None, right: Values | None) -> list[str]:
    """Return the columns in which two rows differ; if one is absent, that it is the whole row."""
    if left is None or right is None:
        return [] if left is right else [WHOLE_ROW]
    return shape.differences(left, right)


def listed(shape: RowColumns, names: Sequence[str], got: Values, want: Values) -> str:
    """Return how columns differ, with both values."""
    index = {name: position for position, name in enumerate(shape.columns)}
    return ", ".join(f"{name} ({got[index[name]]} instead of {want[index[name]]})" for name in names)
