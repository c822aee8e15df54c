"""Rows of intervals: made of all records of a window, so late ones explain every row of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rivertwice.reconcile.evidence.evidence import Evidence
from rivertwice.reconcile.evidence.explanations import WHOLE_ROW, Explained, differing
from rivertwice.reconcile.model import RowColumns, RowId, Values
from rivertwice.timeline.keys import key_text
from rivertwice.verdicts import AGREES, DEFECT, LATE

SUPERSEDED = "superseded"


@dataclass(frozen=True)
class IntervalEvidence(Evidence):
    """Late records and amendments are kept under their window's address, without a key."""

    @property
    def late_only_label(self) -> str:
        """Presence of a row that only the stream has: late records of its window would have removed it."""
        return SUPERSEDED

    def cause_id(self, row: RowId) -> RowId:
        """Return the address of a row's window."""
        return row._replace(key=key_text((), ()))

    def explain(self, row: RowId, *, dirty: bool) -> Explained:
        """Explain a row by what its window's late or amended records changed; they need not touch every row."""
        del dirty
        late, amended = len(self.late_of(row)), len(self.amended_of(row))
        return explain_interval(self.shape, self.expected.get(row), self.truth.get(row), late, amended)

    def explain_served(
        self, row: RowId, got: Values | None, base: Values | None, *, published: bool, late: int, amended: int
    ) -> Explained:
        """Explain what is served of a row that is as it must be by its window's causes."""
        if late + amended and not differing(self.shape, got, base):
            return explain_interval(self.shape, got, self.truth.get(row), late, amended)._replace(records=late)
        return super().explain_served(row, got, base, published=published, late=late, amended=amended)


def explain_interval(
    shape: RowColumns, expected: Values | None, truth: Values | None, late: int, amended: int
) -> Explained:
    """Explain a row against the truth by the late and amended records of its window."""
    names = differing(shape, expected, truth)
    if not names:
        return Explained(AGREES, "")
    causes = [f"{late} records of its window came after it had closed"] if late else []
    if amended:
        causes.append(f"{amended} records of its window were dead letters and have been amended")
    if causes:
        return Explained(LATE, f"{', '.join(causes)}; with them {_changed(names)}")
    return Explained(DEFECT, f"the truth differs in {', '.join(names)}, but no record of the window was late")


def _changed(names: Sequence[str]) -> str:
    return "the row is there or not" if names == [WHOLE_ROW] else f"{', '.join(names)} differ"
