"""What must be served of a session that publications overlap. Pure: positions of records in, sessions out.

For one session of the truth, two kinds of sessions may be served: sessions that the stream emitted and no publication
overlaps, and sessions of publications, each as the log was then, that no newer publication overlaps. A record that came
later may join two of them, or be in neither: it is named, and the next backfill counts it. The same is done for a dead letter
that was amended after a publication. It is also done for one that a publication counted and that is dead again, or another
record, by now: it may have joined sessions that are two again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rivertwice.reconcile.sessions import Followed, Session, merge_records


@dataclass(frozen=True)
class PublishedSession:
    """A session of a publication, in epoch milliseconds; one that vanishes is no longer served, and nothing replaces it."""

    start_ms: int
    end_ms: int
    seq: int
    vanishes: bool = False

    def overlaps(self, start_ms: int, end_ms: int) -> bool:
        """Say whether it overlaps another span."""
        return self.start_ms < end_ms and start_ms < self.end_ms


@dataclass(frozen=True)
class PublishedSessions:
    """What is published of sessions.

    Attributes:
        claims: key's text to its sessions in the publications that count.
        ends: publication to the offsets that it knew, by topic and partition.
        amendments: publication to the newest decision about a dead letter that it knew.
        closed_ms: sessions of the stream that end later are not served yet.
    """

    claims: Mapping[str, Sequence[PublishedSession]]
    ends: Mapping[int, Mapping[str, Mapping[int, int]]]
    closed_ms: int
    amendments: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ExpectedServed:
    """What must be served of one session of the truth.

    Attributes:
        followed: the session, and what the stream made of it. There are several if an amended record that holds no more had
            joined them, and none if it alone had made the session.
        emitted: sessions of the stream that no publication replaces.
        published: publication to its sessions that no newer one replaces, of the records that it knew.
        missing: records in none of them. None is in two, because two sessions with the same record overlap.
        since: those of `missing` that the stream did not drop, but that a publication did not know yet, and those in the same
            session of the stream as such a record, if a publication replaces that session.
        amended: those of `missing` that are dead letters, amended when no publication could count them any more.
        former: amended records that a publication counted and that hold no more.
        waiting: those of `missing` that are in a session of the stream that is not closed yet.
        unexplained: those of `missing` that came in time for both.
        unknown: sessions of publications that the log does not give.
    """

    followed: tuple[Followed, ...]
    emitted: tuple[Session, ...]
    published: tuple[tuple[int, Session], ...]
    missing: tuple[int, ...] = ()
    since: tuple[int, ...] = ()
    amended: tuple[int, ...] = ()
    former: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    unexplained: tuple[int, ...] = ()
    unknown: tuple[PublishedSession, ...] = ()

    @property
    def is_truth(self) -> bool:
        """Whether just the sessions of the truth are served."""
        served_sets = {frozenset(session.rows) for session in self.held}
        return not self.unknown and served_sets == {frozenset(followed.truth.rows) for followed in self.followed}

    @property
    def held(self) -> tuple[Session, ...]:
        """All that must be served."""
        return (*self.emitted, *(session for _, session in self.published))

    @property
    def late(self) -> tuple[int, ...]:
        """Records that are missing because the stream dropped them."""
        dropped = {row for followed in self.followed for row in followed.late}
        return tuple(row for row in self.missing if row in dropped)

    @property
    def split(self) -> tuple[int, ...]:
        """Records that split what the stream emitted, as far as that is served."""
        emitted_rows = {row for session in self.emitted for row in session.rows}
        return tuple(row for followed in self.followed for row in followed.split if row in emitted_rows)


@dataclass(frozen=True)
class Known:
    """What is known of a key's records, by their positions.

    Attributes:
        times_us: event time of a record.
        knew: returns whether a publication (by its number) knew a record.
        is_cure: returns whether a record is a dead letter that was amended.
    """

    times_us: Callable[[int], int]
    knew: Callable[[int, int], bool]
    is_cure: Callable[[int], bool] = lambda _: False


def expected_served_sessions(
    followed: Iterable[Followed],
    claims: Sequence[PublishedSession],
    known: Known,
    *,
    closed_ms: int,
    gap_us: int,
    ended: Iterable[int] = (),
) -> list[ExpectedServed]:
    """Return what must be served of those of a key's sessions that publications overlap.

    Args:
        followed: the key's sessions.
        claims: its sessions in all publications that count.
        known: its records.
        closed_ms: sessions of the stream that end later are not served yet.
        gap_us: the gap.
        ended: positions of amended records that hold no more.
    """
    former = [row for row in ended if any(known.knew(claim.seq, row) for claim in claims)]
    expected = []
    for stretch, together in _joined(followed, former, known, gap_us):
        low, high = stretch.start_us // 1000, stretch.end_us // 1000
        overlapping = [claim for claim in claims if claim.overlaps(low, high)]
        if overlapping:
            expected.append(_expected_of(stretch, together, overlapping, known, closed_ms, gap_us))
    return expected


def _joined(
    followed: Iterable[Followed], former: Sequence[int], known: Known, gap_us: int
) -> list[tuple[Session, tuple[Followed, ...]]]:
    """Return the sessions of the truth; those that a former record had joined are returned together, with all records."""
    sessions = list(followed)
    if not former:
        return [(session.truth, (session,)) for session in sessions]
    rows = [*former, *(row for session in sessions for row in session.truth.rows)]
    return [
        (stretch, tuple(session for session in sessions if stretch.start_us <= session.truth.start_us < stretch.end_us))
        for stretch in merge_records(((known.times_us(row), row) for row in rows), gap_us)
    ]


def _expected_of(
    stretch: Session,
    followed: tuple[Followed, ...],
    claims: Sequence[PublishedSession],
    known: Known,
    closed_ms: int,
    gap_us: int,
) -> ExpectedServed:
    parts = [part for session in followed for part in session.parts]
    emitted = tuple(
        part
        for part in parts
        if part.end_us // 1000 <= closed_ms
        and not any(claim.overlaps(part.start_us // 1000, part.end_us // 1000) for claim in claims)
    )
    published: list[tuple[int, Session]] = []
    unknown: list[PublishedSession] = []
    for claim in claims:
        if claim.vanishes or any(
            other.seq > claim.seq and other.overlaps(claim.start_ms, claim.end_ms) for other in claims
        ):
            continue
        known_records = [(known.times_us(row), row) for row in stretch.rows if known.knew(claim.seq, row)]
        matching = [
            session
            for session in merge_records(known_records, gap_us)
            if (session.start_us // 1000, session.end_us // 1000) == (claim.start_ms, claim.end_ms)
        ]
        if matching:
            published.append((claim.seq, matching[0]))
        else:
            unknown.append(claim)
    counted = {row for session in (*emitted, *(session for _, session in published)) for row in session.rows}
    true = {row for session in followed for row in session.truth.rows}
    missing = tuple(row for row in stretch.rows if row in true and row not in counted)
    dropped = {row for session in followed for row in session.late}
    not_dropped = [row for row in missing if row not in dropped]
    unknown_yet = {row for row in not_dropped if not all(known.knew(claim.seq, row) for claim in claims)}
    with_them = {row for part in parts if unknown_yet & set(part.rows) for row in part.rows}
    named = [row for row in not_dropped if row in unknown_yet or row in with_them]
    is_open = {row for part in parts if part.end_us // 1000 > closed_ms for row in part.rows}
    not_named = [row for row in not_dropped if row not in named]
    return ExpectedServed(
        followed=followed,
        emitted=emitted,
        published=tuple(published),
        missing=missing,
        since=tuple(row for row in named if not known.is_cure(row)),
        amended=tuple(row for row in named if known.is_cure(row)),
        former=tuple(row for row in stretch.rows if row in counted and row not in true),
        waiting=tuple(row for row in not_named if row in is_open),
        unexplained=tuple(row for row in not_named if row not in is_open),
        unknown=tuple(unknown),
    )
