"""For how long a query has had nothing to do, by what Spark says of it now and then. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WAITING = ("Waiting for next trigger", "Waiting for data to arrive")
_LOOKING = "Getting offsets from "
"""Spark asks the log for its ends. It does so ten times a second when nothing waits, and on a slow machine most of that time."""


class QuietClock:
    """Measures a query's quiet time. It begins when the query waits, goes on while it looks at the log, and ends with a batch."""

    def __init__(self) -> None:
        """Create a clock of a query that is busy."""
        self._since: float | None = None
        self.is_waiting = False
        """Whether the query waited at the last look: only then does a stop interrupt nothing."""

    @property
    def is_quiet(self) -> bool:
        """Whether no batch ran at the last look."""
        return self._since is not None

    def look(self, status: Mapping[str, Any], now_s: float) -> float:
        """Take a status of the query (`StreamingQuery.status`); return its quiet time in seconds, 0 while a batch runs.

        Args:
            status: with `isTriggerActive` and `message`.
            now_s: a monotonic clock.
        """
        self.is_waiting = not status["isTriggerActive"] and status["message"] in _WAITING
        if self.is_waiting and self._since is None:
            self._since = now_s
        elif not self.is_waiting and not status["message"].startswith((_LOOKING, *_WAITING)):
            self._since = None
        return 0.0 if self._since is None else now_s - self._since
