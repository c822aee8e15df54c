"""Keep the logs of the agent and of all drivers small while they are written. A thread of the agent."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.store.log_files import LOG_LIMIT, rotate_log

LOG = logging.getLogger(__name__)
EVERY_S = 5.0


class LogKeeper(threading.Thread):
    """Looks at all logs of a home every few seconds and rotates those that are too large."""

    def __init__(
        self, settings: Settings, stop: threading.Event, every_s: float = EVERY_S, limit: int = LOG_LIMIT
    ) -> None:
        """Create the thread.

        Args:
            settings: settings of the agent.
            stop: set when the agent ends.
            every_s: seconds between two looks.
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
                if rotate_log(path, self._limit):
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
        yield from (self._home / "agent" / "log", self._home / "agent" / "archive.log")
        yield from sorted((self._home / "pipelines").glob("*/logs/*.log"))

    def _rotate_events(self) -> None:
        """Rename the events: they are opened for each line, so nothing is lost."""
        path = self._home / "agent" / "events.jsonl"
        try:
            if path.stat().st_size > self._limit:
                os.replace(path, path.with_name("events.jsonl.1"))
        except FileNotFoundError:
            return
        except OSError as error:
            LOG.warning("%s cannot be rotated (%s)", path, error.strerror)
