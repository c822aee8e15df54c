"""Threads of the agent that look at every supervised pipeline, apart from supervision, which must not wait for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime

from rivertwice.config import Settings
from rivertwice.errors import RivertwiceError
from rivertwice.instants import utc_now

LOG = logging.getLogger(__name__)


class Keeper(threading.Thread):
    """Looks at each pipeline again and again until it is stopped. An error is reported once; the next round tries again."""

    def __init__(
        self,
        settings: Settings,
        names: Callable[[], list[str]],
        stop: threading.Event,
        *,
        what: str,
        every_s: float,
    ) -> None:
        """Create the thread.

        Args:
            settings: settings of the agent.
            names: returns the supervised pipelines.
            stop: set when the agent ends.
            what: what it looks after, in one word.
            every_s: seconds between two rounds.
        """
        super().__init__(name=what, daemon=True)
        self._settings = settings
        self._names = names
        self._stopping = stop
        self._every_s = every_s
        self._errors: dict[str, str] = {}

    def run(self) -> None:
        """Look until the thread is stopped."""
        while not self._stopping.wait(self._every_s):
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
