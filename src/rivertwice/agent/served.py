"""Keep `served` true: rebuild it when the sequence or the changelog moved. Only the agent does this."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from rivertwice.agent.act import page, page_over
from rivertwice.agent.keeper import Keeper
from rivertwice.core import LedgerError, PipelineHome, Settings, utc_now
from rivertwice.definition import Definition, load_definition
from rivertwice.storage import Table
from rivertwice.timeline import head_definition

LOG = logging.getLogger(__name__)
BUSY_SHARE = 0.2  # at most this share of one core is used for rebuilding
Version = tuple[int, int, int]
Seen = tuple[Version, tuple[str, int]]


def state_of(home: PipelineHome) -> Version:
    """Return what `served` depends on: the versions of sequence, changelog and corrections."""
    tables = home.tables
    return (
        Table(tables.sequence).newest_commit(),
        Table(tables.changelog).newest_commit(),
        Table(tables.corrections).newest_commit(),
    )


def table_of(home: PipelineHome) -> tuple[str, int]:
    """Return the place of `served` and its version: a switch gives a version another table, or removes its own."""
    served = home.tables.served
    return str(served), Table(served).newest_commit()


def definition_of_head(settings: Settings, name: str) -> Definition:
    """Return the definition the head timeline runs, from its bundle; the project's before the first start."""
    return head_definition(settings.pipeline(name)) or load_definition(settings.definition_folder(name))


def rebuild(settings: Settings, name: str) -> None:
    """Rebuild `served` of one pipeline."""
    from rivertwice.timeline import rebuild_served

    rebuild_served(settings.pipeline(name), definition_of_head(settings, name))


class ServedKeeper(Keeper):
    """Rebuilds `served` of every pipeline that moved, apart from supervision, which must not wait for it.

    An error is logged and tried again; it never ends the agent.
    """

    what, every_s, join_s = "served", 2.0, 30.0

    def __init__(
        self,
        settings: Settings,
        names: Callable[[], list[str]],
        stop: threading.Event,
        build: Callable[[Settings, str], None] = rebuild,
    ) -> None:
        super().__init__(settings, names, stop)
        self._build = build
        self._seen: dict[str, Seen] = {}

    def run(self) -> None:
        """Look at every pipeline until the thread is stopped, and once more at the end."""
        while True:
            last = self._stopping.is_set()
            began = time.monotonic()
            for name in self._names():
                self.refresh(name)
            if last:
                return
            took = time.monotonic() - began
            self._stopping.wait(max(self.every_s, took / BUSY_SHARE - took))

    def refresh(self, name: str) -> bool:
        """Rebuild one pipeline's `served` if it moved; return whether it was rebuilt."""
        home = self._settings.pipeline(name)
        state = state_of(home)
        if state[0] < 0 or (state, table_of(home)) == self._seen.get(name):
            return False
        try:
            self._build(self._settings, name)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text != self._errors.get(name):
                LOG.exception("served of %s could not be rebuilt; tried again in %s s", name, self.every_s)
                self._tell(name, error)
            self._errors[name] = text
            return False
        self._errors.pop(name, None)
        page_over(self._settings, {"table_damage"}, name, "served was rebuilt", utc_now())  # also of an earlier agent
        self._seen[name] = state, table_of(home)
        return True

    def _tell(self, name: str, error: Exception) -> None:
        """Page for a table that lost rows: what is served stays as it is until a person has checked it."""
        if isinstance(error, LedgerError):
            page(self._settings, "table_damage", name, f"served is not rebuilt: {error}", utc_now())
