"""Why a row differs from the truth, in words and by count: late records, amendments, sessions that came apart. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rivertwice.reconcile.evidence import Evidence
from rivertwice.reconcile.model import (
    AGREES,
    DEFECT,
    LATE,
    Family,
    LateRow,
    RowId,
    ServedSession,
    Shape,
    Values,
)

_WHOLE = "the whole row"


def explain(
    shape: Shape, expected: Values | None, truth: Values | None, late: int, amended: int, *, dirty: bool
) -> tuple[str, str, int]:
    """Explain what the stream rightly emitted against the truth: (verdict, reason, unexplained records)."""
    names = differing(shape, expected, truth) if dirty else []
    missing = shape.count(truth) - shape.count(expected)
    caused = late + amended
    if not names and missing == caused == 0:
        return AGREES, "", 0
    if caused and missing == caused:
        return LATE, say_counts(late, amended, shape.count(truth), "came after the window closed"), 0
    detail = (
        f"the late rule and amendments explain {caused} of {missing} missing records"
        if missing != caused
        else "no record explains it"
    )
    return DEFECT, f"the truth differs in {', '.join(names) or 'nothing'}, but {detail}", missing - caused


def say_counts(late: int, amended: int, total: int, came: str) -> str:
    """Return how many records came too late, and how many were amended."""
    parts = [f"{late} of {total} records {came}"] if late else []
    if amended:
        parts.append(f"{amended} of {total} were dead letters and have been amended")
    return "; ".join(parts)


def explain_slice(
    shape: Shape, expected: Values | None, truth: Values | None, late: int, amended: int = 0
) -> tuple[str, str, int]:
    """Explain a row of a slice: what its window's late or amended records changed; they need not touch every row."""
    names = differing(shape, expected, truth)
    if not names:
        return AGREES, "", 0
    causes = [f"{late} records of its window came after it had closed"] if late else []
    if amended:
        causes.append(f"{amended} records of its window were dead letters and have been amended")
    if causes:
        return LATE, f"{', '.join(causes)}; with them {_changed(names)}", 0
    return DEFECT, f"the truth differs in {', '.join(names)}, but no record of the window was late", 0


def _changed(names: Sequence[str]) -> str:
    return "the row is there or not" if names == [_WHOLE] else f"{', '.join(names)} differ"


def explain_family(evidence: Evidence, family: Family) -> tuple[str, str, int]:
    """Explain sessions of the stream against the one session of the truth that holds them all.

    No record may be missing but the late ones, and there must be a named record that made them differ: one that was
    dropped, or one that came when a part of its session had been emitted.
    """
    count = evidence.shape.count
    total = count(evidence.truth.get(family.truth))
    missing = total - sum(count(evidence.expected.get(part)) for part in family.parts)
    late, amended, split = len(family.late), len(family.amended), len(family.split)
    if missing != late + amended:
        caused = late + amended
        reason = f"the late rule and amendments explain {caused} of {missing} missing records of the session"
        return DEFECT, reason, missing - caused
    reasons = [said] if (said := say_counts(late, amended, total, "came too late")) else []
    if split:
        reasons.append(_said_split(family.split, len(family.parts), total))
    if not reasons:
        return DEFECT, "the session differs, but no record explains it", 0
    return LATE, "; ".join(reasons), 0


def _said_split(split: Sequence[LateRow], parts: int, total: int) -> str:
    where = f"{split[0].topic}/{split[0].partition}@{split[0].offset}"
    return (
        f"split: the session came apart into {parts}, for {len(split)} of {total} records (the first is {where}) "
        "came when a part of it had been emitted"
    )


def explain_served_session(
    evidence: Evidence, session: ServedSession, row: RowId, got: Values | None
) -> tuple[str, str, int]:
    """Explain what is served of a session that publications overlap: (verdict, reason, missing records)."""
    total = sum(evidence.shape.count(evidence.truth.get(one)) for one in (session.truth, *session.others))
    names = differing(evidence.shape, got, session.owed.get(row))
    missing = len(session.late) + len(session.since) if row == session.truth else 0
    if names:
        unlike = evidence.shape.count(session.owed.get(row)) - evidence.shape.count(got)
        return DEFECT, f"what is served differs in {', '.join(names)} and no cause explains it", unlike
    if session.unexplained:
        detail = f"{session.unexplained} of {total} records are in no session that is served, though they came in time"
        return DEFECT, f"{detail}; no cause explains it", session.unexplained
    said = say_counts(len(session.late), len(session.amended), total, "came too late")
    reasons = [said] if said else []
    if session.since:
        reasons.append(f"{len(session.since)} of {total} records came after the newest publication")
    if session.former:
        reasons.append(f"{len(session.former)} records of what is published were amended then, and are not so any more")
    if session.split:
        reasons.append(_said_split(session.split, len(session.owed), total))
    if not reasons:
        return DEFECT, "the session differs, but no record explains it", 0
    return LATE, "; ".join(reasons), missing


def differing(shape: Shape, left: Values | None, right: Values | None) -> list[str]:
    """Return the columns in which two rows differ; if one is absent, that it is the whole row."""
    if left is None or right is None:
        return [] if left is right else [_WHOLE]
    return shape.differences(left, right)


def listed(shape: Shape, names: Sequence[str], got: Values, want: Values) -> str:
    """Return how columns differ, with both values."""
    index = {name: position for position, name in enumerate(shape.columns)}
    return ", ".join(f"{name} ({got[index[name]]} instead of {want[index[name]]})" for name in names)
