"""Look after the tables of every supervised pipeline, apart from supervision, which must not wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rivertwice.config import Settings
from rivertwice.instants import utc_now
from rivertwice.supervise.act import record_event
from rivertwice.timeline.upkeep import Kept, keep_up

LOG = logging.getLogger(__name__)
EVERY_S = 600.0


class UpkeepThread(threading.Thread):
    """Every ten minutes merges and sweeps the tables; an error is recorded and tried again, it never ends the agent."""

    def __init__(
        self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event, every_s: float = EVERY_S
    ) -> None:
        super().__init__(name="upkeep", daemon=True)
        self._settings = settings
        self._names = names
        self._stopping = stop
        self._every_s = every_s

    def run(self) -> None:
        """Look after every pipeline, again and again, until told to stop."""
        while not self._stopping.wait(self._every_s):
            for name in self._names():
                self.look_after(name)

    def look_after(self, name: str) -> list[Kept]:
        """Look after one pipeline's tables and record what was done."""
        try:
            done = keep_up(self._settings.pipeline(name))
        except Exception as error:
            LOG.exception("upkeep of %s failed; tried again in %s s", name, self._every_s)
            message = f"upkeep failed, tried again in {self._every_s:.0f} s: {type(error).__name__}: {error}"
            record_event(self._settings, "upkeep_failed", name, message, utc_now())
            return []
        worked = [kept for kept in done if kept.deleted or kept.files_after < kept.files_before]
        if worked:
            text = ", ".join(
                f"{k.table} {k.files_before} to {k.files_after} files, {k.deleted} deleted" for k in worked
            )
            record_event(self._settings, "upkeep", name, text, utc_now())
        return done
