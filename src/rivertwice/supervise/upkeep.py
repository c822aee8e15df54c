"""Look after the tables of every supervised pipeline, apart from supervision, which must not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from rivertwice.config import Settings
from rivertwice.supervise.act import record_event
from rivertwice.supervise.keeper import Keeper
from rivertwice.timeline.upkeep import Kept, keep_up

EVERY_S = 600.0


class UpkeepKeeper(Keeper):
    """Merges and sweeps the tables every ten minutes; an error is recorded, upkeep tries again, and the agent continues."""

    def __init__(
        self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event, every_s: float = EVERY_S
    ) -> None:
        super().__init__(settings, names, stop, what="upkeep", every_s=every_s)

    def look(self, name: str, now: datetime) -> list[Kept]:
        """Look after one pipeline's tables and record what was done."""
        try:
            done = keep_up(self._settings.pipeline(name), now=now, verdicts_kept=self._settings.verdicts_kept)
        except Exception as error:
            message = f"upkeep failed, tried again in {self._every_s:.0f} s: {type(error).__name__}: {error}"
            record_event(self._settings, "upkeep_failed", name, message, now)
            raise
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
