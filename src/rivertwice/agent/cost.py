"""CPU and memory of each driver with all that it started, as the kernel counts them on the agent's host.

Drivers of a group share a JVM: each has an equal part of it. What a process used after the last look before its end is not counted, nor
are Spark's executors on other hosts.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import psutil

from rivertwice.storage import read_json

FRESH = timedelta(seconds=3)
"""For how long a list of all processes serves: the drivers of one round share it."""


class CostMeter:
    """Measures drivers again and again; what a driver used is counted from one look to the next."""

    def __init__(self, home: Path) -> None:
        """Create a meter; nothing is read yet.

        Args:
            home: with the folder of the groups.
        """
        self._groups = home / "groups"
        self._listed_at: datetime | None = None
        self._sessions: Mapping[int, list[int]] = {}
        self._hosts: Mapping[str, tuple[int, int]] = {}
        self._before: dict[str, tuple[datetime, dict[int, float]]] = {}

    def look(self, name: str, driver: int | None, now: datetime) -> dict[str, float]:
        """Return a driver's curves: cores used since the last look, and resident bytes; both are 0 if none runs.

        Args:
            driver: its process, which leads its session.
        """
        if driver is None:
            self._before.pop(name, None)
            return {"cpu_cores": 0.0, "memory_bytes": 0.0}
        self._list(now)
        host, members = self._hosts.get(name, (0, 1))
        weights = dict.fromkeys(self._sessions.get(host, ()), 1 / members) if host else {}
        weights |= dict.fromkeys(self._sessions.get(driver, ()), 1.0)
        before_at, before = self._before.get(name, (now, {}))
        used, memory, seen = 0.0, 0.0, dict[int, float]()
        for pid, weight in weights.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                with process.oneshot():
                    times, resident = process.cpu_times(), process.memory_info().rss
                    is_new = process.create_time() > before_at.timestamp()
                seen[pid] = times.user + times.system
                used += weight * max(0.0, seen[pid] - before.get(pid, 0.0 if is_new else seen[pid]))
                memory += weight * resident
        self._before[name] = (now, seen)
        seconds = (now - before_at).total_seconds()
        return {"memory_bytes": memory} | ({"cpu_cores": used / seconds} if seconds > 0 else {})

    def _list(self, now: datetime) -> None:
        """Read which processes each session has and which drivers share a JVM, once a round."""
        if self._listed_at is not None and now - self._listed_at < FRESH:
            return
        sessions: defaultdict[int, list[int]] = defaultdict(list)
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                sessions[os.getsid(pid)].append(pid)
        hosts = [read_json(file) or {} for file in sorted(self._groups.glob("*/host.json"))]
        self._hosts = {
            name: (int(host["pid"]), len(host["drivers"])) for host in hosts for name in host.get("drivers", {})
        }
        self._sessions, self._listed_at = sessions, now
