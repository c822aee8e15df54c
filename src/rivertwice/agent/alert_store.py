"""The alerts of one home: `HOME/alerts/state.json`, shared by the agent and Airflow's processes, and `HOME/alerts.jsonl`.

A change is read, made and written under a lock. If the disk takes no write, changes are kept in memory and made again
with the next one: an alert about a full disk must go out, and once only.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from rivertwice.agent.alert_kinds import body_of
from rivertwice.agent.alert_model import (
    Alert,
    AlertCause,
    Changed,
    Report,
    RouteState,
    State,
    acknowledge,
    amend,
    reopen,
    report,
    resolve,
)
from rivertwice.core import RequestError, RivertwiceError, Settings, lock, parse_iso, to_plain
from rivertwice.storage import LogFile, replace_json

LOG = logging.getLogger(__name__)
FORMAT = 1
KEPT_CHANGES = 1_000
LINES_LIMIT = 20_000_000  # bytes of alerts.jsonl, beyond which it becomes alerts.jsonl.1

StateChange = Callable[[State], Changed]


class AlertStore:
    """Reads and changes the alerts of a home; threads and processes may share it."""

    def __init__(self, settings: Settings) -> None:
        """Create a store; nothing is read yet."""
        self._settings = settings
        self._folder = settings.home / "alerts"
        self._path = self._folder / "state.json"
        self._lines = settings.home / "alerts.jsonl"
        self._lock = threading.Lock()
        self._unwritten: list[StateChange] = []
        self._known: tuple[tuple[int, int, int] | None, State] = (None, State())
        self._error = ""

    def apply(self, change: StateChange) -> State:
        """Make a change and return the state after it; what began or was closed becomes a line of `alerts.jsonl`."""
        with self._lock, self._other_processes():
            stored = state = self._load()
            for earlier in self._unwritten:
                state, _ = earlier(state)
            state, lines = change(state)
            for alert in lines:
                self._append(alert)
            if state != stored:
                self._save(state, change)
            return state

    def state(self) -> State:
        """Return the present state; cheap while it does not change."""
        with self._lock:
            state = self._load()
            for earlier in self._unwritten:
                state, _ = earlier(state)
            return state

    def report(self, new_report: Report, now: datetime) -> None:
        """Begin an alert or note that it lasts."""
        self.apply(lambda state: report(state, new_report, now))

    def resolve(self, over: Callable[[Alert], bool], why: str, now: datetime) -> None:
        """Note that the causes of some alerts are over; writes only if there are such."""
        if any(not alert.closed and alert.resolved_at is None and over(alert) for alert in self.state().alerts):
            self.apply(lambda state: (resolve(state, over, why, now), ()))

    def acknowledge(self, alert_id: str, by: str, why: str, now: datetime) -> Alert:
        """Note that a person cares for an alert, and return it.

        Raises:
            RequestError: no such alert lasts, or the home cannot be written.
        """
        state = self.apply(lambda state: acknowledge(state, alert_id, by, why, now))
        if self._unwritten:
            self._unwritten = self._unwritten[:-1]  # this process would say otherwise than all others
            message = f"{self._path} cannot be written, so the acknowledgement is not kept ({self._error}); make room, then try again"
            raise RequestError(message)
        return next(alert for alert in state.alerts if alert.id == alert_id)

    def amend(self, concerns: Callable[[Alert], bool], details: Mapping[str, str]) -> None:
        """Add details to the alerts that last and concern something; writes only if there are such."""
        if any(not alert.closed and concerns(alert) for alert in self.state().alerts):
            self.apply(lambda state: (amend(state, concerns, details), ()))

    def reopen(self, lasts: Callable[[Alert], bool]) -> None:
        """Take back that the causes of some alerts are over; writes only if there are such."""
        if any(not alert.closed and alert.resolved_at is not None and lasts(alert) for alert in self.state().alerts):
            self.apply(lambda state: (reopen(state, lasts), ()))

    def _load(self) -> State:
        try:
            status = self._path.stat()
            mark = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._known[0] != mark:
                self._known = (mark, _from_plain(json.loads(self._path.read_bytes())))
        except FileNotFoundError:
            self._known = (None, State())
        except OSError as error:  # supervision calls this, and must not stop for it
            self._say_once(f"{self._path} cannot be read ({error.strerror}); what was known of alerts before is used")
        except (ValueError, KeyError, TypeError, AttributeError, RivertwiceError) as error:
            aside = self._path.with_suffix(".damaged")
            self._say_once(
                f"{self._path} cannot be read ({error}), so what was sent is not known and may be sent again; it is kept as {aside}"
            )
            with suppress(OSError):
                self._path.replace(aside)
            self._known = (None, State())
        return self._known[1]

    def _save(self, state: State, change: StateChange) -> None:
        try:
            replace_json(self._path, {"format": FORMAT, **to_plain(state)})
        except OSError as error:
            self._say_once(
                f"what alerts were sent cannot be written to {self._path} ({error.strerror}); it is kept in memory"
            )
            self._unwritten = [*self._unwritten, change][-KEPT_CHANGES:]
        else:
            self._unwritten, self._error = [], ""

    def _append(self, alert: Alert) -> None:
        # Without the link: it has a row's key in a spelling that an erasure does not overwrite.
        body = {name: value for name, value in body_of(self._settings, alert).items() if name != "page"}
        try:
            append_line(self._lines, body, limit=LINES_LIMIT)
        except OSError as error:
            LOG.warning("%s cannot be written (%s); the alert is: %s", self._lines, error.strerror, json.dumps(body))

    def _say_once(self, text: str) -> None:
        if text != self._error:
            LOG.warning("%s", text)
        self._error = text

    @contextmanager
    def _other_processes(self) -> Iterator[None]:
        with ExitStack() as held:
            try:
                held.enter_context(lock(self._folder / "lock", mode=0o600))
            except OSError as error:  # a disk without room for an empty file
                self._say_once(
                    f"the lock of {self._folder} cannot be taken ({error.strerror}); alerts continue without it"
                )
            yield


_STORES: dict[tuple[int, Path], AlertStore] = {}


def alerts_of(settings: Settings) -> AlertStore:
    """Return this process's store of a home, always the same one: it may hold what the disk did not take."""
    return _STORES.setdefault((os.getpid(), settings.home), AlertStore(settings))


def append_line(path: Path, value: Any, *, limit: int) -> None:
    """Append a JSON line in one write; a file beyond `limit` bytes is kept as `.1`, and the one before it goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > limit:
        path.replace(path.with_name(f"{path.name}.1"))
    LogFile(path).append(json.dumps(value, sort_keys=True, ensure_ascii=False).encode() + b"\n")


def _from_plain(plain: dict[str, Any]) -> State:
    if plain["format"] != FORMAT:
        message = f"format {plain['format']!r}, this code knows {FORMAT}"
        raise ValueError(message)
    return State(
        tuple(
            Alert(
                **{
                    **row,
                    "cause": AlertCause(**row["cause"]),
                    "since": parse_iso(row["since"]),
                    "seen_at": parse_iso(row["seen_at"]),
                    "resolved_at": None if row["resolved_at"] is None else parse_iso(row["resolved_at"]),
                    "acknowledged_at": None if not row.get("acknowledged_at") else parse_iso(row["acknowledged_at"]),
                }
            )
            for row in plain["alerts"]
        ),
        {
            name: RouteState(
                row["failures"], None if row["next_attempt"] is None else parse_iso(row["next_attempt"]), row["error"]
            )
            for name, row in plain["routes"].items()
        },
    )
