"""Keep the process that answers Airflow's workers on other hosts, if there is an address for it (`rivertwice.tasks.server`)."""

from __future__ import annotations

import ipaddress
import os
import signal
import sys
import threading
from contextlib import suppress
from datetime import datetime

from rivertwice.agent.act import record_event
from rivertwice.agent.keeper import Job, Keeper
from rivertwice.core import Settings, to_iso

SERVER = (sys.executable, "-P", "-m", "rivertwice.tasks.server")
STEADY_S = 60.0


class ListenKeeper(Keeper):
    """Starts the server, and starts it again with backoff; it ends with its agent."""

    what, every_s = "listening", 1.0

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        super().__init__(settings, lambda: ["the agent's server"] if settings.listen else [], stop)
        self._job = Job()
        self._said = ""

    def look(self, name: str, now: datetime) -> None:
        """Start the server if it does not run."""
        refusal = refuse_listening(self._settings)
        if refusal is not None:
            if self._said != refusal:
                self._said = refusal
                record_event(self._settings, "error", None, refusal, now)
            return
        log = self._settings.home / "agent" / "http.log"
        code = self._job.reap(now, steady_s=STEADY_S)
        if code is not None:
            message = f"{name} ended with {code} and is started again; its log: {log}"
            record_event(self._settings, "error", None, message, now)
        if self._job.process is None and self._job.may_start(now):
            self._job.start(self._settings, SERVER, log, now)
            host, port = self._settings.listen or ("", 0)
            record_event(self._settings, "listening", None, f"answers at {host}:{port} since {to_iso(now)}", now)

    def end(self) -> None:
        """End the server; the tasks that it began go on."""
        if self._job.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._job.process.pid, signal.SIGTERM)


def refuse_listening(settings: Settings) -> str | None:
    """Return why the agent does not listen at its address; None: it may. Pure.

    Without a certificate tokens would cross the network unencrypted, so only an address of this machine itself is taken.
    """
    if settings.listen is None or settings.listen_certificate is not None:
        return None
    host, port = settings.listen
    if host == "localhost":
        return None
    try:
        is_here = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_here = False
    if is_here:
        return None
    return (
        f"RIVERTWICE_LISTEN is {host}:{port} and there is no certificate, so tokens would be sent unencrypted and nothing listens there; set "
        "RIVERTWICE_LISTEN_CERTIFICATE to a PEM file with key and certificate, then start the agent again"
    )
