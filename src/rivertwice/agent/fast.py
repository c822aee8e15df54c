"""Keep the fast path of every pipeline that has one and is wanted running: a process each, started again with backoff.

A process outlives its agent; the next one finds it by its lock. A failure is reported once; the fifth in a row is paged.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from rivertwice.agent.act import page, page_over, record_event
from rivertwice.agent.backoff import delay_after
from rivertwice.agent.keeper import Keeper
from rivertwice.core.processes import start_detached
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.deliver.fast import read_fast_owner
from rivertwice.storage.log_files import open_log
from rivertwice.timeline.intent import read_intent

EVERY_S = 1.0
PAGE_AT = 5  # failures in a row
STEADY_S = 60.0
"""A process that ran so long did not fail at its start."""


@dataclass(frozen=True)
class FastWatch:
    """What is known of one pipeline's process."""

    child: subprocess.Popen[bytes] | None = None
    started_at: datetime | None = None
    failures: int = 0
    next_attempt: datetime | None = None
    asked_to_end: bool = False


class FastKeeper(Keeper):
    """Starts and ends the processes."""

    def __init__(
        self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event, every_s: float = EVERY_S
    ) -> None:
        super().__init__(settings, names, stop, what="fast", every_s=every_s)
        self.watches: dict[str, FastWatch] = {}

    def look(self, name: str, now: datetime) -> None:
        """Start what is wanted and does not run, end what is not wanted any more."""
        home = self._settings.pipeline(name)
        watch = self._reaped(name, now)
        owner = read_fast_owner(home)
        intent = read_intent(home)
        asked = intent is not None and intent.desired == "running" and home.serves
        wanted = asked and load_definition(self._settings.definition_folder(name)).fast is not None
        if owner is not None and not wanted and not watch.asked_to_end:
            with suppress(ProcessLookupError):
                os.kill(owner.pid, signal.SIGTERM)
            watch = replace(watch, asked_to_end=True)
        if owner is None and watch.child is None:
            watch = replace(watch, asked_to_end=False)  # one of an earlier agent has ended
            if wanted and (watch.next_attempt is None or watch.next_attempt <= now):
                watch = FastWatch(self._start(name), now, watch.failures)
                record_event(self._settings, "fast_started", name, "the fast path is wanted and did not run", now)
        if not wanted or (owner is not None and _is_steady(watch, now)):
            page_over(self._settings, {"fast"}, name, "the fast path runs" if wanted else "it is not wanted", now)
        self.watches[name] = watch

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        with open_log(self._settings.pipeline(name).logs / "fast.log") as output:
            return start_detached(
                [sys.executable, "-m", "rivertwice.deliver.fast_job", "--pipeline", name],
                env={**os.environ, **self._settings.to_env()},
                cwd=self._settings.project,
                output=output,
            )

    def _reaped(self, name: str, now: datetime) -> FastWatch:
        """Return the watch after the process's end, if it has ended since."""
        watch = self.watches.get(name, FastWatch())
        code = None if watch.child is None else watch.child.poll()
        if watch.child is None or code is None:
            return watch
        if code == 0 or watch.asked_to_end:
            return FastWatch()
        failures = 1 if watch.started_at is not None and _is_steady(watch, now) else watch.failures + 1
        log = self._settings.pipeline(name).logs / "fast.log"
        message = (
            f"the fast path ended with {code}, its failure {failures} in a row, and is started again; its log: {log}"
        )
        record_event(self._settings, "fast_failed", name, message, now)
        if failures >= PAGE_AT:
            page(self._settings, "fast", name, message, now, severity="warning")
        return FastWatch(failures=failures, next_attempt=now + delay_after(failures))


def _is_steady(watch: FastWatch, now: datetime) -> bool:
    """Say whether the process has run long enough; one that an earlier agent started has."""
    return watch.started_at is None or (now - watch.started_at).total_seconds() >= STEADY_S
