"""The seal of a timeline: after it, no batch of that timeline can ever be committed. A restore seals the parent that it leaves.

A driver that was suspended, or that runs on another host, may continue at any moment and commit a batch to the parent. Between
"this is the parent's last batch" and "the head is the child" that batch would count, be served, and be void a moment
later. The seal is a separate commit in the changelog, so the table itself orders it against every batch. A batch comes
before it and is seen, or it is refused.
"""

from __future__ import annotations

import contextlib

from rivertwice.core import LeaseLostError, LostRaceError, PipelineHome
from rivertwice.storage import Table

SEALED = 1 << 62  # the version of a timeline's transaction id after the seal; before it, the version is a batch number


def stream_app(pipeline: str, timeline: str) -> str:
    """Return the application id of a timeline's transactions in the changelog."""
    return f"{pipeline}#{timeline}"


def is_sealed(applied: int | None) -> bool:
    """Say whether a timeline takes no further batch, given the newest applied version of its transaction id."""
    return applied is not None and applied >= SEALED


def check_sealed(applied: int | None, timeline: str) -> None:
    """Refuse to write to a timeline that a restore has sealed.

    Raises:
        LeaseLostError: it is sealed: its child continues, and is the head or is about to become it.
    """
    if is_sealed(applied):
        message = (
            f"timeline {timeline} was sealed by a restore, a rewind or an accepted gap: it takes no further batch, and this driver "
            "stops without writing; its child continues once that is finished: `rivertwice savepoint restore NAME` without an id, "
            "`rivertwice savepoint rewind NAME --yes` without an id, or `rivertwice start NAME --accept-gap ID` once more"
        )
        raise LeaseLostError(message)


def seal_timeline(home: PipelineHome, pipeline: str, timeline: str) -> None:
    """Let a timeline take no further batch; a second seal changes nothing."""
    app, path = stream_app(pipeline, timeline), home.tables.changelog
    while not is_sealed(Table(path).applied_version(app)):
        table = Table(path).open()
        if table is None:
            return
        no_rows = table.schema.empty_table()
        with contextlib.suppress(LostRaceError):  # a batch was first: it counts, and the seal comes after it
            Table(path).append(no_rows, transactions={app: SEALED})
