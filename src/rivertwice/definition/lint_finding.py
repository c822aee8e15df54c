"""What lint and the checks of a definition find, and the facts about topics that they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from rivertwice.core import DefinitionError, parse_iso

if TYPE_CHECKING:
    from rivertwice.definition.bundle import Bundle


class LintLevel:
    """How a check of `lint` ended."""

    HOLDS = "holds"
    BROKEN = "broken"
    NOT_CHECKED = "not checked"
    WARNS = "warns"


@dataclass(frozen=True)
class TopicFacts:
    """What Kafka reports about a topic.

    Attributes:
        retention: how long it keeps records; None: for ever.
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
    order = (LintLevel.BROKEN, LintLevel.WARNS, LintLevel.NOT_CHECKED, LintLevel.HOLDS)
    return min((finding.state for finding in findings), key=order.index, default=LintLevel.HOLDS)


@dataclass(frozen=True)
class CasesRun:
    """A run of a definition's cases: how many, which failed, and when all of them passed last; None: never with these files."""

    at: datetime
    count: int
    failed: tuple[str, ...]
    passed_at: datetime | None


@dataclass(frozen=True)
class CheckReport:
    """What the checks found in a definition.

    Attributes:
        bundle: id of the definition's files.
        findings: why it is refused, one sentence each; empty if it holds.
        keys: key to why it does not divide the work between tasks.
        risks: expressions that can throw on several records together, which stops the stream.
        columns: result column to the fields that it comes from: view, field and how (IDENTITY, TRANSFORMATION, AGGREGATION); "": those
            that decide which rows there are (FILTER, JOIN, GROUP_BY). Empty for a fold, whose code no plan shows.
        cases: the newest run of its cases; None: there was none.
    """

    bundle: str
    findings: tuple[str, ...]
    unchecked: tuple[str, ...]
    keys: Mapping[str, str]
    at: datetime
    risks: tuple[str, ...] = ()
    columns: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    cases: CasesRun | None = None

    @property
    def holds(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def with_cases(self, stored: Mapping[str, Any] | None) -> CheckReport:
        """Return it with a run of the cases as it is stored; None: there was none."""
        if stored is None:
            return self
        passed_at = None if stored["passed_at"] is None else parse_iso(stored["passed_at"])
        run = CasesRun(parse_iso(stored["at"]), int(stored["count"]), tuple(stored["failed"]), passed_at)
        return replace(self, cases=run)

    def require(self) -> None:
        """Refuse a definition that does not hold.

        Raises:
            DefinitionError: every finding with its remedy, one a line.
        """
        if self.findings:
            raise DefinitionError("\n".join(self.findings))


@dataclass(frozen=True)
class Judgement:
    """One definition of a project, also if it is refused.

    Attributes:
        name: name of its folder.
        bundle: the definition; None if it cannot be loaded.
        verdict: the result of the checks; None if it cannot be loaded or was not checked.
        broken: why it is refused, one sentence each.
    """

    name: str
    bundle: Bundle | None
    verdict: CheckReport | None
    broken: tuple[str, ...]
    unchecked: tuple[str, ...]

    @property
    def state(self) -> str:
        """One of `holds`, `broken`, `not checked`."""
        if self.broken:
            return LintLevel.BROKEN
        return LintLevel.HOLDS if self.verdict is not None else LintLevel.NOT_CHECKED
