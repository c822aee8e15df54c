"""Windows of a path that several definitions ran on: which one made each, and by whose rule it is judged. Behind an upgrade."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from rivertwice.reconcile.balance import PairCount
from rivertwice.reconcile.evidence.evidence import Evidence
from rivertwice.reconcile.frames import late_by_row, unique_rows
from rivertwice.reconcile.kinds.judge import Judge, amended_rows, late_rows
from rivertwice.reconcile.model import AmendedRow, LateRow, RowId
from rivertwice.reconcile.rederive import Chain
from rivertwice.reconcile.view import HeadView
from rivertwice.timeline.serving import select_winners

T = TypeVar("T", LateRow, AmendedRow)
Judges = Mapping[int, Judge]
"""The judges of a path's definitions by their numbers, each over the whole log; of a fold the newest one's alone."""


def replaced(rows: dict[RowId, Any], others: Mapping[RowId, Any], starts: set[int]) -> dict[RowId, Any]:
    """Return result rows of all windows, those of some as another rule has them."""
    kept = {row: value for row, value in rows.items() if row.start_ms not in starts}
    return kept | {row: value for row, value in others.items() if row.start_ms in starts}


def exchanged(rows: Sequence[T], others: Sequence[T], starts: set[int]) -> list[T]:
    """Return rows of all windows, those of some as another rule has them."""
    found: list[T] = [one for one in rows if one.row.start_ms not in starts]
    found.extend(one for one in others if one.row.start_ms in starts)
    return sorted(found, key=lambda one: (one.partition, one.offset, one.row))


def touched_by_own(view: HeadView, judges: Judges, indexes: Collection[int]) -> dict[int, set[int]]:
    """Return path index to the starts of the windows that its rows touch, as its own definition has them."""
    newest = view.groups[-1]
    own = {
        index: number if (number := view.groups[index]) in judges else newest
        for index in indexes
        if index < len(view.groups)
    }
    found: dict[int, set[int]] = {}
    for number, judge in judges.items():
        found |= judge.touched([index for index, one in own.items() if one == number])
    return found


def pairs_by_own(judges: Judges) -> list[PairCount]:
    """Return the pairs of records that passed the row filter, each as the definition that read it has it."""
    if len(judges) == 1:
        return next(iter(judges.values())).pairs()
    return [pair for number, judge in judges.items() for pair in judge.pairs(number)]


def evidence_of_served(
    view: HeadView, evidence: Evidence, late: Sequence[LateRow], judges: Judges
) -> tuple[Evidence, Sequence[LateRow]]:
    """Return what is served is judged by, and its late rows: where the newest definition published a window, by that one.

    Of sessions and intervals no definition of a path chooses other records, so each has the same truth.
    """
    window, stamp = view.newest.definition.window, view.served_stamp
    if not view.older or stamp is None or window.kind.follows_records:
        return evidence, late
    judge, shape = judges[view.groups[-1]], evidence.shape
    newest = unique_rows(judge.truth(view.newest.definition), shape)
    starts = sorted({row.start_ms for row in {*evidence.truth, *newest}})
    counted = [one for one in view.publications if one.seq <= stamp.sequence]
    winners = select_winners(np.array(starts, dtype=np.int64), counted, view.semantics).tolist()
    own = {one.seq for one in counted if one.semantics == view.newest.semantics}
    renewed = {start for start, seq in zip(starts, winners, strict=True) if seq in own}
    late = exchanged(late, late_rows(judge, shape, [row.batch for row in view.rows]), renewed)
    kept = [one for rows in evidence.amended.values() for one in rows]
    amended = [one for one in amended_rows(judge, shape) if one.until_seq is None]
    changed = replace(
        evidence,
        truth=replaced(dict(evidence.truth), newest, renewed),
        late=late_by_row(late),
        amended=late_by_row(exchanged(kept, amended, renewed)),
    )
    return changed, late


def sort_by_version(
    view: HeadView, chain: Chain, judges: Judges, windows: set[tuple[int, int]]
) -> tuple[dict[int, str], dict[int, set[int]]]:
    """Return the windows that cannot be compared, and those that an older definition alone made.

    A record belongs to a window if any of the definitions says so: one that a definition left out may have been taken by another.
    """
    touched: dict[int, set[int]] = {}
    for one in judges.values():
        for start, groups in one.groups().items():
            touched.setdefault(start, set()).update(groups)
    ends = np.array(chain.batch)
    mixed: dict[int, str] = {}
    pure: dict[int, set[int]] = {}
    for start, end in windows:
        groups = set(touched.get(start, set()))
        emitter = int(np.searchsorted(ends, end))  # the first batch whose watermark reaches the window's end
        if emitter < len(view.groups):
            groups.add(view.groups[emitter])
        only = next(iter(groups)) if len(groups) == 1 else None
        if only is None:
            mixed[start] = "mixed: more than one definition read or emitted the window"
        elif view.versions[only] is not view.newest and not has_same_windows(view, only):
            mixed[start] = (
                "mixed: another definition made the window, and records are followed by the newest one's windows"
            )
        elif view.versions[only] is not view.newest:
            pure.setdefault(only, set()).add(start)
    return mixed, pure


def has_same_windows(view: HeadView, group: int) -> bool:
    """Say whether the newest definition's windows place the records as an older one's did; sessions depend on its row filter."""
    new, old = view.newest.definition, view.versions[group].definition
    if new.window != old.window:
        return False
    same_records = new.rows_sql == old.rows_sql and view.versions[group].decode == view.newest.decode
    return same_records or not new.window.kind.follows_records
