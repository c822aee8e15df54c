"""Find the smallest backfill that cures what the newest reconcile found, count rows again, and keep what became of repairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from rivertwice.backfill.explain import explain_plan
from rivertwice.backfill.model import BackfillPlan, BackfillRequest
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.ranges import HalfOpenRange, coalesce
from rivertwice.backfill.session_plan import MOST_RANGES, stale_within
from rivertwice.cockpit.repairs import RUNNING, VERDICT_OF, Proposal, RepairRecord, curable
from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import RequestError
from rivertwice.instants import to_ms
from rivertwice.locks import lock
from rivertwice.reconcile.model import SERVED
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.store.files import read_json, replace_json
from rivertwice.timeline.judgements import rows_of, verdicts_of
from rivertwice.verdicts import DEFECT, LATE

FORMAT = 1
KEPT = 50
"""Repairs that are kept; older ones are in Airflow's own runs."""


def find_proposal(
    settings: Settings, pipeline: str, kinds: Collection[str]
) -> tuple[Proposal, BackfillPlan | None] | None:
    """Return the smallest backfill that cures the newest reconcile's alerts of some kinds, and its plan; None: nothing differs.

    Sessions are only planned from their records, which takes Spark: then there is no plan.

    Raises:
        RequestError: the windows cannot be recomputed: the pipeline is a fold, or they are not closed on the head's path.
        LogGapError: neither the archive nor Kafka has a record that is needed.
        ServiceError: Kafka does not answer.
    """
    home, wanted = settings.pipeline(pipeline), curable(kinds)
    newest = newest_reconcile(home)
    if newest is None or not wanted:
        return None
    verdicts = tuple(VERDICT_OF[kind] for kind in wanted)
    view = observe_backfill(settings, pipeline, verdicts)
    if view.sessions is not None:
        seeds = view.sessions.stale
        if not seeds:
            return None
        ranges = coalesce(((seed.start_ms, seed.start_ms + 1) for seed in seeds), view.window_ms, MOST_RANGES)
        rows = count_rows_in(home, newest["run"], ranges, verdicts)
        return Proposal(newest["run"], wanted, ranges, len(seeds), rows), None
    if not view.stale:
        return None
    plan = plan_backfill(BackfillRequest(pipeline, None, "repair", verdicts=verdicts), view)
    rows = count_rows_in(home, newest["run"], plan.ranges, verdicts)
    return Proposal(newest["run"], wanted, plan.ranges, plan.windows, rows, plan.records), plan


def plan_approved(settings: Settings, pipeline: str, proposal: Proposal, reason: str) -> BackfillPlan | None:
    """Return the plan of what was approved and still differs; None: nothing does any more. Sessions are not planned here."""
    view = observe_backfill(settings, pipeline, proposal.verdicts)
    if not still_differs(view.stale, proposal.ranges):
        return None
    request = BackfillRequest(pipeline, None, reason, verdicts=proposal.verdicts, within=proposal.ranges)
    return plan_backfill(request, view)


def sessions_still_differ(settings: Settings, pipeline: str, proposal: Proposal) -> bool:
    """Say whether any of the sessions that were approved still differs."""
    view = observe_backfill(settings, pipeline, proposal.verdicts)
    return view.sessions is not None and bool(stale_within(view.sessions.stale, proposal.ranges))


def still_differs(stale: Sequence[HalfOpenRange], approved: Sequence[HalfOpenRange]) -> bool:
    """Say whether any window of some ranges is still stale. Pure."""
    return any(start < high and low < end for start, end in stale for low, high in approved)


def count_rows_in(
    home: PipelineHome, run: str, ranges: Sequence[HalfOpenRange], verdicts: Sequence[str] = (DEFECT, LATE)
) -> dict[str, int]:
    """Return verdict to served rows that a reconcile found so, in windows that start in some ranges."""
    counted: Counter[str] = Counter()
    for row in verdicts_of(home, run, ranges=list(ranges), wanted=list(verdicts)):
        start = to_ms(row["window_start"])
        if row["pair"] == SERVED and any(low <= start < high for low, high in ranges):
            counted[row["verdict"]] += rows_of(row)
    return dict(counted)


def explain(plan: BackfillPlan | None) -> str:
    """Return a plan in words; none: no words."""
    return "" if plan is None else explain_plan(plan)


def read_repairs(home: PipelineHome) -> list[RepairRecord]:
    """Return the repairs of a pipeline, oldest first.

    Raises:
        RequestError: the file is of a format that this version does not read.
    """
    stored = read_json(home.repairs)
    if stored is None:
        return []
    if stored.get("format") != FORMAT:
        message = f"{home.repairs} has format {stored.get('format')!r}, this version reads {FORMAT}; use the version that wrote it"
        raise RequestError(message)
    return [RepairRecord.from_json(record) for record in stored["repairs"]]


def kinds_under_repair(home: PipelineHome) -> frozenset[str]:
    """Return the kinds of alerts that a repair is at work on, which will end them with the numbers of before and after."""
    running = (record for record in read_repairs(home) if record.outcome == RUNNING)
    return frozenset(kind for record in running for kind in record.proposal.kinds)


def keep_answer(home: PipelineHome, run: str, reason: str) -> None:
    """Keep why a person approved or declined the repair of a run; nothing is kept of a run that has none."""
    stored = next((record for record in read_repairs(home) if record.id == run), None)
    if stored is not None:
        write_repair(home, run, lambda newer: replace(newer or stored, answer=reason))


def write_repair(home: PipelineHome, run: str, change: Callable[[RepairRecord | None], RepairRecord]) -> RepairRecord:
    """Store a repair and return it; one of the same run is replaced, so a task that is tried again leaves one.

    Args:
        home: of the pipeline.
        run: id of the DAG run.
        change: gives the record from the one that is stored.
    """
    with lock(home.repairs.with_suffix(".lock"), mode=0o600):
        known = read_repairs(home)
        changed = change(next((record for record in known if record.id == run), None))
        kept = [record for record in known if record.id != run]
        records = sorted([*kept, changed], key=lambda record: (record.at, record.id))[-KEPT:]
        replace_json(home.repairs, {"format": FORMAT, "repairs": [record.to_json() for record in records]})
    return changed
