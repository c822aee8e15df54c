"""The finding of a lint about one pitfall, and the facts of topics that it is passed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

HOLDS, BROKEN, NOT_CHECKED = "holds", "broken", "not checked"


@dataclass(frozen=True)
class TopicFacts:
    """What Kafka reports about a topic; `retention` None: kept for ever."""

    partitions: int
    retention: timedelta | None
    compacted: bool


@dataclass(frozen=True)
class LintFinding:
    """One check.

    Attributes:
        check: short name of the pitfall.
        state: `holds`, `broken` or `not checked`.
        told: what was checked and what it means, or why it was not checked.
        remedy: what to do, or which command checks it; empty when it holds.
    """

    check: str
    state: str
    told: str
    remedy: str = ""


def worst(findings: Sequence[LintFinding]) -> str:
    """Return the worst state among findings."""
    order = (BROKEN, NOT_CHECKED, HOLDS)
    return min((finding.state for finding in findings), key=order.index, default=HOLDS)
