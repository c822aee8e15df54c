"""Rows of stateful processing: for a key in several partitions, they may depend on the order of reading. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from rivertwice.reconcile.evidence.evidence import Evidence
from rivertwice.reconcile.model import OrderDependentRows, RowId
from rivertwice.verdicts import NOT_COMPARABLE


@dataclass(frozen=True)
class StatefulEvidence(Evidence):
    """What a judge of a fold looks at.

    Attributes:
        order_dependent: rows that depend on the order in which partitions were read.
    """

    order_dependent: OrderDependentRows = field(default_factory=OrderDependentRows)

    def order_reason(self, row: RowId) -> str | None:
        """Return why no order of the log makes a row true, or None."""
        return self.order_dependent.rows.get(row)

    def is_older(self, row: RowId, verdict: str, reason: str) -> bool:
        """Say whether a row cannot be compared only because it is not the newest of its key, and only the newest must hold."""
        return verdict == NOT_COMPARABLE and row in self.order_dependent.older and reason == self.order_reason(row)
