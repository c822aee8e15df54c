"""What the agent does to the world: start a driver, ask one to drain, page, record an event."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from rivertwice.agent.alert_model import Alert, AlertCause, Report
from rivertwice.agent.alert_store import alerts_of
from rivertwice.agent.memory import DriverRef, FallBack
from rivertwice.agent.observe import START_LINE
from rivertwice.core import (
    NEVER_SEEN,
    PipelineHome,
    Settings,
    Started,
    require_pipeline,
    start_detached,
    started_of,
    to_iso,
)
from rivertwice.engine import java_env
from rivertwice.storage import LogFile, put_json_if_absent
from rivertwice.stream import marker_of

FORMAT = 1
FALL_BACK = (sys.executable, "-m", "rivertwice.savepoint.operations.fall_back")
BESIDE_NICE = 10
"""Nice value of the driver of a version that runs beside the one that serves: it gets a tenth of the CPU where both want all of it."""
DRIVER = (sys.executable, "-m", "rivertwice.stream.driver")


def start_driver(
    settings: Settings, name: str, now: datetime, *, own_jvm: bool = False
) -> tuple[DriverRef, subprocess.Popen[bytes]]:
    """Start a driver in a new session, so that it outlives the agent.

    A drain marker that is still in place belongs to an earlier stop and is removed first.

    Args:
        own_jvm: not in the JVM of its group.
    """
    home = settings.pipeline(name)
    home.drain.unlink(missing_ok=True)
    command = [*DRIVER, "--pipeline", require_pipeline(name), *(["--own-jvm"] if own_jvm else [])]
    child = start_logged(settings, command, home.logs / "driver.log", f"{START_LINE}{to_iso(now)} ====")
    if not home.serves:
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, child.pid, BESIDE_NICE)  # its JVM inherits it
    return DriverRef(child.pid, _start_of(child), None, now), child


def start_fall_back(
    settings: Settings, name: str, attempt: int, damaged_at: datetime, now: datetime
) -> tuple[FallBack, subprocess.Popen[bytes]]:
    """Start the restore of the newest proved savepoint in a new session, so that it outlives the agent.

    Args:
        attempt: number of this process for one damage, from 1.
        damaged_at: when the damage was noticed; a head that moved since then needs no further restore.
    """
    command = [*FALL_BACK, "--pipeline", require_pipeline(name), "--since", to_iso(damaged_at)]
    log = settings.pipeline(name).logs / "restore.log"
    child = start_logged(settings, command, log, f"==== rivertwice agent falls back {to_iso(now)} ====")
    return FallBack(child.pid, _start_of(child), now, attempt), child


def _start_of(child: subprocess.Popen[bytes]) -> Started:
    """Return the name of a child's start; one that has ended already gets a name that is never alive."""
    return started_of(child.pid) or NEVER_SEEN


def start_logged(settings: Settings, command: Sequence[str], path: Path, headline: str) -> subprocess.Popen[bytes]:
    """Start a process in a new session, whose output goes into a log under a headline."""
    with LogFile(path).open() as log:
        log.write(f"{headline}\n".encode())
        log.flush()
        env = {**os.environ, **settings.to_env(), **java_env(settings)}
        return start_detached(command, env=env, cwd=settings.project, output=log)


def ask_to_drain(home: PipelineHome, by: str, now: datetime) -> bool:
    """Put the drain marker in place; return False if there is one already.

    Args:
        by: `agent` for an intent; another name makes the marker hold while this process lives.
    """
    marker = {"format": FORMAT, "by": by, "at": to_iso(now)} if by == "agent" else marker_of(by, now)
    return put_json_if_absent(home.drain, marker)


def record_event(
    settings: Settings, kind: str, pipeline: str | None, message: str, now: datetime, **fields: Any
) -> None:
    """Append one line to the agent's events."""
    event = {"format": FORMAT, "at": to_iso(now), "kind": kind, "pipeline": pipeline, "message": message, **fields}
    line = json.dumps(event, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    LogFile(settings.home / "agent" / "events.jsonl").append(line)


def page(
    settings: Settings,
    kind: str,
    pipeline: str | None,
    message: str,
    now: datetime,
    *,
    severity: str = "critical",
    subject: str = "",
    details: Mapping[str, str] | None = None,
) -> None:
    """Report an alert, or that one lasts: a line in `HOME/alerts.jsonl` and a message to each route, once per cause."""
    cause = AlertCause(pipeline or "", kind, subject)
    alerts_of(settings).report(Report(cause, severity, message, "agent", details or {}), now)


def page_over(
    settings: Settings,
    kinds: Collection[str],
    pipeline: str | None,
    why: str,
    now: datetime,
    *,
    subject: str | None = None,
    but: Collection[str] = (),
) -> None:
    """Record that the causes of alerts are over; without such alerts nothing is done.

    Args:
        why: what is true now, for people.
        subject: only the alerts of this subject; None: the alerts of all subjects.
        but: subjects whose causes last.
    """

    def is_over(alert: Alert) -> bool:
        cause = alert.cause
        return (
            cause.kind in kinds
            and cause.pipeline == (pipeline or "")
            and subject in (None, cause.subject)
            and cause.subject not in but
        )

    alerts_of(settings).resolve(is_over, why, now)
