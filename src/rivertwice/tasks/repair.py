"""What the tasks of `backfill__P` do in a run that repairs: find the smallest backfill, plan what was approved, close the alert.

Between them it is computed, audited, published and awaited as any other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rivertwice.acts import ActName, FoundRepair, PlanRequest, Request, arguments_of, find_repair
from rivertwice.core import RequestError, RivertwiceError, Settings, iso_of_ms, utc_now
from rivertwice.tasks.forms import RunReason
from rivertwice.tasks.names import is_reconcile_of, request_of
from rivertwice.tasks.run import APPROVE, TaskFailedError, TaskRun, TaskSkippedError
from rivertwice.tasks.steps import form_of

if TYPE_CHECKING:
    from rivertwice.upkeep import Proposal, RepairOutcome, RepairRecord

log = logging.getLogger(__name__)
BY_DEFINITION = "Airflow, as repair: {policy: automatic} allows"


def may_repair(settings: Settings, run: TaskRun, pipeline: str) -> bool:
    """Say, after a reconcile, whether a repair is to be started: something is wrong that one cures, and none is under way."""
    found = _find_if_possible(settings, pipeline)
    if found is None or not found.decision.wanted:
        why = "no backfill cures anything" if found is None else found.decision.why
        log.info("no repair of %s is started: %s", pipeline, why)
        return False
    if run.active_repairs:
        log.info("a repair of %s is under way, or waits for a person; no other is started", pipeline)
    return not run.active_repairs


def may_ask_again(settings: Settings, run: TaskRun, pipeline: str, closed: dict[str, Any]) -> bool:
    """Say, after a repair that ended well, whether a person is asked for what its reconcile found beyond it.

    What runs by itself waits for the next reconcile: else a stream that is late all the time would be repaired all the time.
    """
    from rivertwice.upkeep import RepairOutcome

    found = _find_if_possible(settings, pipeline)
    ended_well = closed["outcome"] in (RepairOutcome.DONE, RepairOutcome.UNNEEDED)
    if not ended_well or found is None or not found.decision.wanted or not found.decision.asks:
        return False
    return not run.active_repairs


def find_smallest(settings: Settings, run: TaskRun, pipeline: str) -> dict[str, Any]:
    """Return the smallest backfill that cures what the newest reconcile found, and what is asked of a person.

    Raises:
        TaskSkippedError: there is nothing to repair.
    """
    from rivertwice.backfill import explain_plan
    from rivertwice.upkeep import RepairRecord, Repairs

    asked = _asked_repair(pipeline, run)
    if asked is None:
        message = "this run repairs nothing"
        raise TaskSkippedError(message)
    if run.active_repairs:
        message = f"another repair of {pipeline} is under way, or waits for a person"
        raise TaskSkippedError(message)
    found = find_repair(settings, pipeline)
    if found is None or not found.decision.wanted:
        why = (
            "no reconcile has run yet, or it found nothing that a backfill cures"
            if found is None
            else found.decision.why
        )
        message = f"nothing is to be repaired of {pipeline}: {why}"
        raise TaskSkippedError(message)
    proposal, decision = found.proposal, found.decision
    Repairs(settings.pipeline(pipeline)).write(
        run.run, lambda known: known or RepairRecord(run.run, proposal, utc_now(), reason=asked.reason)
    )
    waits = "a person has to approve it" if decision.asks else "it runs by itself"
    _amend(settings, pipeline, proposal, {"repair": f"{proposal.text}; {waits}", "repair_run": run.run})
    log.info("the smallest backfill: %s; %s", proposal.text, decision.why)
    plan = "" if found.plan is None else explain_plan(found.plan)
    return {
        **asdict(proposal),
        "asks": decision.asks,
        "subject": proposal.question(pipeline),
        "body": proposal.ask(pipeline, decision, plan, asked.reason),
    }


def open_repairs(settings: Settings, run: TaskRun, pipeline: str) -> list[str]:
    """Return the DAG runs, other than this one, whose repair has not ended by its record; that a killed run has is never closed."""
    from rivertwice.upkeep import Repairs

    return [each.id for each in Repairs(settings.pipeline(pipeline)).read() if each.is_open and each.id != run.run]


def is_repair(_settings: Settings, run: TaskRun, pipeline: str) -> bool:
    """Say whether the run repairs what a reconcile found."""
    return _asked_repair(pipeline, run) is not None


def is_approval_wanted(_settings: Settings, _run: TaskRun, _pipeline: str, found: dict[str, Any]) -> bool:
    """Say whether a person has to approve."""
    return bool(found["asks"])


def _found(run: TaskRun, pipeline: str) -> dict[str, Any] | None:
    """Return what the run proposed; None: there is nothing to repair.

    Raises:
        RequestError: the pipeline's DAG repairs nothing.
    """
    if "find" not in run.results:
        message = f"no repair of {pipeline} is looked for: its definition says compare: false or repair: {{policy: off}}, or its windows have no backfill of their own"
        raise RequestError(message)
    found: dict[str, Any] | None = run.results["find"]
    return found


def plan_repair(settings: Settings, run: TaskRun, pipeline: str) -> str:
    """Plan what was approved and still differs, and return the backfill's id; an empty text: nothing does any more."""
    from rivertwice.backfill import explain_plan, save_plan
    from rivertwice.upkeep import plan_approved

    found = _found(run, pipeline)
    if found is None:
        return ""
    proposal = _approved(run, found)
    _begin(settings, run, pipeline, found)
    made = plan_approved(settings, pipeline, proposal, _reason(run, found))
    if made is None:
        log.info("the windows were published since; nothing is left to repair")
        return ""
    for line in explain_plan(made).splitlines():
        log.info("%s", line)
    return str(save_plan(settings.pipeline(pipeline), made).id)


