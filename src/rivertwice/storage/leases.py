"""Leases as objects of a store: taken and renewed by replacing exactly the version that was read, never deleted.

    s3://bucket/leases/PIPELINE/lease.json

1. Take: read, decide (`decide_takeover`), replace the version that was read with epoch + 1. The store lets one of several win.
2. Renew every `renew_s`: replace the version last written. A holder that reads another epoch has lost the lease.
3. Before each commit `check`: the lease is not lost, and was renewed within the promised time (`must_stop`). If it was not, `check`
   renews it itself: on a busy machine the thread may get no turn for seconds, although nobody took the lease and the store answers.
4. Release: replace once more, with `released`; then a successor need not wait.

Every write has a nonce in its bytes, so that no two versions are ever equal.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rivertwice.core import (
    ConfigError,
    LeaseLostError,
    LostRaceError,
    Place,
    RivertwiceError,
    ServiceError,
    UnknownOutcomeError,
    to_iso,
    utc_now,
)
from rivertwice.storage.blobs import BlobStore
from rivertwice.storage.lease_terms import LeaseRecord, Takeover, Terms, decide_takeover, is_lost, must_stop
from rivertwice.storage.local import encode_json
from rivertwice.storage.places import open_store

# When a lease that was not released may be taken over, and when its holder must stop by itself. Pure.
#
# A store does not show that a holder died. So the holder renews one object, and a process that wants the lease watches it.
# It may replace the object only if it has not changed for `takeover_s`, by the watcher's own clock; the store decides which
# replacement wins. The holder counts `valid_s` from before its last successful renewal, and writes nothing after it. Instants
# of two hosts are never compared: clocks may be wrong by hours. They must only run at about the same rate (within
# `VALID_SHARE`).


FORMAT = 1
KEY = "lease.json"
_log = logging.getLogger(__name__)
Clock = Callable[[], float]


def forward_clock() -> float:
    """Return seconds of a clock that cannot be set and that counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def decode_held(data: bytes) -> LeaseRecord:
    """Return the lease in the object's bytes.

    Raises:
        ConfigError: the bytes are not a lease, or their format is unknown.
    """
    try:
        values: dict[str, Any] = json.loads(data)
        if values.get("format") != FORMAT:
            message = f"the lease has format {str(values.get('format'))[:20]}, and {FORMAT} is read; use the newer rivertwice on all hosts"
            raise ConfigError(message)
        return LeaseRecord(
            epoch=int(values["epoch"]),
            home=str(values["home"]),
            terms=Terms(float(values["renew_s"]), int(values["missed"])),
            released=bool(values["released"]),
            by=_named(values.get("by")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        message = (
            f"the lease's object is not a lease ({type(error).__name__}), so no driver may start: another program wrote to it; put the "
            "newest epoch's record back, and never delete it, because the epochs would start again"
        )
        raise ConfigError(message) from error


def _named(by: Any) -> str:
    """Return who took the lease, as a short text on one line; the record is untrusted."""
    if not isinstance(by, dict) or "pid" not in by or "host" not in by:
        return ""
    text = f"process {by['pid']} on host {by['host']}"
    return "".join(letter for letter in text if letter.isprintable())[:100]


def encode_held(held: LeaseRecord, *, by: dict[str, Any], now: datetime) -> bytes:
    """Return a lease's bytes; no two are equal. `by` and the instant are only for people, no decision uses them."""
    return encode_json(
        {
            "format": FORMAT,
            "epoch": held.epoch,
            "home": held.home,
            "renew_s": held.terms.renew_s,
            "missed": held.terms.missed,
            "released": held.released,
            "nonce": secrets.token_hex(16),
            "by": by,
            "at": to_iso(now),
        }
    )


class Watch:
    """One starter's view of the lease: its content, and how long it has been unchanged."""

    def __init__(self, store: BlobStore, *, home: str, clock: Clock = forward_clock) -> None:
        self._store = store
        self._home = home
        self._clock = clock
        self._version: str | None = None
        self._since = 0.0
        self.held: LeaseRecord | None = None
        self.changes = -1

    def look(self, floor: int = 0) -> Takeover:
        """Read the lease once more and decide."""
        now = self._clock()
        stored = self._store.get_versioned(KEY)
        version = None if stored is None else stored.version
        if self.changes < 0 or version != self._version:
            self._version, self._since = version, now
            self.changes += 1
        self.held = None if stored is None else decode_held(stored.data)
        return decide_takeover(self.held, home=self._home, unchanged_s=now - self._since, floor=floor)

    def replace(self, data: bytes) -> bool:
        """Try to replace the version that was read last with `data`."""
        if self._version is None:
            return self._store.put_if_absent(KEY, data)
        return self._store.put_if_version(KEY, data, self._version)


class StoreClaim:
    """An epoch held in a store. `start` renews it in a separate thread; without `start` the owner calls `renew`."""

    def __init__(
        self,
        store: BlobStore,
        held: LeaseRecord,
        *,
        by: dict[str, Any],
        sent_at: float,
        clock: Clock,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._held = held
        self._by = by
        self._renewed_at = sent_at
        self._clock = clock
        self._now = now
        self._lost: str | None = None
        self._trouble = ""
        self._stopping = threading.Event()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def epoch(self) -> int:
        """Number of this start."""
        return self._held.epoch

    def start(self) -> None:
        """Renew from now on."""
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._lost is None and not self._stopping.wait(self._held.terms.renew_s):
            self.renew()

    def renew(self) -> bool:
        """Renew once; return whether it succeeded. If the store does not answer, the promised time keeps running out."""
        with self._turn:
            sent_at = self._clock()
            try:
                stored = self._store.get_versioned(KEY)
                current = None if stored is None else decode_held(stored.data)
                if stored is None or is_lost(current, self.epoch):
                    self._lost = "nobody" if current is None else current.holder
                    return False
                data = encode_held(self._held, by=self._by, now=self._now())
                if not self._store.put_if_version(KEY, data, stored.version):
                    return False  # another writer was faster: the next read shows who
            except (ServiceError, UnknownOutcomeError) as error:
                self._trouble = str(error)
                _log.warning("epoch %s could not renew its lease: %s", self.epoch, error)
                return False
            self._renewed_at = sent_at
            self._trouble = ""
            return True

    def check(self) -> None:
        """Raise LeaseLostError if another process holds the lease, or may hold it by now; it asks the store only if the time is over."""
        if self._lost is not None:
            message = (
                f"{self._lost} holds the lease in {self._store}, this driver is epoch {self.epoch}: it no longer owns the "
                "stream and stops without writing"
            )
            raise LeaseLostError(message)
        if self._is_over() and not self.renew() and self._lost is not None:
            self.check()  # which names the holder
        if self._is_over():
            why = f" ({self._trouble})" if self._trouble else ""
            message = (
                f"epoch {self.epoch} has not renewed its lease in {self._store} for {self._clock() - self._renewed_at:.1f} s{why}, and may "
                f"write only {self._held.terms.valid_s:.1f} s after a renewal, because another driver may take it over: the driver "
                "stops without writing; the agent starts another one when the store answers again"
            )
            raise LeaseLostError(message)

    def _is_over(self) -> bool:
        return must_stop(renewed_at=self._renewed_at, now=self._clock(), terms=self._held.terms)

    def release(self) -> None:
        """Release the epoch, so that a successor need not wait; a failure here only costs that wait."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=self._held.terms.takeover_s)
        with self._turn, contextlib.suppress(RivertwiceError):
            stored = self._store.get_versioned(KEY)
            if stored is not None and not is_lost(decode_held(stored.data), self.epoch):
                self._held = LeaseRecord(self.epoch, self._held.home, self._held.terms, released=True)
                self._store.put_if_version(KEY, encode_held(self._held, by=self._by, now=self._now()), stored.version)
                self._lost = "nobody"


def take_claim(
    store: BlobStore,
    *,
    home: str,
    by: dict[str, Any],
    floor: int,
    terms: Terms,
    now: Callable[[], datetime],
    clock: Clock = forward_clock,
    pause: Callable[[float], object] = time.sleep,
) -> StoreClaim:
    """Take the lease, after waiting as long as its last holder was promised; the caller holds the home's local lock.

    Args:
        by: for people: process, host, timeline.
        floor: newest epoch that is known from another record.
        now: the present instant, for people.

    Raises:
        LeaseLostError: the holder renewed it meanwhile, or another starter was faster.
    """
    watch = Watch(store, home=home, clock=clock)
    while True:
        decision = watch.look(floor)
        if decision.take:
            break
        if watch.changes > 0:
            raise LeaseLostError(_refused(store, watch.held))
        pause(min(terms.renew_s, watch.held.terms.renew_s if watch.held else terms.renew_s) / 2)
    held = LeaseRecord(decision.epoch, home, terms, released=False)
    sent_at = clock()
    if not watch.replace(encode_held(held, by=by, now=now())):
        watch.look(floor)
        raise LeaseLostError(_refused(store, watch.held))
    _log.info("epoch %s takes the lease in %s: %s", held.epoch, store, decision.reason)
    return StoreClaim(store, held, by=by, sent_at=sent_at, clock=clock, now=now)


def _refused(store: BlobStore, held: LeaseRecord | None) -> str:
    who = "somebody" if held is None else f"{held.holder}, home {held.home},"
    return f"{who} holds the lease in {store} and renews it; this start ends here; stop the other driver first"


# A lock for processes of several hosts, in a folder or in an object store: a lease (`lease_store`) that is held for one piece of work.

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
                message = f"another host works on {what} ({error}); try again when it is done"
                raise LostRaceError(message) from error
            time.sleep(terms.renew_s / 2)
    claim.start()
    try:
        yield claim.check
    finally:
        claim.release()
