"""Threads of the agent beside supervision: they look at every supervised pipeline, and keep logs small."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from rivertwice.agent.act import start_logged
from rivertwice.agent.backoff import delay_after
from rivertwice.core import Attempts, RivertwiceError, Settings, to_iso, utc_now
from rivertwice.storage import LogFile

LOG = logging.getLogger(__name__)


class Job:
    """A process that a keeper starts again and again, one at a time, and how its runs ended."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at: datetime | None = None
        self.attempts = Attempts()

    def may_start(self, now: datetime) -> bool:
        """Say whether the time after its last failure is over."""
        last_end = self.attempts.last_end
        return last_end is None or last_end + delay_after(self.attempts.failures) <= now

    def start(self, settings: Settings, command: Sequence[str], log: Path, now: datetime) -> int:
        """Start the process in its own session, with its output in a log; return its id."""
        headline = f"==== rivertwice agent starts it {to_iso(now)} ===="
        self.process, self.started_at = start_logged(settings, command, log, headline), now
        self.attempts = replace(self.attempts, busy=True)
        return self.process.pid

    def reap(self, now: datetime, *, steady_s: float = math.inf) -> int | None:
        """Return the exit code if the process has ended since the last look, and count the run.

        A failure after `steady_s` seconds is the first of a new row: the process had not failed at its start.
        """
        if self.process is None or self.process.poll() is None:
            return None
        code = self.process.returncode
        failures = 1 if self.has_run(steady_s, now) else self.attempts.failures + 1
        self.process, self.started_at = None, None
        self.attempts = Attempts(0 if code == 0 else failures, now)
        return code

    def has_run(self, seconds: float, now: datetime) -> bool:
        """Say whether the present run has lasted so long; one that an earlier agent started has."""
        return self.started_at is None or (now - self.started_at).total_seconds() >= seconds


class Keeper(threading.Thread):
    """Looks at each pipeline again and again until it is stopped. An error is reported once; the next round tries again.

    Attributes:
        what: what it looks after, in one word.
        join_s: seconds that the agent waits at its end for `end` to be done.
    """

    what: ClassVar[str]
    every_s: ClassVar[float]
    join_s: ClassVar[float] = 0.0

    def __init__(self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event) -> None:
        """Create the thread.

        Args:
            names: returns the supervised pipelines.
        """
        super().__init__(name=self.what, daemon=True)
        self._settings = settings
        self._names = names
        self._stopping = stop
        self._errors: dict[str, str] = {}

    def run(self) -> None:
        """Look until the thread is stopped."""
        while not self._stopping.wait(self.every_s):
            for name in self._names():
                self._look_safely(name)
        self.end()

    def look(self, name: str, now: datetime) -> object:
        """Look after one pipeline."""
        raise NotImplementedError

    def end(self) -> None:
        """Do what is left to do when the agent ends."""

    def _look_safely(self, name: str) -> None:
        try:
            self.look(name, utc_now())
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text != self._errors.get(name):
                trace = None if isinstance(error, RivertwiceError) else error
                LOG.warning("%s of %s is not known now, tried again: %s", self.name, name, text, exc_info=trace)
            self._errors[name] = text
        else:
            self._errors.pop(name, None)


# Keep the logs of the agent and of all drivers small while they are written. A thread of the agent.

EVERY_S = 5.0


class LogKeeper(threading.Thread):
    """Looks at all logs of a home every few seconds and rotates those that are too large."""

    def __init__(
        self, settings: Settings, stop: threading.Event, every_s: float = EVERY_S, limit: int = LogFile.LIMIT
    ) -> None:
        """Create the thread.

        Args:
            limit: bytes beyond which a log is rotated.
        """
        super().__init__(name="logs", daemon=True)
        self._home = settings.home
        self._stopping = stop
        self._every_s = every_s
        self._limit = limit
        self._errors: dict[Path, str] = {}

    def run(self) -> None:
        """Look until the thread is stopped."""
        while not self._stopping.wait(self._every_s):
            self.look()

    def look(self) -> list[Path]:
        """Rotate the logs that are too large; return them."""
        rotated = []
        for path in self._logs():
            try:
                if LogFile(path).rotate(self._limit):
                    rotated.append(path)
                    LOG.info("%s was larger than %s bytes and was rotated", path, self._limit)
                self._errors.pop(path, None)
            except OSError as error:
                text = (
                    f"{path} is larger than {self._limit} bytes and cannot be rotated ({error.strerror}), tried again"
                )
                if self._errors.get(path) != text:
                    LOG.warning("%s", text)
                self._errors[path] = text
        self._rotate_events()
        return rotated

    def _logs(self) -> Iterator[Path]:
        yield from (self._home / "agent" / name for name in ("log", "archive.log", "http.log"))
        yield from sorted((self._home / "pipelines").glob("*/logs/*.log"))

    def _rotate_events(self) -> None:
        """Rename the events: they are opened for each line, so no line is lost."""
        path = self._home / "agent" / "events.jsonl"
        try:
            if path.stat().st_size > self._limit:
                os.replace(path, path.with_name("events.jsonl.1"))
        except FileNotFoundError:
            return
        except OSError as error:
            LOG.warning("%s cannot be rotated (%s)", path, error.strerror)
