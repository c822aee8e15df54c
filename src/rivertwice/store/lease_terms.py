"""When a lease that nobody releases may be taken over, and when its holder must stop by itself. Pure.

On a store nobody sees a holder die. So the holder renews one object, and whoever wants the lease watches it: only an
object that has stayed the same through all of `takeover_s` of the watcher's own clock may be replaced, and the store
decides which replacement wins. The holder counts `valid_s` from before its last renewal that succeeded, and writes
nothing after it. No instant of one host is ever compared with one of another: clocks may be wrong by hours. They must
only run at about the same rate (within `valid_share`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

VALID_SHARE = 0.6  # of takeover_s; so one host's clock may run 1.6 times as fast as another's


@dataclass(frozen=True)
class Terms:
    """What a holder promises; stored with the lease, for a watcher must use the holder's terms, not its own.

    Attributes:
        renew_s: seconds from one renewal to the next.
        missed: so many renewals in a row must be missed before the lease may be taken.
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
class Held:
    """What the lease's object says.

    Attributes:
        epoch: of its holder; rises by one with every start and is never used twice.
        home: id of the holder's home, which is one host's folder.
        terms: what the holder promised.
        released: whether the holder gave it up.
        by: the holder's process and host, for people; nothing decides by it.
    """

    epoch: int
    home: str
    terms: Terms
    released: bool
    by: str = field(default="", compare=False)

    @property
    def holder(self) -> str:
        """The holder as a person can find it."""
        return f"epoch {self.epoch} ({self.by or 'of a process that did not say its name'})"


@dataclass(frozen=True)
class Takeover:
    """Whether the lease may be taken now, with which epoch, and why."""

    take: bool
    epoch: int
    reason: str


def decide_takeover(held: Held | None, *, home: str, unchanged_s: float, floor: int = 0) -> Takeover:
    """Decide whether to try to take the lease; of several that try, the store lets one win.

    Args:
        held: what the object says; None if there is none.
        home: id of the home that wants the lease, **whose local lock the caller holds**: a holder of the same home
            is therefore dead.
        unchanged_s: how long the caller has seen the object unchanged, by a clock of its own that counts suspension.
        floor: newest epoch known from elsewhere (the ledger, the home), should the object have been lost.
    """
    if held is None:
        return Takeover(True, floor + 1, "nobody ever held it")
    epoch = max(held.epoch, floor) + 1
    if held.released:
        return Takeover(True, epoch, f"epoch {held.epoch} released it")
    if held.home == home:
        return Takeover(True, epoch, f"epoch {held.epoch} ran in this home, whose lock is free")
    if unchanged_s >= held.terms.takeover_s:
        return Takeover(
            True, epoch, f"epoch {held.epoch} has not renewed it for {unchanged_s:.1f} s ({held.terms.missed} renewals)"
        )
    left = held.terms.takeover_s - unchanged_s
    return Takeover(
        False, epoch, f"epoch {held.epoch} of another home may live; {left:.1f} s without a renewal are left"
    )


def must_stop(*, renewed_at: float, now: float, terms: Terms) -> bool:
    """Say whether a holder must write no more, since somebody else may hold the lease by now.

    Args:
        renewed_at: when its last successful renewal was **sent**, by a clock that only goes forward.
        now: by the same clock.
        terms: what it promised.
    """
    return now - renewed_at >= terms.valid_s


def is_lost(held: Held | None, epoch: int) -> bool:
    """Say whether a holder of `epoch` that finds `held` in the store has lost the lease."""
    return held is None or held.epoch != epoch or held.released
