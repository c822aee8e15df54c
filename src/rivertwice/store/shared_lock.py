"""A lock for processes of several hosts, in a folder or on S3: a lease (`lease_store`) that is held for one piece of work."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rivertwice.config import Place
from rivertwice.errors import LeaseLostError, LostRaceError
from rivertwice.instants import utc_now
from rivertwice.store.lease_store import forward_clock, take_claim
from rivertwice.store.lease_terms import Terms
from rivertwice.store.places import open_store

StillHeld = Callable[[], None]
"""Raises LeaseLostError if another process holds the lock, or may hold it by now; to be called directly before each write."""


@contextmanager
def shared_lock(
    place: Place, *, home: str, what: str, patience_s: float, terms: Terms | None = None
) -> Iterator[StillHeld]:
    """Hold the lock at a place; a thread renews it. After the death of its holder it is free after `Terms.takeover_s`.

    Args:
        place: the place of this lock only.
        home: id of this home, **whose local lock for the same work the caller holds**.
        what: name of the locked work, for the message.
        patience_s: how long to wait while another host renews the lock.
        terms: the terms that this holder promises; None: the defaults.

    Raises:
        LostRaceError: another host still holds the lock; nothing was done.
    """
    terms = terms or Terms()
    store = open_store(place, answer_s=terms.renew_s)
    by = {"host": platform.node(), "pid": os.getpid(), "for": what}
    deadline = forward_clock() + patience_s
    while True:
        try:
            claim = take_claim(store, home=home, by=by, floor=0, terms=terms, now=utc_now)
            break
        except LeaseLostError as error:
            if forward_clock() >= deadline:
                message = f"another host works on {what} ({error}); nothing was done here; try again when it is done"
                raise LostRaceError(message) from error
            time.sleep(terms.renew_s / 2)
    claim.start()
    try:
        yield claim.check
    finally:
        claim.release()
