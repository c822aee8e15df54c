"""The steps by name: what a task of a DAG does apart from its Spark jobs. An agent does these for a worker elsewhere, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rivertwice.core import RequestError, Settings, require_pipeline, to_plain
from rivertwice.tasks import announce, operate, repair, reports, steps, switch
from rivertwice.tasks.run import TaskRun

STEPS: Mapping[str, Callable[..., Any]] = {
    work.__name__: work
    for work in (
        steps.ask_run,
        steps.report_run,
        steps.take_savepoint,
        steps.is_proof_wanted,
        steps.prune_savepoints,
        steps.report_rotation,
        steps.check_archive,
        steps.check_reconcile,
        steps.gate_reconcile,
        steps.plan_backfill,
        steps.check_backfill,
        steps.find_planned,
        steps.publish_backfill,
        steps.await_served,
        repair.open_repairs,
        repair.is_repair,
        repair.may_repair,
        repair.may_ask_again,
        repair.find_smallest,
        repair.is_approval_wanted,
        repair.close_repair,
        switch.choose_version,
        switch.check_comparison,
        switch.gate_switch,
        switch.let_serve,
        switch.report_switch,
        announce.announce_reconcile,
        announce.announce_publication,
        announce.announce_days,
        operate.check_act,
        operate.choose_task,
        operate.do_act,
        operate.report_act,
        reports.report_week,
        reports.report_failure,
        reports.report_stream_fault,
        reports.report_success,
    )
}

IN_PLACE = frozenset(
    {
        "ask_run",
        "is_proof_wanted",
        "is_approval_wanted",
        "is_repair",
        "open_repairs",
        "report_failure",
        "report_stream_fault",
        "report_success",
    }
)
"""Steps that read and write small files alone: an agent's server does them itself, where a process would cost more than the work. One of
them follows every task that ends."""


def do_work(settings: Settings, step: str, run: TaskRun, pipeline: str, arguments: Sequence[Any]) -> Any:
    """Do a step and return its result as JSON can hold it.

    Args:
        arguments: what the step takes after the pipeline's name.

    Raises:
        RequestError: there is no such step.
        TaskSkippedError: there is nothing to do.
    """
    work = STEPS.get(step)
    if work is None:
        message = f"step {step[:60]!r} is unknown to this version of rivertwice; install the same one beside Airflow and the agent"
        raise RequestError(message)
    return to_plain(work(settings, run, require_pipeline(pipeline), *arguments))
