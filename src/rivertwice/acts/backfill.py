"""Backfill: closed windows are computed again from the log, audited, and published in one commit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from rivertwice.acts.act import Act, Plan, RangeRequest, World
from rivertwice.acts.forms import NOT_IN_FORMS
from rivertwice.core import parse_iso, to_ms
from rivertwice.timeline import Verdict

if TYPE_CHECKING:
    from rivertwice.backfill import AuditReport, BackfillPlan, BackfillRequest
    from rivertwice.engine import SparkOnDemand

STALE, RANGE, LATE = "stale", "range", "late"
_TAKES = {STALE: "from the newest reconcile", LATE: "from the late queue"}


@dataclass(frozen=True)
class BackfillOutcome:
    """What came of a backfill.

    Attributes:
        backfill: its id; None: there was nothing to do.
        sequence: number of its publication; None: it is not published.
    """

    backfill: str | None
    windows: int
    audit: AuditReport | None = None
    sequence: int | None = None
    nothing: str | None = None


class RecomputeRequest(RangeRequest):
    """A request to compute windows again and publish them."""

    scope: Literal["stale", "range", "late"] = Field(
        "stale",
        title="Scope",
        description="stale: the windows of which the newest reconcile found late records in what is served. "
        "range: the windows between From and To. late: those of the late queue that are due.",
    )
    id: str | None = Field(
        None,
        description="Run a stored plan; one that was interrupted continues where it stopped.",
        json_schema_extra={NOT_IN_FORMS: True},
    )
    publish: bool = Field(True, description="False: stop after the audit.", json_schema_extra={NOT_IN_FORMS: True})
    accept_quality: str = Field(
        "",
        description="Publish it although a critical expectation of its suite fails; why. It is recorded.",
        json_schema_extra={NOT_IN_FORMS: True},
    )

    def to_plan(self, asked_at: datetime, reason: str = "manual") -> BackfillRequest:
        """Return what is planned.

        Args:
            asked_at: when it was asked for: the time by which windows of the late queue are due.
            reason: of a request without one.
        """
        from rivertwice.backfill import BackfillRequest

        late_at = asked_at if self.scope == LATE else None
        return BackfillRequest(self.pipeline, self.range, self.reason or reason, late_at)

    def over(self, start: datetime, end: datetime) -> Self:
        """Return the same request for the windows of a range, half-open."""
        return self.model_validate({**self.model_dump(), "scope": RANGE, "start": start, "end": end})

    @model_validator(mode="after")
    def _scope_fits(self) -> Self:
        if self.scope == RANGE and self.start is None:
            message = "scope range has neither start nor end; give both, or ask for scope stale"
            raise ValueError(message)
        if self.scope != RANGE and self.start is not None:
            message = f"scope {self.scope} takes its windows {_TAKES[self.scope]}, but a range is given too; leave one of them out"
            raise ValueError(message)
        return self


def _plan(world: World, request: RecomputeRequest) -> Plan:
    """Plan the windows; what Spark alone knows (sessions) is asked of Spark."""
    from rivertwice.engine import spark_on_demand

    with spark_on_demand(world.settings, f"rivertwice-backfill-{request.pipeline}", remote=True) as spark:
        return _plan_with(world, request, spark)


def _plan_with(world: World, request: RecomputeRequest, spark: SparkOnDemand) -> Plan:
    from rivertwice.backfill import explain_plan, load_backfill_plan, make_plan
    from rivertwice.core import NothingStaleError
    from rivertwice.quality import require_judges

    require_judges(world.settings, request.pipeline, "corrections")
    if request.id is not None:
        made = load_backfill_plan(world.settings.pipeline(request.pipeline), request.id)
    else:
        try:
            made = make_plan(world.settings, request.to_plan(world.asked_at), spark)
        except NothingStaleError as nothing:
            return Plan(None, nothing=str(nothing))
    return Plan(made, text=explain_plan(made))


def _apply(world: World, request: RecomputeRequest) -> BackfillOutcome:
    """Save the plan, compute and audit it, and publish it."""
    from rivertwice.backfill import audit_backfill, compute_backfill, publish_backfill, save_plan
    from rivertwice.engine import spark_on_demand

    settings, name = world.settings, request.pipeline
    with spark_on_demand(settings, f"rivertwice-backfill-{name}", remote=True) as spark:
        plan = world.planned or _plan_with(world, request, spark)
        if plan.nothing is not None:
            return BackfillOutcome(None, 0, nothing=plan.nothing)
        chosen: BackfillPlan = plan.value
        spark.expect(records=chosen.records)
        if request.id is None:
            chosen = save_plan(settings.pipeline(name), chosen)
        for line in plan.text.splitlines():
            world.progress(line)
        compute_backfill(spark(), settings, chosen, world.progress)
        world.progress("audit ...")
        report = audit_backfill(settings, chosen, spark, accepted=request.accept_quality)
    for check in report.checks:
        if check.name == "quality":
            world.progress(f"quality: {check.detail}")
    entry = publish_backfill(settings, chosen) if request.publish else None
    return BackfillOutcome(chosen.id, chosen.windows, report, None if entry is None else entry.seq)


class PlanRequest(RecomputeRequest):
    """A request to plan and store a backfill whose windows are only known from their records, as sessions are, for a later task."""

    request: str = Field(description="Id of the request: what is planned is noted under it.")
    repair: bool = Field(False, description="Without a range: DEFECT windows too, not LATE ones alone.")
    within: tuple[str, ...] = Field(
        (), description="Without a range: only what starts in one of these, each START/END in ISO 8601."
    )
    dry_run: bool = Field(False, description="Plan and explain only.")

    def to_plan(self, asked_at: datetime, reason: str = "manual") -> BackfillRequest:
        """Return what is planned; the arguments are those of `RecomputeRequest.to_plan`."""
        verdicts = (Verdict.LATE, Verdict.DEFECT) if self.repair else (Verdict.LATE,)
        ranges = [each.split("/") for each in self.within]
        within = tuple((to_ms(parse_iso(start)), to_ms(parse_iso(end))) for start, end in ranges) or None
        return replace(super().to_plan(asked_at, reason), verdicts=verdicts, within=within)


@dataclass(frozen=True)
class PlannedOutcome:
    """The backfill that was planned and stored; None: there is nothing to do, or it was a dry run."""

    backfill: str | None


def _plan_for_later(world: World, request: PlanRequest) -> PlannedOutcome:
    """Plan, explain, store, and note the plan under the request."""
    from rivertwice.backfill import note_planned, plan_if_needed, save_plan
    from rivertwice.engine import spark_on_demand

    home = world.settings.pipeline(request.pipeline)
    with spark_on_demand(world.settings, f"plan {request.pipeline}", remote=True) as spark:
        plan = plan_if_needed(world.settings, request.to_plan(world.asked_at), spark, world.progress)
    made = None if plan is None or request.dry_run else save_plan(home, plan)
    note_planned(home, request.request, "" if made is None else made.id)
    return PlannedOutcome(None if made is None else made.id)


PLAN = Act(
    "backfill.plan",
    "Plan",
    "The windows of a backfill are looked up and planned; nothing is computed.",
    PlanRequest,
    _plan,
    _plan_for_later,
    needs_spark=True,
    dag="",
    dry_run=False,
)
BACKFILL = Act(
    "backfill",
    "Run the backfill",
    "The windows are computed again from the log, audited and published; what they serve may change.",
    RecomputeRequest,
    _plan,
    _apply,
    needs_spark=True,
    confirm="served rows may change",
    dag="backfill",
)
