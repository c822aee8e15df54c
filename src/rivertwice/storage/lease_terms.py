"""When a lease that was not released may be taken over, and when its holder must stop by itself. Pure.

A store does not show that a holder died. So the holder renews one object, and a process that wants the lease watches it.
It may replace the object only if it has not changed for `takeover_s`, by the watcher's own clock; the store decides which
replacement wins. The holder counts `valid_s` from before its last successful renewal, and writes nothing after it. Instants
of two hosts are never compared: clocks may be wrong by hours. They must only run at about the same rate (within
`VALID_SHARE`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

VALID_SHARE = 0.6  # of takeover_s; so one host's clock may run 1.6 times as fast as another's


@dataclass(frozen=True)
class Terms:
    """The promise of a holder; stored with the lease, because a watcher must use the holder's terms, not its own.

    Attributes:
        renew_s: seconds from one renewal to the next.
        missed: number of renewals in a row that must be missed before the lease may be taken.
    """

    renew_s: float = 2.0
    missed: int = 6

    @property
    def takeover_s(self) -> float:
        """Seconds without a change after which a watcher may take the lease."""
        return self.renew_s * self.missed

    @property
    def valid_s(self) -> float:
        """Seconds after the start of its last successful renewal in which the holder may write."""
        return self.takeover_s * VALID_SHARE


@dataclass(frozen=True)
class LeaseRecord:
    """The content of the lease's object.

    Attributes:
        epoch: epoch of the holder; it increases by one with every start and is never used twice.
        home: id of the holder's home, which is one host's folder.
        by: the holder's process and host, only for people; no decision uses it.
    """

    epoch: int
    home: str
    terms: Terms
    released: bool
    by: str = field(default="", compare=False)

    @property
    def holder(self) -> str:
        """The holder, in words with which a person can find it."""
        return f"epoch {self.epoch} ({self.by or 'of a process that did not say its name'})"


@dataclass(frozen=True)
class Takeover:
    """Whether the lease may be taken now, with which epoch, and why."""

    take: bool
    epoch: int
    reason: str


def decide_takeover(held: LeaseRecord | None, *, home: str, unchanged_s: float, floor: int = 0) -> Takeover:
    """Decide whether to try to take the lease; if several try, the store lets one win.

    Args:
        home: id of the home that wants the lease, **whose local lock the caller holds**: a holder of the same home
            is therefore dead.
        unchanged_s: how long the caller has seen the object unchanged, by its own clock, which counts suspension.
        floor: newest epoch known from the ledger or the home, in case the object was lost.
    """
    if held is None:
        return Takeover(True, floor + 1, "it was never held")
    epoch = max(held.epoch, floor) + 1
    if held.released:
        return Takeover(True, epoch, f"epoch {held.epoch} released it")
    if held.home == home:
        return Takeover(True, epoch, f"epoch {held.epoch} ran in this home, whose lock is free")
    if unchanged_s >= held.terms.takeover_s:
        return Takeover(
            True, epoch, f"epoch {held.epoch} has not renewed it for {unchanged_s:.1f} s ({held.terms.missed} renewals)"
        )
    remaining_s = held.terms.takeover_s - unchanged_s
    return Takeover(
        False, epoch, f"epoch {held.epoch} of another home may live; {remaining_s:.1f} s without a renewal are left"
    )


def must_stop(*, renewed_at: float, now: float, terms: Terms) -> bool:
    """Say whether a holder must stop writing, because another process may hold the lease by now.

    Args:
        renewed_at: when its last successful renewal was **sent**, by a monotonic clock.
        now: the present, by the same clock.
        terms: the terms that it promised.
    """
    return now - renewed_at >= terms.valid_s


def is_lost(held: LeaseRecord | None, epoch: int) -> bool:
    """Say whether a holder of `epoch` that finds `held` in the store has lost the lease."""
    return held is None or held.epoch != epoch or held.released
