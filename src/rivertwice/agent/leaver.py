"""Leave the oldest part of a long backlog to batch, where a definition's `stream.catch_up` says so. A thread of the agent.

Each look decides (`retention.policy`) and starts one job (`retention.leave`), a process of its own, one at a time in the home. What was
left is an alert until it is published. Killed with a job half done, the next look finds what stands: a stream that the job had stopped is
wanted running again, and a gap that is recorded is filled.
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
from rivertwice.agent.leave import LOOK_AGAIN, is_at_work, read_leaving, read_policy, want_again
from rivertwice.core.errors import RequestError
from rivertwice.core.homes import require_pipeline
from rivertwice.core.instants import to_iso
from rivertwice.core.processes import end_sessions
from rivertwice.core.settings import Settings
from rivertwice.retention.backlog import FILL, HAND_OVER, WAIT, LeaveDecision, LeaveMemory, Leaving, decide_leave
from rivertwice.retention.hand_over import view_backlog
from rivertwice.timeline.intent import read_intent

EVERY_S = 30.0
LEFT = "left_to_batch"
JOB = (sys.executable, "-m", "rivertwice.agent.leave")


@dataclass
class _Known:
    """What the keeper remembers of one pipeline."""

    memory: LeaveMemory = field(default_factory=LeaveMemory)
    job: subprocess.Popen[bytes] | None = None
    work: LeaveDecision | None = None


class LeaveKeeper(Keeper):
    """Looks at the backlog of every pipeline with such a policy."""

    def __init__(
        self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event, every_s: float = EVERY_S
    ) -> None:
        super().__init__(settings, names, stop, what="backlog", every_s=every_s)
        self._known: dict[str, _Known] = {}

    def look(self, name: str, now: datetime) -> LeaveDecision:
        """Look at one pipeline, and start what is due; return what was decided."""
        known = self._known.setdefault(name, _Known())
        self._reap(name, known, now)
        home = self._settings.pipeline(name)
        at_work = known.job is not None or is_at_work(home)
        if not at_work and want_again(home):
            record_event(self._settings, "catch_up_resumed", name, "a job that had stopped the stream is gone", now)
        policy = read_policy(self._settings, name)
        if policy is None:
            page_over(self._settings, {LEFT}, name, "the definition has no stream.catch_up any more", now)
            return LeaveDecision(WAIT, "no policy")
        leaving = read_leaving(home)
        self._report(name, leaving, now)
        intent = read_intent(home)
        busy = at_work or any(other.job is not None for other in self._known.values())
        try:
            backlog = view_backlog(self._settings, name, now)[0]
        except RequestError:  # it never ran
            return LeaveDecision(WAIT, "it never ran")
        decision = decide_leave(
            backlog,
            policy.by_batch_when,
            leaving,
            replace(known.memory, busy=busy),
            now,
            wanted=intent is not None and intent.desired == "running",
        )
        if decision.kind != WAIT:
            self._start(name, known, decision, leaving, now)
        return decision

    def end(self) -> None:
        """End the jobs: the next agent decides again."""
        end_sessions([known.job.pid for known in self._known.values() if known.job is not None])

    def _start(self, name: str, known: _Known, decision: LeaveDecision, leaving: Leaving | None, now: datetime) -> None:
        command = [*JOB, "--pipeline", require_pipeline(name)]
        if decision.kind == FILL and leaving is not None:
            command += ["--fill", leaving.gap]
        else:
            command += ["--hand-over", decision.reason]
        log = self._settings.pipeline(name).logs / "catch-up.log"
        known.job = start_logged(
            self._settings, command, log, f"==== rivertwice agent: {decision.kind} {to_iso(now)} ===="
        )
        known.work = decision
        event = "catch_up_by_batch" if decision.kind == HAND_OVER else "catch_up_fill"
        record_event(self._settings, event, name, decision.reason, now, pid=known.job.pid)

    def _reap(self, name: str, known: _Known, now: datetime) -> None:
        if known.job is None or known.job.poll() is None:
            return
        code, work = known.job.returncode, known.work
        failures = 0 if code == 0 else known.memory.failures + 1
        known.job, known.memory = None, LeaveMemory(failures=0 if code == LOOK_AGAIN else failures, last_end=now)
        kind = "the job" if work is None else work.kind
        outcome = {0: "is done", LOOK_AGAIN: "published a backfill, and looks again"}.get(code, f"ended with {code}")
        failed = "" if code in (0, LOOK_AGAIN) else "; read logs/catch-up.log"
        record_event(
            self._settings, "catch_up_failed" if failed else "catch_up_done", name, f"{kind} {outcome}{failed}", now
        )

    def _report(self, name: str, leaving: Leaving | None, now: datetime) -> None:
        if leaving is None:
            page_over(self._settings, {LEFT}, name, "the windows of what was left to batch are published", now)
            return
        waits = (
            "a backfill publishes their windows now"
            if leaving.is_closed
            else "the stream has not closed their windows yet"
        )
        message = (
            f"the oldest part of the backlog of {name} was left to batch as {leaving.gap}: {waits}; until then they lack the skipped "
            f"records, and nothing more is left; see `rivertwice retention {name}` and logs/catch-up.log"
        )
        page(self._settings, LEFT, name, message, now, severity="warning", subject=leaving.gap)
