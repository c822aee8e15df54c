"""Look after the tables of every supervised pipeline, apart from supervision, which must not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from rivertwice.config import Settings
from rivertwice.supervise.act import record_event
from rivertwice.supervise.keeper import Keeper
from rivertwice.timeline.upkeep import Kept, keep_up_if_due

EVERY_S = 30.0
AGAIN = timedelta(minutes=10)
"""Upkeep that failed, or that another writer was faster than, is tried again after this time."""


class UpkeepKeeper(Keeper):
    """Merges and sweeps the tables when it is due (`timeline.upkeep.is_due`); an error is recorded, and the agent continues."""

    def __init__(
        self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event, every_s: float = EVERY_S
    ) -> None:
        super().__init__(settings, names, stop, what="upkeep", every_s=every_s)
        self._since: dict[str, datetime] = {}
        self._not_before: dict[str, datetime] = {}

    def look(self, name: str, now: datetime) -> list[Kept]:
        """Look after one pipeline's tables if that is due, and record what was done."""
        since = self._since.setdefault(name, now)
        if now < self._not_before.get(name, now):
            return []
        self._not_before[name] = now + AGAIN
        try:
            done = keep_up_if_due(
                self._settings.pipeline(name), since=since, now=now, verdicts_kept=self._settings.verdicts_kept
            )
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            message = f"upkeep failed, tried again in {AGAIN.total_seconds():.0f} s: {text}"
            record_event(self._settings, "upkeep_failed", name, message, now)
            raise
        if not any(table_report.is_outrun for table_report in done):
            del self._not_before[name]
        worked = [
            table_report
            for table_report in done
            if table_report.deleted or table_report.files_after < table_report.files_before
        ]
        if worked:
            text = ", ".join(
                f"{table_report.table} {table_report.files_before} to {table_report.files_after} files, {table_report.deleted} deleted"
                for table_report in worked
            )
            record_event(self._settings, "upkeep", name, text, now)
        return done
