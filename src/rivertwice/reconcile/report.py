"""What a reconcile found, and how long its phases took."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rivertwice.log.addresses import Part
from rivertwice.progress import Progress
from rivertwice.reconcile.balance import Account
from rivertwice.reconcile.gate import Gate
from rivertwice.reconcile.model import Finding, LateRow, Verdict
from rivertwice.reconcile.results import Stamp
from rivertwice.timeline.judgements import Increment
from rivertwice.tracing import record_span


@dataclass(frozen=True)
class ReconcileReport:
    """What a run found.

    Attributes:
        verdicts: of the rows that this run judged; an incremental run leaves settled rows out.
        counts: pair to verdict to number of all result rows; a pair that could not be judged is absent.
        total, partitions: the balance, the latter by topic and partition. late: late rows by address, as far as `verdicts`.
        findings: defects of the ledger and the dead letters. dirty: windows whose digests differed.
        phases: seconds by phase.
        increment: what the run builds on; None: it judged everything.
        sealed: whether the next run may build on it. why: why it judged as much as it did; also in the stored gate, as `reason`.
    """

    stamp: Stamp
    verdicts: Sequence[Verdict]
    counts: Mapping[str, Mapping[str, int]]
    total: Account
    partitions: Mapping[Part, Account]
    late: Sequence[LateRow]
    findings: Sequence[Finding]
    gate: Gate
    dirty: int
    phases: Mapping[str, float] = field(default_factory=dict)
    increment: Increment | None = None
    sealed: bool = False
    why: str = ""

    @property
    def run(self) -> str:
        """Name of the run in the tables."""
        return self.stamp.run

    @property
    def duration_s(self) -> float:
        """Seconds of all phases together."""
        return sum(self.phases.values())


class Phases:
    """Seconds by phase; each end of a phase is one line of progress."""

    def __init__(self, progress: Progress) -> None:
        """Begin the first phase."""
        self.seconds: dict[str, float] = {}
        self._progress = progress
        self._since = time.monotonic()

    def done(self, phase: str, detail: str) -> None:
        """End a phase, with what it gave."""
        now = time.monotonic()
        self.seconds[phase] = round(now - self._since, 3)
        self._since = now
        record_span(f"reconcile.{phase}", self.seconds[phase], detail=detail)
        self._progress(f"reconcile: {phase}: {detail} ({self.seconds[phase]:.1f} s)")
