"""What must be served of a session that publications overlap. Pure: positions of records in, sessions out.

Of one session of the truth there may be served: sessions that the stream emitted, where no publication has one over them, and sessions
of publications, each as the log was then, where no newer one lies over them. A record that came later may join two of
them, or be in neither: it is named, and the next backfill counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rivertwice.reconcile.sessions import Followed, Session, merge_records


@dataclass(frozen=True)
class Claim:
    """A session of a publication, in epoch milliseconds; one that vanishes is served no more, and nothing in its place."""

    start_ms: int
    end_ms: int
    seq: int
    vanishes: bool = False

    def overlaps(self, start_ms: int, end_ms: int) -> bool:
        """Say whether it has a stretch in common."""
        return self.start_ms < end_ms and start_ms < self.end_ms


@dataclass(frozen=True)
class PublishedSessions:
    """What is published of sessions.

    Attributes:
        claims: key's text to its sessions in the publications that count.
        ends: publication to the offsets that it knew, by topic and partition.
        closed_ms: sessions of the stream that end later are not served yet.
    """

    claims: Mapping[str, Sequence[Claim]]
    ends: Mapping[int, Mapping[str, Mapping[int, int]]]
    closed_ms: int


@dataclass(frozen=True)
class Owed:
    """What must be served of one session of the truth.

    Attributes:
        followed: the session, and what the stream made of it.
        emitted: sessions of the stream that no publication replaces.
        published: publication to its sessions that no newer one replaces, of the records that it knew.
        missing: records in none of them; none is in two, for two that hold the same record overlap.
        since: those of `missing` that the stream did not drop, but that a publication did not know yet, and those that the
            stream has in one session with such a one, where a publication replaces it.
        unexplained: those of `missing` that came in time for both.
        unknown: sessions of publications that the log does not give.
    """

    followed: Followed
    emitted: tuple[Session, ...]
    published: tuple[tuple[int, Session], ...]
    missing: tuple[int, ...] = ()
    since: tuple[int, ...] = ()
    unexplained: tuple[int, ...] = ()
    unknown: tuple[Claim, ...] = ()

    @property
    def is_truth(self) -> bool:
        """Whether just the session of the truth is served."""
        held = [*self.emitted, *(session for _, session in self.published)]
        return len(held) == 1 and not self.missing and not self.unknown

    @property
    def late(self) -> tuple[int, ...]:
        """Records that are missing because the stream dropped them."""
        dropped = set(self.followed.late)
        return tuple(one for one in self.missing if one in dropped)

    @property
    def split(self) -> tuple[int, ...]:
        """Records by which what the stream emitted came apart, as far as it is served."""
        held = {one for session in self.emitted for one in session.rows}
        return tuple(one for one in self.followed.split if one in held)


def owe_sessions(
    followed: Iterable[Followed],
    claims: Sequence[Claim],
    times_us: Callable[[int], int],
    knew: Callable[[int, int], bool],
    *,
    closed_ms: int,
    gap_us: int,
) -> list[Owed]:
    """Return what must be served of those of a key's sessions that publications overlap.

    Args:
        followed: the key's sessions.
        claims: its sessions in all publications that count.
        times_us: event time of a record, by position.
        knew: says whether a publication (by its number) knew a record (by position).
        closed_ms: sessions of the stream that end later are not served yet.
        gap_us: the gap.
    """
    found = []
    for one in followed:
        low, high = one.truth.start_us // 1000, one.truth.end_us // 1000
        over = [claim for claim in claims if claim.overlaps(low, high)]
        if over:
            found.append(_owed(one, over, times_us, knew, closed_ms, gap_us))
    return found


def _owed(
    followed: Followed,
    claims: Sequence[Claim],
    times_us: Callable[[int], int],
    knew: Callable[[int, int], bool],
    closed_ms: int,
    gap_us: int,
) -> Owed:
    emitted = tuple(
        part
        for part in followed.parts
        if part.end_us // 1000 <= closed_ms
        and not any(claim.overlaps(part.start_us // 1000, part.end_us // 1000) for claim in claims)
    )
    published: list[tuple[int, Session]] = []
    unknown: list[Claim] = []
    for claim in claims:
        if claim.vanishes or any(
            other.seq > claim.seq and other.overlaps(claim.start_ms, claim.end_ms) for other in claims
        ):
            continue
        known = [(times_us(one), one) for one in followed.truth.rows if knew(claim.seq, one)]
        same = [
            session
            for session in merge_records(known, gap_us)
            if (session.start_us // 1000, session.end_us // 1000) == (claim.start_ms, claim.end_ms)
        ]
        if same:
            published.append((claim.seq, same[0]))
        else:
            unknown.append(claim)
    counted = {one for session in (*emitted, *(session for _, session in published)) for one in session.rows}
    missing = tuple(one for one in followed.truth.rows if one not in counted)
    dropped = set(followed.late)
    rest = [one for one in missing if one not in dropped]
    unknown_yet = {one for one in rest if not all(knew(claim.seq, one) for claim in claims)}
    with_them = {one for part in followed.parts if unknown_yet & set(part.rows) for one in part.rows}
    since = tuple(one for one in rest if one in unknown_yet or one in with_them)
    return Owed(
        followed=followed,
        emitted=emitted,
        published=tuple(published),
        missing=missing,
        since=since,
        unexplained=tuple(one for one in rest if one not in since),
        unknown=tuple(unknown),
    )
