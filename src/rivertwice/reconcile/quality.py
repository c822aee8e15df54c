"""What a reconcile's gate says of users' own suites over the windows that are served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rivertwice.config import PipelineHome, Settings
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.on_demand import Spark
from rivertwice.quality.model import CRITICAL, INFO, WARNING, Judgement, describe_ranges
from rivertwice.quality.standing import standing
from rivertwice.quality.windows import judge_windows
from rivertwice.reconcile.gate import QUALITY, GateAlert
from rivertwice.timeline.judgements import Range


@dataclass(frozen=True)
class QualityCheck:
    """What a suite adds to the gate of a run; `described` is a line for people."""

    alerts: list[GateAlert]
    described: str


def check_windows(
    settings: Settings,
    home: PipelineHome,
    definition: Definition,
    spark: Spark,
    ranges: Sequence[Range] | None,
    run: str,
    now: datetime,
) -> QualityCheck | None:
    """Judge the served rows of the windows that a run judged by `expectations/PIPELINE/windows.json`; None if there is none.

    Raises:
        SuiteError: something in the suite is wrong, so nothing may look as if it had been checked.
    """
    check = judge_windows(settings, home, definition, spark, ranges, run, now)
    if check is None:
        return None
    failing = sum(each.fails for each in check.judgements)
    rows = "no row" if check.judged is None else f"{check.judged.rows} rows ({check.judged.engine})"
    described = f"{rows} by {check.path}, {failing} of {len(check.judgements)} expectations fail"
    return QualityCheck(alerts_of(home.root.name, check.judgements), described)


def standing_alerts(settings: Settings, home: PipelineHome) -> list[GateAlert]:
    """Return what the gate says when no window was judged: what failed before and nobody corrected or accepted.

    Raises:
        SuiteError: the suite cannot be read.
    """
    known = standing(settings, home)
    return [] if known is None else alerts_of(home.root.name, known.judgements)


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
