"""Keep drivers of a pipeline away while an operation changes what they stand on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from rivertwice.config import PipelineHome
from rivertwice.errors import LeaseLostError, LostRaceError
from rivertwice.instants import to_iso
from rivertwice.process_identity import may_live, own_start
from rivertwice.store.files import read_json, replace_json
from rivertwice.stream.lease import lease_owner, require_no_other_host


@contextmanager
def at_rest(home: PipelineHome, by: str, now: datetime, *, running: str) -> Iterator[None]:
    """Keep drivers away for the block; the marker holds while this process lives.

    Args:
        home: of the pipeline.
        by: what holds it, for whoever finds the marker.
        now: the present instant.
        running: what a running driver means for the operation, for the message.

    Raises:
        LostRaceError: another operation keeps it at rest.
        LeaseLostError: a driver runs, here or on another host.
    """
    name = home.root.name
    marker = {"format": 1, "by": by, "at": to_iso(now), "pid": os.getpid(), "pid_started": own_start()}
    found = read_json(home.drain) or {}
    if "pid" in found and may_live(found["pid"], found["pid_started"]):  # one whose writer died holds nothing
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
        require_no_other_host(home)
        yield
    finally:
        home.drain.unlink(missing_ok=True)
