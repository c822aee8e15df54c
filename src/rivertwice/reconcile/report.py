"""What a reconcile found: its report, and the users' suites that it judges."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rivertwice.core import PipelineHome, Progress, Settings, SuiteError, base_of, record_span
from rivertwice.definition import Definition
from rivertwice.engine import Spark
from rivertwice.log import Part
from rivertwice.quality import CRITICAL, INFO, WARNING, Judgement, describe_ranges, judge_windows, standing
from rivertwice.reconcile.gate import QUALITY, Gate, GateAlert
from rivertwice.reconcile.model import Account, DefectFinding, LateRow, RowVerdict
from rivertwice.reconcile.results import Stamp
from rivertwice.timeline import Increment, Range


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
    verdicts: Sequence[RowVerdict]
    counts: Mapping[str, Mapping[str, int]]
    total: Account
    partitions: Mapping[Part, Account]
    late: Sequence[LateRow]
    findings: Sequence[DefectFinding]
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


# What a reconcile's gate says of users' own suites over the windows that are served.


@dataclass(frozen=True)
class QualityCheck:
    """What a suite adds to the gate of a run.

    Attributes:
        described: a line for people.
        is_judged: whether the suite judged the windows; one with a mistake judges nothing, so a later run must look at them again.
    """

    alerts: list[GateAlert]
    described: str
    is_judged: bool = True


def check_windows(
    settings: Settings,
    home: PipelineHome,
    definition: Definition,
    spark: Spark,
    ranges: Sequence[Range] | None,
    run: str,
    now: datetime,
) -> QualityCheck | None:
    """Judge the served rows of the windows that a run judged by `expectations/PIPELINE/windows.json`; None if there is none."""
    try:
        check = judge_windows(settings, home, definition, spark, ranges, run, now)
    except SuiteError as error:
        return QualityCheck(_mistakes(home, error), "nothing, because the suite has a mistake", is_judged=False)
    if check is None:
        return None
    failing = sum(each.fails for each in check.judgements)
    rows = "no row" if check.judged is None else f"{check.judged.rows} rows ({check.judged.engine})"
    described = f"{rows} by {check.path}, {failing} of {len(check.judgements)} expectations fail"
    return QualityCheck(alerts_of(home.root.name, check.judgements), described)


def standing_alerts(settings: Settings, home: PipelineHome) -> list[GateAlert]:
    """Return what the gate says when no window was judged: what failed before and was neither corrected nor accepted."""
    try:
        known = standing(settings, home)
    except SuiteError as error:
        return _mistakes(home, error)
    return [] if known is None else alerts_of(home.root.name, known.judgements)


def _mistakes(home: PipelineHome, error: SuiteError) -> list[GateAlert]:
    remedy = f"nothing was judged by it; correct it, check it by `rivertwice lint {base_of(home.root.name)}` and reconcile again"
    return [GateAlert(CRITICAL, QUALITY, f"{mistake}; {remedy}") for mistake in str(error).splitlines()]


def alerts_of(pipeline: str, judgements: Sequence[Judgement]) -> list[GateAlert]:
    """Return one alert for each expectation that fails; one of severity `info` is recorded alone. Pure."""
    return [
        GateAlert(CRITICAL if each.blocks else WARNING, QUALITY, f"{each.describe()}; {_remedy(pipeline, each)}")
        for each in judgements
        if each.blocks or (each.fails and each.severity != INFO)
    ]


def _remedy(pipeline: str, judgement: Judgement) -> str:
    places = describe_ranges(judgement.failing[:1]) if judgement.failing else "all windows"
    return (
        f"the rows are what the log gives, so the data or the expectation are wrong: after a correction of {places} the next "
        f'reconcile judges them again; `rivertwice quality {pipeline} --accept {judgement.id} --reason "WHY"` accepts it'
    )
