"""A broker whose data are put back to an earlier copy, as after the loss of its disk: used offsets are given to other records."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.faults.errors import require
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo, start_broker, stop_broker


@dataclass(frozen=True)
class RestoredBroker:
    """A broker that runs, and the folder of its home."""

    settings: Settings
    info: BrokerInfo

    @property
    def _copy(self) -> Path:
        return self.settings.broker.parent / "backup"

    def back_up(self) -> None:
        """Copy all its data; it is stopped meanwhile."""
        stop_broker(self.settings)
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.settings.broker / "log", self._copy)
        self._start()

    def restore(self) -> None:
        """Put the copy in place: what was acknowledged since is gone, and its offsets are free again."""
        stop_broker(self.settings)
        shutil.rmtree(self.settings.broker / "log")
        shutil.copytree(self._copy, self.settings.broker / "log")
        self._start()

    def _start(self) -> None:
        started = start_broker(self.settings)
        require(started.bootstrap == self.info.bootstrap, f"the broker came back at {started.bootstrap}")


@contextmanager
def restored_broker(home: Path, project: Path) -> Iterator[RestoredBroker]:
    """Start a broker for the block, and stop it afterwards."""
    settings = Settings(project=project, home=home)
    try:
        yield RestoredBroker(settings, start_broker(settings))
    finally:
        stop_broker(settings)
