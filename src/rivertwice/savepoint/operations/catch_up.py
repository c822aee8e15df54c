"""Run a driver on a timeline that is not the head, until it has read what the head has."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import ServiceError
from rivertwice.processes import start_detached
from rivertwice.progress import Measured, Progress
from rivertwice.savepoint.operations.drain import hold_stream
from rivertwice.setup.java import java_env
from rivertwice.store.log_files import open_log
from rivertwice.stream.catch_up import Goal, covers, has_caught_up
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import read_exit
from rivertwice.timeline.ledger import LedgerRow

DRIVER = (sys.executable, "-m", "rivertwice.stream.driver")
_POLL_S = 0.1
_REPORT_EVERY_S = 5.0


def run_to_goal(
    settings: Settings, home: PipelineHome, goal: Goal, last: Callable[[], LedgerRow | None], progress: Progress
) -> None:
    """Run a driver on the goal's timeline until it has caught up and has ended; a driver that is alive is resumed.

    Raises:
        ServiceError: it ended before the goal; the message contains the reason and the path of its log.
    """
    process: subprocess.Popen[bytes] | None = None
    last_report, most = 0.0, 0
    while True:
        owner = lease_owner(home)
        running = process.poll() is None if process is not None else owner is not None
        if not running and owner is None:
            row = last()
            if row is not None and has_caught_up(goal, row.end_offsets, row.batch_watermark_ms):
                return
            if process is not None:
                if row is not None and process.returncode == 0 and covers(row.end_offsets, goal.offsets):
                    return  # every record is read; no record is left that could raise the watermark
                raise ServiceError(_ended_early(home, goal, process.returncode))
            process = start_catching_up(settings, home, goal)
            progress(f"a driver (pid {process.pid}) catches up on timeline {goal.timeline}; its log is logs/rewind.log")
        if time.monotonic() - last_report > _REPORT_EVERY_S:
            last_report = time.monotonic()
            hold_stream(home, goal.by)  # the agent takes an old marker for a driver that is stuck
            row = last()
            left = left_to(goal, row)
            most = max(most, left)
            place = "before its first batch" if row is None else f"at batch {row.batch}"
            line = f"timeline {goal.timeline} is {place}; {left} records are left"
            progress(Measured(line, f"catch up on {goal.timeline}", most - left, most))
        time.sleep(_POLL_S)


def left_to(goal: Goal, row: LedgerRow | None) -> int:
    """Return how many records lie between a batch's end, or offset 0 before the first one, and the goal."""
    reached = {} if row is None else row.end_offsets
    return sum(
        max(0, int(end) - int(reached.get(topic, {}).get(partition, 0)))
        for topic, parts in goal.offsets.items()
        for partition, end in parts.items()
    )


def start_catching_up(settings: Settings, home: PipelineHome, goal: Goal) -> subprocess.Popen[bytes]:
    """Start a driver on a timeline that is not the head, in its own process session, so that it outlives this process."""
    command = [*DRIVER, "--pipeline", home.root.name, "--catch-up", goal.to_text()]
    with open_log(home.logs / "rewind.log") as log:
        env = {**os.environ, **java_env(settings), **settings.to_env()}
        return start_detached(command, env=env, cwd=settings.project, output=log)


def _ended_early(home: PipelineHome, goal: Goal, code: int | None) -> str:
    record = read_exit(home)
    why = "it left no record" if record is None else f"{record.failure}: {record.message[:1000]}"
    return (
        f"the driver that catches up on timeline {goal.timeline} ended with {code} before it was there ({why}); the head is "
        "what it was and serves; see logs/rewind.log, cure it and run the rewind again, or give it up with --abandon"
    )
