"""Compares what is served with the log: verdicts, causes, the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivertwice.core.face import lazy_names

if TYPE_CHECKING:
    from rivertwice.reconcile.acknowledgements import acknowledge, end_acknowledgement, read_acknowledgements
    from rivertwice.reconcile.derive import batch_marks, read_spans, tag_batches
    from rivertwice.reconcile.gate import DEAD_SHARE
    from rivertwice.reconcile.model import SERVED, RowColumns
    from rivertwice.reconcile.results import cause_rows, newest_reconcile, reconcile_runs, verdict_rows
    from rivertwice.reconcile.run import reconcile
    from rivertwice.reconcile.seals.look import ChangesSinceSeal, find_broken, look_at_changes, new_publications
    from rivertwice.reconcile.seals.model import forget_seals
    from rivertwice.reconcile.unchanged import count_unsealed, reconcile_unchanged
    from rivertwice.reconcile.view import shape_of
else:
    __getattr__ = lazy_names(__name__)

__all__ = [
    "DEAD_SHARE",
    "SERVED",
    "ChangesSinceSeal",
    "RowColumns",
    "acknowledge",
    "batch_marks",
    "cause_rows",
    "count_unsealed",
    "end_acknowledgement",
    "find_broken",
    "forget_seals",
    "look_at_changes",
    "new_publications",
    "newest_reconcile",
    "read_acknowledgements",
    "read_spans",
    "reconcile",
    "reconcile_runs",
    "reconcile_unchanged",
    "shape_of",
    "tag_batches",
    "verdict_rows",
]