def check_repair(settings: Settings, run: TaskRun, pipeline: str) -> list[str]:
    """Return the arguments of the job that plans the sessions that were approved; none if none differs any more."""
    from rivertwice.upkeep import sessions_still_differ

    found = _found(run, pipeline)
    if found is None:
        return []
    proposal = _approved(run, found)
    _begin(settings, run, pipeline, found)
    if not sessions_still_differ(settings, pipeline, proposal):
        log.info("the sessions were published since; nothing is left to repair")
        return []
    request = request_of(run.run)
    within = tuple(f"{iso_of_ms(start)}/{iso_of_ms(end)}" for start, end in proposal.ranges)
    asked = PlanRequest(
        pipeline=pipeline, request=request, repair=True, within=within, reason=_reason(run, found)[:200]
    )
    return arguments_of(asked)


@dataclass(frozen=True)
class ClosedRepair:
    """How a repair ended: by whose word, with which backfill, the rows by verdict before and after, and the reconcile that counted."""

    outcome: RepairOutcome
    by: str
    backfill: str
    before: Mapping[str, int]
    after: Mapping[str, int] | None
    reconcile: str


def close_repair(settings: Settings, run: TaskRun, pipeline: str) -> ClosedRepair:
    """Record how the repair ended, and end its alert with the numbers of before and after.

    Raises:
        TaskSkippedError: there was nothing to repair.
        TaskFailedError: the windows differ still.
    """
    from rivertwice.reconcile import reconcile_runs
    from rivertwice.tasks.reports import report_gate
    from rivertwice.upkeep import RepairOutcome, RepairRecord, Repairs, count_rows, count_rows_in

    home, found = settings.pipeline(pipeline), run.results["find"]
    if found is None:
        message = "nothing was to be repaired"
        raise TaskSkippedError(message)
    proposal = _proposal(found)
    answer, backfill = run.results["approve"], run.results["plan"]
    published = run.results["publish"] is not None
    own = [each for each in reconcile_runs(home) if is_reconcile_of(run.run, each["run"])]
    after = count_rows_in(home, own[-1]["run"], proposal.ranges) if published and own else None
    outcome = find_outcome(found, answer, backfill, published=published, after=after)
    record = Repairs(home).write(
        run.run,
        lambda known: replace(
            known or RepairRecord(run.run, proposal, utc_now()),
            outcome=outcome,
            by=who_decided(found, answer),
            backfill=backfill or "",
            after=after,
            ended_at=utc_now(),
            note=outcome.note,
        ),
    )
    _end_alert(settings, pipeline, record)
    if own:
        whole = outcome == RepairOutcome.DONE
        report_gate(settings, run, pipeline, own[-1], whole=whole)
    if outcome == RepairOutcome.FAILED and after is not None:
        message = (
            f"backfill {backfill} was published, but reconcile {own[-1]['run']} still finds {count_rows(after)} in its windows; the alert "
            f"stays open, and the next repair begins from there; `rivertwice verdicts {pipeline}` shows the rows"
        )
        raise TaskFailedError(message, is_reported=True)
    log.info("the repair of %s ended: %s", pipeline, record.note)
    reconcile = own[-1]["run"] if own else proposal.reconcile
    return ClosedRepair(outcome, record.by, record.backfill, proposal.rows, after, reconcile)


def find_outcome(
    found: dict[str, Any],
    answer: dict[str, Any] | None,
    backfill: str | None,
    *,
    published: bool,
    after: dict[str, int] | None,
) -> RepairOutcome:
    """Return how a repair ended, from what its tasks returned. Pure.

    Args:
        found: what `find` returned.
        answer: what a person answered; None: no person was asked, or the task that asks failed.
        backfill: id of the plan; empty: nothing was left to do; None: nothing was planned.
        after: verdict to rows that still differ; None: no reconcile looked.
    """
    from rivertwice.upkeep import RepairOutcome

    if answer is not None and answer.get("chosen_options") != [APPROVE]:
        return RepairOutcome.DECLINED if answer.get("responded_by_user") else RepairOutcome.UNANSWERED
    if answer is None and found["asks"]:
        return RepairOutcome.FAILED
    if backfill == "":
        return RepairOutcome.UNNEEDED
    cured = published and after is not None and not any(after.get(verdict) for verdict in _proposal(found).verdicts)
    return RepairOutcome.DONE if cured else RepairOutcome.FAILED


