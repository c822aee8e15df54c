"""Keep savepoints proved and new enough, apart from supervision, which must not wait for it. A thread of the agent.

For each supervised pipeline: prove the savepoint from which a planned restore or upgrade began, and, where the definition has a recovery
objective, take and prove a savepoint as soon as one is due. Both is done by a separate process (`savepoint.keep_up`), one at a time in
the home. If it is killed half done, nothing is lost: the next look decides again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from rivertwice.agent.act import page, page_over, record_event
from rivertwice.agent.keeper import Job, Keeper
from rivertwice.core import Settings, end_sessions, require_pipeline
from rivertwice.savepoint import (
    DISAGREED,
    KeepUpDecision,
    RecoveryStep,
    RecoveryView,
    Restore,
    decide_keep_up,
    last_attempt,
    read_objective,
    read_operations,
    view_recovery,
)
from rivertwice.timeline import Intent

UNPROVED_START = "unproved_start"
JOB = (sys.executable, "-m", "rivertwice.savepoint.keep_up")
_PAGED_AFTER = 3


class SavepointJob(Job):
    """The job of one pipeline, and what it was started for."""

    work: KeepUpDecision | None = None


class SavepointKeeper(Keeper):
    """Looks at every pipeline's savepoints."""

    what, every_s, join_s = "savepoints", 15.0, 15.0

    def __init__(self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event) -> None:
        super().__init__(settings, names, stop)
        self._jobs: dict[str, SavepointJob] = {}

    def look(self, name: str, now: datetime) -> KeepUpDecision:
        """Look at one pipeline, and start what is due; return what was decided."""
        job = self._jobs.setdefault(name, SavepointJob())
        if job.process is None and not self._has_work(name):
            return KeepUpDecision(RecoveryStep.WAIT, "no recovery objective, and no planned operation")
        view = view_recovery(self._settings, name)
        self._reap(name, job, view, now)
        awaiting = [restore.savepoint for restore in view.awaiting]
        if not awaiting:
            why = "the savepoint from which the timeline began is proved, or it does not count any more"
            page_over(self._settings, {UNPROVED_START}, name, why, now)
        intent = Intent.load(self._settings.pipeline(name))
        busy = any(other.process is not None for other in self._jobs.values())
        decision = decide_keep_up(
            view.estimate,
            view.objective,
            awaiting,
            replace(job.attempts, busy=busy),
            now,
            wanted=intent is not None and intent.desired == "running",
        )
        if decision.kind != RecoveryStep.WAIT:
            self._start(name, job, decision, now)
        return decision

    def _has_work(self, name: str) -> bool:
        """Say whether there can be anything to do: only then are the savepoints looked at, which costs requests to their store."""
        operations = read_operations(self._settings.pipeline(name))
        planned = any(isinstance(operation, Restore) and operation.planned for operation in operations)
        return planned or read_objective(self._settings, name) is not None

    def end(self) -> None:
        """End the jobs: the next agent decides again."""
        end_sessions([job.process.pid for job in self._jobs.values() if job.process is not None])

    def _start(self, name: str, job: SavepointJob, decision: KeepUpDecision, now: datetime) -> None:
        command = [*JOB, "--pipeline", require_pipeline(name)]
        command += ["--prove", decision.savepoint] if decision.kind == RecoveryStep.PROVE and decision.savepoint else []
        job.work = decision
        pid = job.start(self._settings, command, self._settings.pipeline(name).logs / "savepoints.log", now)
        record_event(self._settings, "savepoint_due", name, decision.reason, now, pid=pid)

    def _reap(self, name: str, job: SavepointJob, view: RecoveryView, now: datetime) -> None:
        code, work = job.reap(now), job.work
        if code is None:
            return
        what = (
            "a savepoint was taken and proved"
            if work is None or work.savepoint is None
            else f"{work.savepoint} is proved"
        )
        text = what if code == 0 else f"{work.kind if work else 'the job'} ended with {code}; read logs/savepoints.log"
        record_event(self._settings, "savepoint_proved" if code == 0 else "savepoint_failed", name, text, now)
        waiting = [restore for restore in view.awaiting if work is not None and restore.savepoint == work.savepoint]
        if waiting and (code == DISAGREED or job.attempts.failures >= _PAGED_AFTER):
            message = describe_unproved(name, waiting[-1], self._why(view, waiting[-1], code))
            severity = "critical" if code == DISAGREED else "warning"
            details = {"savepoint": waiting[-1].savepoint}
            page(self._settings, UNPROVED_START, name, message, now, severity=severity, details=details)

    def _why(self, view: RecoveryView, restore: Restore, code: int) -> str:
        own = next((savepoint for savepoint in view.savepoints if savepoint.id == restore.savepoint), None)
        reason = None if own is None else last_attempt(own)
        return reason or f"the job ended with {code}; read logs/savepoints.log"


def describe_unproved(pipeline: str, restore: Restore, why: str) -> str:
    """Return what a page says of a planned operation whose savepoint is not proved: the reason, and the way back. Pure."""
    origin = restore.origin
    if origin is None:
        back = f"take a savepoint now and prove it (`rivertwice savepoint take {pipeline}`, then `prove`)"
    elif restore.bundle is None:
        back = (
            f"go back to the proved one before it: `rivertwice savepoint restore {pipeline} {origin}`, which replays and compares "
            f"every batch since, or, where one differs, `rivertwice savepoint rewind {pipeline} {origin}`, which shows what "
            "computing them again would change"
        )
    else:
        back = (
            f"to go back to the proved one before it, put the definition back that timeline {restore.parent} ran, then "
            f"`rivertwice savepoint rewind {pipeline} {origin}`, which shows what computing its batches again would change"
        )
    return f"savepoint {restore.savepoint}, from which timeline {restore.child} began, is not proved: {why}; {back}"
