"""Keep the fast path of every pipeline that has one and whose desired state is running: a process each, started again with backoff.

A process outlives its agent; the next one finds it by its lock. A failure is reported once; the fifth in a row is paged.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from rivertwice.agent.act import page, page_over, record_event
from rivertwice.agent.keeper import Job, Keeper
from rivertwice.core import Attempts, Settings
from rivertwice.definition import load_definition
from rivertwice.deliver import read_fast_owner
from rivertwice.timeline import Intent

JOB = (sys.executable, "-m", "rivertwice.deliver.fast_job")
PAGE_AT = 5  # failures in a row
STEADY_S = 60.0
"""A process that ran for this time did not fail at its start."""


class FastJob(Job):
    """The process of one pipeline, and whether it was asked to end."""

    asked_to_end: bool = False


class FastKeeper(Keeper):
    """Starts and ends the processes."""

    what, every_s = "fast", 1.0

    def __init__(self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event) -> None:
        super().__init__(settings, names, stop)
        self._jobs: dict[str, FastJob] = {}

    def look(self, name: str, now: datetime) -> None:
        """Start what is needed and does not run, end what is not needed any more."""
        home = self._settings.pipeline(name)
        job = self._jobs.setdefault(name, FastJob())
        self._reap(name, job, now)
        owner = read_fast_owner(home)
        intent = Intent.load(home)
        asked = intent is not None and intent.desired == "running" and home.serves
        wanted = asked and load_definition(self._settings.definition_folder(name)).fast is not None
        if owner is not None and not wanted and not job.asked_to_end:
            with suppress(ProcessLookupError):
                os.kill(owner.pid, signal.SIGTERM)
            job.asked_to_end = True
        if owner is None and job.process is None:
            job.asked_to_end = False  # one of an earlier agent has ended
            if wanted and job.may_start(now):
                job.start(self._settings, [*JOB, "--pipeline", name], home.logs / "fast.log", now)
                record_event(self._settings, "fast_started", name, "the fast path should run and did not", now)
        if not wanted or (owner is not None and job.has_run(STEADY_S, now)):
            page_over(self._settings, {"fast"}, name, "the fast path runs" if wanted else "it is not wanted", now)

    def _reap(self, name: str, job: FastJob, now: datetime) -> None:
        code = job.reap(now, steady_s=STEADY_S)
        if code is None:
            return
        if code == 0 or job.asked_to_end:
            job.attempts, job.asked_to_end = Attempts(), False
            return
        failures = job.attempts.failures
        log = self._settings.pipeline(name).logs / "fast.log"
        message = (
            f"the fast path ended with {code}, its failure {failures} in a row, and is started again; its log: {log}"
        )
        record_event(self._settings, "fast_failed", name, message, now)
        if failures >= PAGE_AT:
            page(self._settings, "fast", name, message, now, severity="warning")
