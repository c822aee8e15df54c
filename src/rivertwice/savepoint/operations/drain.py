"""Stop a stream for an operation, and keep it stopped."""

from __future__ import annotations

import contextlib
import os
import signal

from rivertwice.config import PipelineHome
from rivertwice.errors import ServiceError
from rivertwice.instants import utc_now
from rivertwice.processes import is_alive
from rivertwice.progress import Progress
from rivertwice.store.files import put_json_if_absent, read_json, replace_json
from rivertwice.stream.at_rest import marker_of
from rivertwice.stream.lease import lease_owner, lock_file, require_no_other_host
from rivertwice.timeline.intent import write_intent
from rivertwice.waits import Deadline

DRAIN_S = 120.0  # a driver drains in half a second; one that is stuck in a batch may take longer
_POLL_S = 0.1


def drain_stream(home: PipelineHome, by: str, wanted: bool, seconds: float, progress: Progress) -> None:
    """Record that the stream is wanted stopped, and wait until its driver has ended.

    Raises:
        ServiceError: the driver did not end in time.
    """
    require_no_other_host(home)
    if wanted or lease_owner(home) is not None:
        write_intent(home, "stopped", by=by, now=utc_now())
        put_json_if_absent(home.drain, marker_of(by, utc_now()))
    try:
        owner = lease_owner(home)
        if owner is not None:
            progress(f"draining the driver (epoch {owner.epoch})")
        if not Deadline.after(seconds).wait_until(lambda: lease_owner(home) is None):
            message = (
                f"the driver of {home.root.name} did not stop within {seconds:.0f} s; the stream is wanted stopped and nothing "
                f"else was done; see its log, stop it, and run the {by.partition('-')[0]} again"
            )
            raise ServiceError(message)
    finally:
        home.drain.unlink(missing_ok=True)


def hold_stream(home: PipelineHome, by: str) -> None:
    """Let only the operation's own driver start."""
    replace_json(home.drain, marker_of(by, utc_now()))


def let_go_of_stream(home: PipelineHome, by: str) -> None:
    """Remove the operation's own drain marker; another's stays."""
    marker = read_json(home.drain)
    if marker is not None and marker.get("by") == by:
        home.drain.unlink(missing_ok=True)


def end_catching_up(home: PipelineHome, child: str, seconds: float) -> None:
    """End a driver that still catches up on `child`, at a batch boundary.

    Raises:
        ServiceError: it does not end in time.
    """
    owner = lease_owner(home)
    if owner is None or owner.timeline != child:
        return
    if is_alive(owner.pid, owner.pid_started):  # else another process has its number now
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGTERM)
    lock = lock_file(home)
    if not Deadline.after(seconds).wait_until(
        lambda: not is_alive(owner.pid, owner.pid_started, lock=lock), every=_POLL_S
    ):
        message = (
            f"the driver that catches up on {child} (pid {owner.pid}) did not end within {seconds:.0f} s; nothing was changed; "
            "see logs/rewind.log, end it and run this again"
        )
        raise ServiceError(message)
