"""Repair of windows: the smallest backfill that cures what the newest reconcile found."""

from __future__ import annotations

from dataclasses import replace

from rivertwice.acts.act import Act, Plan, Request, World
from rivertwice.acts.backfill import BACKFILL, BackfillOutcome, RecomputeRequest


class RepairRequest(Request):
    """A request to repair what the newest reconcile found wrong in what is served."""


def _plan(world: World, request: RepairRequest) -> Plan:
    from rivertwice.agent.alert_gates import judge_gate
    from rivertwice.backfill.model import BackfillRequest
    from rivertwice.backfill.prepare import make_plan
    from rivertwice.engine.session import spark_on_demand
    from rivertwice.reconcile.results import newest_reconcile
    from rivertwice.upkeep.window_repairs import curable, describe, explain, find_proposal

    settings, name = world.settings, request.pipeline
    newest = newest_reconcile(settings.pipeline(name))
    kinds = () if newest is None else curable(judge_gate(newest["gate"]["alerts"], newest["counts"]))
    found = find_proposal(settings, name, kinds) if kinds else None
    if found is None:
        return Plan(None, nothing=f"the newest reconcile of {name} found nothing that a backfill cures")
    proposal, plan = found
    if plan is None:  # sessions are only known from their records
        asked = BackfillRequest(
            name, None, request.reason or "repair", verdicts=proposal.verdicts, within=proposal.ranges
        )
        with spark_on_demand(settings, f"rivertwice-repair-{name}") as spark:
            plan = make_plan(settings, asked, spark)
    return Plan(plan, [("repair", describe(proposal))], text=explain(plan))


def _apply(world: World, request: RepairRequest) -> BackfillOutcome:
    plan = world.planned or _plan(world, request)
    backfill = RecomputeRequest(pipeline=request.pipeline, reason=request.reason)
    return BACKFILL.apply(replace(world, planned=plan), backfill)


REPAIR = Act(
    "repair",
    "Find a repair",
    "The smallest backfill that cures what the newest reconcile found is planned. A person approves it before it runs, unless the "
    "definition lets late rows within a budget be repaired by themselves.",
    RepairRequest,
    _plan,
    _apply,
    needs_spark=True,
    confirm="served rows may change",
    dag="repair",
    dry_run=False,
)
