"""Rows that differ between two versions and that nobody declared: whether late records are the cause, or no cause can be known.

Their windows are computed from the log by both definitions, in batch, where a late record counts like any other.
"""

from __future__ import annotations

from rivertwice.backfill.kinds import find_planner
from rivertwice.backfill.observe import observe_backfill
from rivertwice.trial.stretch import without_unknown_losses
from rivertwice.versions.explain_folds import explain_folds
from rivertwice.versions.explain_sessions import explain_sessions
from rivertwice.versions.explain_windows import explain_windows
from rivertwice.versions.explained import Explained, Unexplained


def explain_rows(case: Unexplained) -> Explained:
    """Find the rows that differ by late records alone, and those that cannot be compared.

    Raises:
        LogGapError: a record that a window needs is in neither Kafka nor the archive.
    """
    if any(find_planner(each) is None for each in case.definitions):
        return explain_folds(case)
    view, _ = without_unknown_losses(observe_backfill(case.settings, case.home.root.name))
    return explain_windows(case, view) if view.sessions is None else explain_sessions(case, view)