def who_decided(found: dict[str, Any], answer: dict[str, Any] | None) -> str:
    """Return who approved or declined, for the record. Pure."""
    if answer is None:
        return "" if found["asks"] else BY_DEFINITION
    user = answer.get("responded_by_user") or {}
    return f"{user.get('name') or user.get('id')} in Airflow" if user else ""


def propose(settings: Settings, pipeline: str) -> dict[str, str]:
    """Return what a gate's message says about the repair of what it found, as details of an alert; empty: no backfill cures it."""
    found = _find_if_possible(settings, pipeline)
    return {"repair": found.proposal.text} if found is not None and found.decision.wanted else {}


def under_repair(settings: Settings, run: TaskRun, pipeline: str) -> frozenset[str]:
    """Return the kinds of alerts that a repair at work will end itself, with the numbers of before and after."""
    from rivertwice.upkeep import Repairs

    kinds = Repairs(settings.pipeline(pipeline)).kinds_at_work
    return kinds if run.active_repairs else frozenset()


def _asked_repair(pipeline: str, run: TaskRun) -> Request | None:
    form = form_of("backfill", pipeline, run)
    return form.request if form.act.name == ActName.REPAIR else None


def _find_if_possible(settings: Settings, pipeline: str) -> FoundRepair | None:
    """Return what is to be repaired; what no backfill cures was reported by the gate, so it is not reported as a failure again."""
    try:
        return find_repair(settings, pipeline)
    except RivertwiceError as error:
        log.warning("no backfill of %s can be planned for what the gate found: %s", pipeline, error)
        return None


def _proposal(found: dict[str, Any]) -> Proposal:
    from rivertwice.upkeep import Proposal

    return Proposal.from_json({name: found[name] for name in Proposal.__dataclass_fields__})


def _approved(run: TaskRun, found: dict[str, Any]) -> Proposal:
    """Return what was proposed, if it is approved or needs no approval.

    Raises:
        TaskFailedError: it was not approved.
    """
    answer = run.results["approve"]
    if found["asks"] and (answer is None or answer.get("chosen_options") != [APPROVE]):
        message = "the repair was not approved; start the DAG again"
        raise TaskFailedError(message)
    return _proposal(found)


def _begin(settings: Settings, run: TaskRun, pipeline: str, found: dict[str, Any]) -> None:
    """Record that a repair runs now, and who approved it."""
    from rivertwice.upkeep import RepairOutcome, RepairRecord, Repairs

    proposal, by = _proposal(found), who_decided(found, run.results["approve"])
    Repairs(settings.pipeline(pipeline)).write(
        run.run,
        lambda known: replace(
            known or RepairRecord(run.run, proposal, utc_now()), outcome=RepairOutcome.RUNNING, by=by
        ),
    )
    _amend(settings, pipeline, proposal, {"repair": f"{proposal.text}; it runs, approved by {by}", "repair_run": ""})


def _reason(run: TaskRun, found: dict[str, Any]) -> str:
    """Return what the backfill keeps as its reason."""
    by = who_decided(found, run.results["approve"]) or RunReason.MANUAL
    return f"repair of {' and '.join(found['kinds'])} of reconcile {found['reconcile']}, approved by {by}"


def _amend(settings: Settings, pipeline: str, proposal: Proposal, details: dict[str, str]) -> None:
    from rivertwice.agent import alerts_of

    alerts_of(settings).amend(
        lambda alert: alert.cause.pipeline == pipeline and alert.cause.kind in proposal.kinds, details
    )


def _end_alert(settings: Settings, pipeline: str, record: RepairRecord) -> None:
    """End the alerts of a repair that is over, or note who declined it."""
    from rivertwice.agent import alerts_of
    from rivertwice.upkeep import RepairOutcome

    store, kinds = alerts_of(settings), record.proposal.kinds
    if record.outcome in (RepairOutcome.DONE, RepairOutcome.UNNEEDED):
        why = record.before_and_after if record.outcome == RepairOutcome.DONE else record.note
        store.resolve(lambda alert: alert.cause.pipeline == pipeline and alert.cause.kind in kinds, why, utc_now())
        return
    _amend(settings, pipeline, record.proposal, {"repair": f"{record.outcome}: {record.note}", "repair_run": ""})
    if record.outcome == RepairOutcome.DECLINED:
        for alert in store.state().alerts:
            if alert.cause.pipeline == pipeline and alert.cause.kind in kinds and not alert.closed:
                why = f"declined its repair{f': {record.answer}' if record.answer else ''}"
                store.acknowledge(alert.id, record.by, why, utc_now())
