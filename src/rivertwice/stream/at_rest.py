"""Keep drivers of a pipeline away while an operation changes the data that they depend on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any

from rivertwice.config import PipelineHome
from rivertwice.errors import LeaseLostError, LostRaceError
from rivertwice.instants import to_iso
from rivertwice.processes import may_live, own_start
from rivertwice.store.files import read_json, replace_json
from rivertwice.stream.lease import hold_lease, lease_owner

FORMAT = 1


def marker_of(by: str, now: datetime) -> dict[str, Any]:
    """Return the drain marker of an operation; it holds while this process lives."""
    return {"format": FORMAT, "by": by, "at": to_iso(now), "pid": os.getpid(), "pid_started": own_start()}


@contextmanager
def at_rest(home: PipelineHome, by: str, now: datetime, *, running: str) -> Iterator[Callable[[], None]]:
    """Keep drivers away for the block: the agent sees the marker, and every other process is refused by the held lease.

    Args:
        home: the pipeline's home.
        by: the operation that holds the stream, for people who read the marker.
        now: the present instant.
        running: what a running driver means for the operation, for the message.

    Yields:
        a function that raises LeaseLostError if another host may have taken the lease over; to be called before each write.

    Raises:
        LostRaceError: another operation keeps the stream at rest.
        LeaseLostError: a driver runs, on this host or on another.
    """
    name = home.root.name
    marker = marker_of(by, now)
    existing = read_json(home.drain) or {}
    # A marker whose writer died does not count.
    if "pid" in existing and may_live(existing["pid"], existing["pid_started"]):
        message = (
            f"another operation keeps the stream of {name} at rest ({home.drain} exists); try again when it is done"
        )
        raise LostRaceError(message)
    replace_json(home.drain, marker)
    try:
        owner = lease_owner(home)
        if owner is not None:
            message = (
                f"a driver of {name} runs (pid {owner.pid}), so {running}; nothing was done; "
                f"`rivertwice stop {name} --wait` first"
            )
            raise LeaseLostError(message)
        with _held(home, now, running) as check:
            yield check
    finally:
        if (
            read_json(home.drain) == marker
        ):  # of two that began at the same moment, the one that was refused leaves the other's
            home.drain.unlink(missing_ok=True)


@contextmanager
def _held(home: PipelineHome, now: datetime, running: str) -> Iterator[Callable[[], None]]:
    with ExitStack() as stack:
        try:
            check = stack.enter_context(hold_lease(home, now))
        except LeaseLostError as error:
            message = f"{error}; so {running}; nothing was done; `rivertwice stop {home.root.name} --wait` where its driver runs"
            raise LeaseLostError(message) from error
        yield check
