"""What judging a view of the head gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rivertwice.log.addresses import Part
from rivertwice.reconcile.assess import Derived
from rivertwice.reconcile.balance import PairCount
from rivertwice.reconcile.evidence.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.kinds.judge import Judge
from rivertwice.reconcile.model import Finding, LateRow, RowId, Verdict
from rivertwice.reconcile.recorded import RecordedDeadLetter
from rivertwice.reconcile.spread.spread import Spread
from rivertwice.reconcile.verdict import select_dirty_windows
from rivertwice.reconcile.view import HeadView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Judged:
    """What a view of the head gave.

    Attributes:
        judge: of the newest definition; it has all that it computed.
        late: late records of the batches that were not compared before.
        touched: those of them whose windows are settled and not in scope, by the row that they are missing from.
        dead: dead letters that the log requires. dead_counts: those recorded, by partition.
        pairs: pairs of record and window; without those that the seal counts.
        without_output: records that yielded no row, for kinds that have such.
        can_increment: whether a later run may build on this one.
        spread: what executors judged; `evidence`, `served`, `verdicts` and `late` are then of the other windows alone.
        dead_rows: with `spread`, the dead letters that the log requires, in place of `dead`.
    """

    derived: Derived
    judge: Judge
    evidence: Evidence
    served: ServedEvidence | None
    verdicts: Sequence[Verdict]
    findings: Sequence[Finding]
    late: Sequence[LateRow]
    touched: Mapping[RowId, Sequence[LateRow]]
    dead: Sequence[RecordedDeadLetter]
    dead_counts: Mapping[Part, int]
    pairs: Sequence[PairCount]
    without_output: Mapping[Part, int] | None
    can_increment: bool
    spread: Spread | None = None
    dead_rows: DataFrame | None = None

    def release(self) -> None:
        """Release what executors keep; called when everything is stored."""
        for frame in (None if self.spread is None else self.spread.judged, self.dead_rows):
            if frame is not None:
                frame.unpersist()

    @property
    def dirty(self) -> int:
        """How many windows have rows that differ between stream, expected and truth."""
        return len(select_dirty_windows(self.evidence)) + (0 if self.spread is None else self.spread.dirty)


def touched_rows(view: HeadView, late: Sequence[LateRow]) -> dict[RowId, list[LateRow]]:
    """Return late records of windows that a view does not judge, by the row that they are missing from."""
    touched: dict[RowId, list[LateRow]] = {}
    for record in late:
        if not view.judges(record.row.start_ms):
            touched.setdefault(record.row, []).append(record)
    return touched


def count_presence(verdicts: Sequence[Verdict], presence: str) -> Counter[str]:
    """Return pair to number of verdicts with this presence."""
    return Counter(verdict.pair for verdict in verdicts if verdict.presence == presence)
