"""Send what is due to every route. One process of a home sends at a time; a route that fails is tried again later.

A pass ends: each message has a timeout, a route that does not answer ends its own turn, and messages are counted. What is
not sent is in the state, so the next pass, the next agent or Airflow's next alert sends it. Each message goes out at
least once: a process that is killed between the answer and its note sends it again, with the same `Idempotency-Key`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta

from rivertwice.agent.alert_model import (
    Alert,
    RouteState,
    State,
    close,
    due,
    forget,
    is_waiting,
    record_failure,
    record_refused,
    record_sent,
)
from rivertwice.agent.alert_routes import Outcome, Route, load_routes, send_message
from rivertwice.agent.alert_store import alerts_of
from rivertwice.core import ConfigError, Deadline, Settings, lock_if_free, utc_now

LOG = logging.getLogger(__name__)
MESSAGES = 20  # messages to one route in one pass
TURN_S = 30.0  # of a route in one pass; a slow one continues in the next
EVERY_S = 2.0


class Sender:
    """Sends the alerts of a home."""

    def __init__(
        self, settings: Settings, env: Mapping[str, str] | None = None, now: Callable[[], datetime] = utc_now
    ) -> None:
        """Create a sender; nothing is sent until `run_pass`."""
        self._settings = settings
        self._env = os.environ if env is None else env
        self._now = now
        self._store = alerts_of(settings)
        self._said: dict[str, str] = {}

    def run_pass(self, patience_s: float = 0.0) -> int:
        """Close what is over, send what is due, forget what is done; return how many messages were taken.

        Args:
            patience_s: how long to wait for another process that sends now; if it still sends then, the sending is left to it.
        """
        with self._only_sender(patience_s) as alone:
            if not alone:
                return 0
            try:
                config = load_routes(self._settings, self._env)
            except ConfigError as error:
                self._say("", str(error))
                self._store.apply(lambda state: close(state, timedelta(seconds=60), self._now()))
                return 0
            self._said.pop("", None)
            now = self._now()
            state = self._store.state()
            if state.routes.keys() != config.routes.keys():  # who asks whether anybody would be told, reads it there
                state = self._store.apply(lambda state: (state.with_routes(config.routes), ()))
            if state.alerts:
                state = self._store.apply(lambda state: close(state, config.settle, now))
            taken = sum(self._serve(name, route, state) for name, route in config.routes.items())
            severities = {name: route.severities for name, route in config.routes.items()}
            if any(alert.closed for alert in state.alerts):
                self._store.apply(lambda state: (forget(state, severities, self._now()), ()))
            return taken

    def tell(self, alert: Alert, routes: Mapping[str, Route]) -> dict[str, str | None]:
        """Send a message that is in no state to routes, once; return the reason for each that did not take it, None for the others."""
        told: dict[str, str | None] = {}
        for name, route in routes.items():
            try:
                outcome = send_message(self._settings, route, alert, self._env, self._now())
                told[name] = None if outcome.taken and not outcome.error else outcome.error
            except ConfigError as error:
                told[name] = str(error)
        return told

    def _serve(self, name: str, route: Route, state: State) -> int:
        waiting = due(state.alerts, name, route.severities)
        if not waiting or is_waiting(state.routes.get(name, RouteState()), self._now()):
            return 0
        taken, failed, turn = 0, Outcome(taken=True), Deadline.after(TURN_S)
        for alert in waiting[:MESSAGES]:
            if turn.is_over():
                break
            try:
                outcome = send_message(self._settings, route, alert, self._env, self._now())
            except ConfigError as error:
                self._say(name, f"route {name} of alerts cannot be used by this process: {error}")
                return taken
            self._note(name, alert, outcome)
            taken += outcome.taken
            if not outcome.taken:
                failed = outcome
                if not outcome.refused:
                    break
        if not failed.taken:
            left = len(waiting) - taken
            self._store.apply(lambda state: (record_failure(state, name, failed.error, failed.wait, self._now()), ()))
            self._say(name, f"route {name} of alerts: {failed.error}; {left} messages wait and are tried again later")
        elif self._said.pop(name, None):
            LOG.warning("route %s of alerts takes messages again", name)
        return taken

    def _note(self, name: str, alert: Alert, outcome: Outcome) -> None:
        if outcome.taken:
            LOG.info("alert %s (%s) was sent to route %s", alert.id, alert.status, name)
            if outcome.error:
                LOG.warning("route %s of alerts: %s", name, outcome.error)
            self._store.apply(lambda state: (record_sent(state, alert.id, name, alert.status), ()))
        elif outcome.refused:
            self._store.apply(lambda state: (record_refused(state, alert.id, name), ()))

    def _say(self, name: str, text: str) -> None:
        if self._said.get(name) != text:
            LOG.warning("%s", text)
        self._said[name] = text

    @contextmanager
    def _only_sender(self, patience_s: float) -> Iterator[bool]:
        folder = self._settings.home / "alerts"
        with ExitStack() as held:
            try:
                alone = held.enter_context(lock_if_free(folder / "sending", patience_s=patience_s, mode=0o600))
            except OSError as error:  # no room for an empty file: sending twice is better than never
                self._say(
                    "lock", f"the lock of {folder} cannot be taken ({error.strerror}); alerts are sent without it"
                )
                alone = True
            yield alone


class SenderThread(threading.Thread):
    """Sends for as long as the agent runs, apart from supervision, which never waits for a receiver."""

    def __init__(self, settings: Settings, stop: threading.Event, every_s: float = EVERY_S) -> None:
        """Create the thread."""
        super().__init__(name="alerts-sender", daemon=True)
        self._sender = Sender(settings)
        self._stopping = stop
        self._every_s = every_s
        self._error = ""

    def run(self) -> None:
        """Send until the thread is stopped, and once more then: the last messages of an agent count too."""
        while not self._stopping.wait(self._every_s):
            self._pass()
        self._pass()

    def _pass(self) -> None:
        try:
            self._sender.run_pass()
            self._error = ""
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text != self._error:
                LOG.exception("alerts are not sent now, tried again")
            self._error = text
