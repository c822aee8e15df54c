"""Repair of windows: the smallest backfill that cures what the newest reconcile found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rivertwice.acts.act import Act, ActName, Plan, Request, World
from rivertwice.acts.backfill import BACKFILL, BackfillOutcome, RecomputeRequest

if TYPE_CHECKING:
    from rivertwice.backfill import BackfillPlan
    from rivertwice.core import Settings
    from rivertwice.upkeep import Decision, Proposal


class RepairRequest(Request):
    """A request to repair what the newest reconcile found wrong in what is served."""


@dataclass(frozen=True)
class FoundRepair:
    """The smallest backfill that cures what the newest reconcile found.

    Attributes:
        proposal: its windows, and the rows in them.
        plan: of it; None: sessions are only planned from their records, which takes Spark.
    """

    proposal: Proposal
    plan: BackfillPlan | None
    decision: Decision


def find_repair(settings: Settings, pipeline: str) -> FoundRepair | None:
    """Return what is to be repaired of a pipeline; None: no reconcile has run, or it found nothing that a backfill cures.

    Raises:
        RequestError: the windows cannot be recomputed.
        LogGapError: neither the archive nor Kafka has a record that is needed.
        ServiceError: Kafka does not answer.
    """
    from rivertwice.agent import judge_gate
    from rivertwice.core import utc_now
    from rivertwice.definition import load_definition
    from rivertwice.reconcile import newest_reconcile
    from rivertwice.upkeep import Repairs, decide, find_proposal

    home = settings.pipeline(pipeline)
    newest = newest_reconcile(home)
    found = (
        None
        if newest is None
        else find_proposal(settings, pipeline, judge_gate(newest["gate"]["alerts"], newest["counts"]))
    )
    if found is None:
        return None
    policy = load_definition(settings.definition_folder(pipeline)).repair
    return FoundRepair(*found, decide(policy, found[0], Repairs(home).read(), utc_now()))


def _plan(world: World, request: RepairRequest) -> Plan:
    from rivertwice.backfill import BackfillRequest, explain_plan, make_plan
    from rivertwice.engine import spark_on_demand

    settings, name = world.settings, request.pipeline
    found = find_repair(settings, name)
    if found is None or not found.decision.wanted:
        why = (
            f"the newest reconcile of {name} found nothing that a backfill cures"
            if found is None
            else found.decision.why
        )
        return Plan(None, nothing=why)
    proposal, plan = found.proposal, found.plan
    if plan is None:
        reason = request.reason or "repair"
        asked = BackfillRequest(name, None, reason, verdicts=proposal.verdicts, within=proposal.ranges)
        with spark_on_demand(settings, f"rivertwice-repair-{name}") as spark:
            plan = make_plan(settings, asked, spark)
    return Plan(plan, [("repair", proposal.text)], text=explain_plan(plan))


def _apply(world: World, request: RepairRequest) -> BackfillOutcome:
    plan = world.planned or _plan(world, request)
    backfill = RecomputeRequest(pipeline=request.pipeline, reason=request.reason)
    return BACKFILL.apply(replace(world, planned=plan), backfill)


REPAIR = Act(
    ActName.REPAIR,
    "Find a repair",
    "The smallest backfill that cures what the newest reconcile found is planned. A person approves it before it runs, unless the "
    "definition lets late rows within a budget be repaired by themselves.",
    RepairRequest,
    _plan,
    _apply,
    needs_spark=True,
    confirm="served rows may change",
    dag="backfill",
    dry_run=False,
)
