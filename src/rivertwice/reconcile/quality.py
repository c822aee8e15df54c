"""What a reconcile's gate says of users' own suites over the windows that are served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rivertwice.config import PipelineHome, Settings
from rivertwice.config.versions import base_of
from rivertwice.errors import SuiteError
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.on_demand import Spark
from rivertwice.quality.model import CRITICAL, INFO, WARNING, Judgement, describe_ranges
from rivertwice.quality.standing import standing
from rivertwice.quality.windows import judge_windows
from rivertwice.reconcile.gate import QUALITY, GateAlert
from rivertwice.timeline.judgements import Range


@dataclass(frozen=True)
class QualityCheck:
    """What a suite adds to the gate of a run.

    Attributes:
        alerts: for the gate.
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
    """Return what the gate says when no window was judged: what failed before and nobody corrected or accepted."""
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
