"""Windows of a path that several definitions ran on (after an upgrade): which one made each, and whose rule judges it."""

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
"""The judges of a path's definitions by their numbers, each over the whole log; for a fold, only the newest one's."""


def replaced(rows: dict[RowId, Any], others: Mapping[RowId, Any], starts: set[int]) -> dict[RowId, Any]:
    """Return the result rows of all windows; those of the windows in `starts` are taken from `others`, by another rule."""
    unchanged = {row: value for row, value in rows.items() if row.start_ms not in starts}
    return unchanged | {row: value for row, value in others.items() if row.start_ms in starts}


def exchanged(rows: Sequence[T], others: Sequence[T], starts: set[int]) -> list[T]:
    """Return the rows of all windows; those of the windows in `starts` are taken from `others`, by another rule."""
    chosen: list[T] = [row for row in rows if row.row.start_ms not in starts]
    chosen.extend(row for row in others if row.row.start_ms in starts)
    return sorted(chosen, key=lambda row: (row.partition, row.offset, row.row))


def touched_by_own(view: HeadView, judges: Judges, indexes: Collection[int]) -> dict[int, set[int]]:
    """Return path index to the starts of the windows that its rows touch, by its own definition."""
    newest = view.groups[-1]
    own = {
        index: number if (number := view.groups[index]) in judges else newest
        for index in indexes
        if index < len(view.groups)
    }
    touched: dict[int, set[int]] = {}
    for number, judge in judges.items():
        touched |= judge.touched([index for index, owner in own.items() if owner == number])
    return touched


def pairs_by_own(judges: Judges) -> list[PairCount]:
    """Return the pairs of records that passed the row filter, each by the definition that read it."""
    if len(judges) == 1:
        return next(iter(judges.values())).pairs()
    return [pair for number, judge in judges.items() for pair in judge.pairs(number)]


def evidence_of_served(
    view: HeadView, evidence: Evidence, late: Sequence[LateRow], judges: Judges
) -> tuple[Evidence, Sequence[LateRow]]:
    """Return the evidence that judges what is served, and its late rows; the newest definition judges what it published.

    For sessions and intervals, all definitions of a path choose the same records, so they have the same truth.
    """
    window, stamp = view.newest.definition.window, view.served_stamp
    if not view.older or stamp is None or window.kind.follows_records:
        return evidence, late
    judge, shape = judges[view.groups[-1]], evidence.shape
    newest = unique_rows(judge.truth(view.newest.definition), shape)
    starts = sorted({row.start_ms for row in {*evidence.truth, *newest}})
    counted = [publication for publication in view.publications if publication.seq <= stamp.sequence]
    winners = select_winners(np.array(starts, dtype=np.int64), counted, view.semantics).tolist()
    own = {publication.seq for publication in counted if publication.semantics == view.newest.semantics}
    renewed = {start for start, seq in zip(starts, winners, strict=True) if seq in own}
    late = exchanged(late, late_rows(judge, shape, [row.batch for row in view.rows]), renewed)
    amended_before = [row for rows in evidence.amended.values() for row in rows]
    amended = [row for row in amended_rows(judge, shape) if row.until_seq is None]
    changed = replace(
        evidence,
        truth=replaced(dict(evidence.truth), newest, renewed),
        late=late_by_row(late),
        amended=late_by_row(exchanged(amended_before, amended, renewed)),
    )
    return changed, late


def sort_by_version(
    view: HeadView, chain: Chain, judges: Judges, windows: set[tuple[int, int]]
) -> tuple[dict[int, str], dict[int, set[int]]]:
    """Return the windows that cannot be compared, and those that an older definition alone made.

    A record belongs to a window if any of the definitions assigns it: what one left out, another may have taken.
    """
    touched: dict[int, set[int]] = {}
    for judge in judges.values():
        for start, groups in judge.groups().items():
            touched.setdefault(start, set()).update(groups)
    ends = np.array(chain.batch)
    mixed: dict[int, str] = {}
    by_older: dict[int, set[int]] = {}
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
            by_older.setdefault(only, set()).add(start)
    return mixed, by_older


def has_same_windows(view: HeadView, group: int) -> bool:
    """Say whether the newest definition puts records into the same windows as an older one; sessions depend on row filters."""
    new, old = view.newest.definition, view.versions[group].definition
    if new.window != old.window:
        return False
    same_records = new.rows_sql == old.rows_sql and view.versions[group].decode == view.newest.decode
    return same_records or not new.window.kind.follows_records
