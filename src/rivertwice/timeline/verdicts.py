"""The verdicts on result rows: the one place that names them. They are stored, so they never change.

AGREES: equal, for a known reason. LATE: differs by records that arrived too late, each named. OPEN: the window is not closed
yet. DEFECT: differs, and no rule explains it. NOT_COMPARABLE: the truth cannot be known, and the reason is named.
"""

from __future__ import annotations


class Verdict:
    """The five verdicts on a result row, as they are stored."""

    AGREES = "AGREES"
    LATE = "LATE"
    OPEN = "OPEN"
    DEFECT = "DEFECT"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    ALL = (AGREES, LATE, OPEN, DEFECT, NOT_COMPARABLE)
    BY_GRAVITY = (DEFECT, NOT_COMPARABLE, LATE, OPEN, AGREES)
    """The worst first."""


LATE_RECORD = "late"
"""The cause that a late record is stored as; a verdict is not a cause."""
