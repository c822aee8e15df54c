"""Keep savepoints proved and new enough, apart from supervision, which must not wait for it. A thread of the agent.

For each supervised pipeline: prove the savepoint from which a planned restore or upgrade began, and, where the definition has a recovery
objective, take and prove a savepoint as soon as one is due. Both is done by a process of its own (`savepoint.keep_up`), one at a time in
the home. Killed with it half done nothing is lost: the next look decides again.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from rivertwice.agent.act import page, page_over, record_event, start_logged
from rivertwice.agent.keeper import Keeper
from rivertwice.core.homes import require_pipeline
from rivertwice.core.instants import to_iso
from rivertwice.core.processes import end_sessions
from rivertwice.core.settings import Settings
from rivertwice.savepoint.keep_up import DISAGREED
from rivertwice.savepoint.operations.record import Restore, read_operations
from rivertwice.savepoint.proof import last_attempt
from rivertwice.savepoint.recovery import (
    PROVE,
    WAIT,
    KeepUpDecision,
    KeepUpMemory,
    RecoveryView,
    decide_keep_up,
    read_objective,
    view_recovery,
)
from rivertwice.timeline.intent import read_intent

EVERY_S = 15.0
UNPROVED_START = "unproved_start"
JOB = (sys.executable, "-m", "rivertwice.savepoint.keep_up")
_PAGED_AFTER = 3


@dataclass
class _Known:
    """What the keeper remembers of one pipeline."""

    memory: KeepUpMemory = field(default_factory=KeepUpMemory)
    job: subprocess.Popen[bytes] | None = None
    work: KeepUpDecision | None = None


class SavepointKeeper(Keeper):
    """Looks at every pipeline's savepoints."""

    def __init__(
        self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event, every_s: float = EVERY_S
    ) -> None:
        super().__init__(settings, names, stop, what="savepoints", every_s=every_s)
        self._known: dict[str, _Known] = {}

    def look(self, name: str, now: datetime) -> KeepUpDecision:
        """Look at one pipeline, and start what is due; return what was decided."""
        known = self._known.setdefault(name, _Known())
        if known.job is None and not self._has_work(name):
            return KeepUpDecision(WAIT, "no recovery objective, and no planned operation")
        view = view_recovery(self._settings, name)
        self._reap(name, known, view, now)
        awaiting = [restore.savepoint for restore in view.awaiting]
        if not awaiting:
            why = "the savepoint from which the timeline began is proved, or it does not count any more"
            page_over(self._settings, {UNPROVED_START}, name, why, now)
        intent = read_intent(self._settings.pipeline(name))
        busy = any(other.job is not None for other in self._known.values())
        decision = decide_keep_up(
            view.estimate,
            view.objective,
            awaiting,
            replace(known.memory, busy=busy),
            now,
            wanted=intent is not None and intent.desired == "running",
        )
        if decision.kind != WAIT:
            self._start(name, known, decision, now)
        return decision

    def _has_work(self, name: str) -> bool:
        """Say whether there can be anything to do: only then are the savepoints looked at, which costs requests to their store."""
        operations = read_operations(self._settings.pipeline(name))
        planned = any(isinstance(operation, Restore) and operation.planned for operation in operations)
        return planned or read_objective(self._settings, name) is not None

    def end(self) -> None:
        """End the jobs: the next agent decides again."""
        end_sessions([known.job.pid for known in self._known.values() if known.job is not None])

    def _start(self, name: str, known: _Known, decision: KeepUpDecision, now: datetime) -> None:
        command = [*JOB, "--pipeline", require_pipeline(name)]
        command += ["--prove", decision.savepoint] if decision.kind == PROVE and decision.savepoint else []
        log = self._settings.pipeline(name).logs / "savepoints.log"
        known.job = start_logged(
            self._settings, command, log, f"==== rivertwice agent: {decision.kind} {to_iso(now)} ===="
        )
        known.work = decision
        record_event(self._settings, "savepoint_due", name, decision.reason, now, pid=known.job.pid)

    def _reap(self, name: str, known: _Known, view: RecoveryView, now: datetime) -> None:
        if known.job is None or known.job.poll() is None:
            return
        code, work = known.job.returncode, known.work
        failures = 0 if code == 0 else known.memory.failures + 1
        known.job, known.memory = None, KeepUpMemory(failures=failures, last_end=now)
        what = (
            "a savepoint was taken and proved"
            if work is None or work.savepoint is None
            else f"{work.savepoint} is proved"
        )
        text = what if code == 0 else f"{work.kind if work else 'the job'} ended with {code}; read logs/savepoints.log"
        record_event(self._settings, "savepoint_proved" if code == 0 else "savepoint_failed", name, text, now)
        waiting = [restore for restore in view.awaiting if work is not None and restore.savepoint == work.savepoint]
        if waiting and (code == DISAGREED or failures >= _PAGED_AFTER):
            message = describe_unproved(name, waiting[-1], self._why(view, waiting[-1], code))
            severity = "critical" if code == DISAGREED else "warning"
            page(self._settings, UNPROVED_START, name, message, now, severity=severity)

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
