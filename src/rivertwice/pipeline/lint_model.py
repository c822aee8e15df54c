"""The finding of a lint about one pitfall, and the facts of topics that it is passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

HOLDS, BROKEN, NOT_CHECKED, WARNS = "holds", "broken", "not checked", "warns"


@dataclass(frozen=True)
class TopicFacts:
    """What Kafka reports about a topic.

    Attributes:
        partitions: how many it has.
        retention: how long it keeps records; None: for ever.
        compacted: it drops superseded records.
        compacted_after: how long it keeps them at least.
        held: records that each partition holds now.
        middles_ms: the timestamp of each partition's middle record, epoch ms.
        span_ms: from the first record's timestamp to the last one's.
    """

    partitions: int
    retention: timedelta | None
    compacted: bool
    held: Mapping[int, int] = field(default_factory=dict)
    middles_ms: Mapping[int, int] = field(default_factory=dict)
    span_ms: int = 0
    compacted_after: timedelta = timedelta(0)


@dataclass(frozen=True)
class LintFinding:
    """One check.

    Attributes:
        check: short name of the pitfall.
        state: `holds`, `broken`, `not checked`, or `warns`: nothing is wrong, but it costs something.
        told: what was checked and what it means, or why it was not checked.
        remedy: what to do, or which command checks it; empty when it holds.
    """

    check: str
    state: str
    told: str
    remedy: str = ""


def worst(findings: Sequence[LintFinding]) -> str:
    """Return the worst state among findings."""
    order = (BROKEN, WARNS, NOT_CHECKED, HOLDS)
    return min((finding.state for finding in findings), key=order.index, default=HOLDS)
