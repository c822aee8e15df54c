"""Compares what is served with the log: verdicts, causes, the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.reconcile.acknowledgements import acknowledge, end_acknowledgement, read_acknowledgements
    from rivertwice.reconcile.derive import read_spans
    from rivertwice.reconcile.gate import DEAD_SHARE
    from rivertwice.reconcile.kinds.tumbling_hopping import emitted_by
    from rivertwice.reconcile.model import SERVED, RowColumns
    from rivertwice.reconcile.results import cause_rows, newest_reconcile, reconcile_runs, verdict_rows
    from rivertwice.reconcile.run import reconcile
    from rivertwice.reconcile.seals.look import ChangesSinceSeal, look_at_changes
    from rivertwice.reconcile.seals.model import forget_seals
    from rivertwice.reconcile.unchanged import count_unsealed, reconcile_unchanged
    from rivertwice.reconcile.view import shape_of
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
