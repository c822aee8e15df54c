"""What a stream makes of one key's records when windows are sessions. Pure: integers in, sessions out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

Arrival = tuple[int, int, int]
"""(path index of the batch that read the record, or a negative one if none did; event time in microseconds; its position)."""


@dataclass(frozen=True)
class Session:
    """A run of records: from the first one's time to `gap` after the last one's.

    Attributes:
        rows: positions of the records.
        generation: sessions of one generation do not touch each other, so one run of the transform keeps them apart.
    """

    start_us: int
    end_us: int
    rows: tuple[int, ...]
    generation: int = 0


@dataclass(frozen=True)
class Followed:
    """A session as all records make it, and what the stream made of the same records.

    Attributes:
        parts: the sessions of the stream, each within the truth.
        late: positions of records that the stream dropped.
        skipped: positions of records that no batch read.
        split: positions of records that came after a session they touch had been emitted; they went into another one.
    """

    truth: Session
    parts: tuple[Session, ...]
    late: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()
    split: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the stream has the session just as the truth does."""
        return len(self.parts) == 1 and len(self.parts[0].rows) == len(self.truth.rows)

    @property
    def starts_ms(self) -> set[int]:
        """Starts of the session and of its parts."""
        return {session.start_us // 1000 for session in (self.truth, *self.parts)}


def follow_key(arrivals: Iterable[Arrival], gap_us: int, late_us: Sequence[int]) -> list[Followed]:
    """Follow one key's records through the batches; return its sessions in order of their start.

    Args:
        arrivals: the key's records, in any order.
        late_us: by path index, the watermark that the batch before ran with: it dropped what had ended by then, and all
            sessions that had ended by then were emitted.
    """
    rows = sorted(arrivals)
    read = [row for row in rows if row[0] >= 0]
    late = {row[2] for row in read if row[1] + gap_us <= late_us[row[0]]}
    parts = _generations(_stream_sessions([row for row in read if row[2] not in late], gap_us, late_us))
    truth = merge_records(((time, position) for _, time, position in rows), gap_us)
    by_position = {position: (index, time) for index, time, position in rows}
    followed = []
    first = 0
    for true_session in truth:
        after = first
        while after < len(parts) and parts[after].start_us <= true_session.end_us:
            after += 1
        own_parts = tuple(parts[first:after])
        first = after
        followed.append(
            Followed(
                truth=true_session,
                parts=own_parts,
                late=tuple(position for position in true_session.rows if position in late),
                skipped=tuple(position for position in true_session.rows if by_position[position][0] < 0),
                split=_split(own_parts, by_position, gap_us, late_us) if len(own_parts) > 1 else (),
            )
        )
    return followed


def _stream_sessions(rows: Sequence[Arrival], gap_us: int, late_us: Sequence[int]) -> list[Session]:
    """Return the sessions a stream makes of accepted rows, sorted by batch."""
    done: list[Session] = []
    state: list[Session] = []
    at = 0
    while at < len(rows):
        index = rows[at][0]
        done += [session for session in state if session.end_us <= late_us[index]]
        state = [session for session in state if session.end_us > late_us[index]]
        while at < len(rows) and rows[at][0] == index:
            _, time, position = rows[at]
            state.append(Session(time, time + gap_us, (position,)))
            at += 1
        state = _merge(state)
    return done + state


def merge_records(records: Iterable[tuple[int, int]], gap_us: int) -> list[Session]:
    """Return the sessions that records (event time in microseconds, position) make, all taken together, in order."""
    return _merge(Session(time, time + gap_us, (position,)) for time, position in records)


def _merge(sessions: Iterable[Session]) -> list[Session]:
    """Return sessions in order; those that overlap or touch are merged."""
    merged: list[tuple[int, int, list[int]]] = []
    for current in sorted(sessions, key=lambda session: (session.start_us, session.end_us)):
        if merged and current.start_us <= merged[-1][1]:
            start, end, rows = merged[-1]
            rows.extend(current.rows)
            merged[-1] = (start, max(end, current.end_us), rows)
        else:
            merged.append((current.start_us, current.end_us, list(current.rows)))
    return [Session(start, end, tuple(rows)) for start, end, rows in merged]


def _generations(sessions: Iterable[Session]) -> list[Session]:
    """Return sessions in order, each in the first generation whose sessions it does not touch."""
    ends: list[int] = []
    numbered = []
    for current in sorted(sessions, key=lambda session: (session.start_us, session.end_us)):
        generation = next((number for number, end in enumerate(ends) if end < current.start_us), len(ends))
        ends[generation : generation + 1] = [current.end_us]
        numbered.append(replace(current, generation=generation))
    return numbered


def _split(
    parts: Sequence[Session], arrivals: dict[int, tuple[int, int]], gap_us: int, late_us: Sequence[int]
) -> tuple[int, ...]:
    positions = []
    for part in parts:
        others = [other for other in parts if other is not part]
        for position in part.rows:
            index, time = arrivals[position]
            emitted = (other for other in others if other.end_us <= late_us[index])
            if any(other.start_us <= time + gap_us and time <= other.end_us for other in emitted):
                positions.append(position)
    return tuple(positions)


# What must be served of a session that publications overlap. Pure: positions of records in, sessions out.
#
# For one session of the truth, two kinds of sessions may be served: sessions that the stream emitted and no publication
# overlaps, and sessions of publications, each as the log was then, that no newer publication overlaps. A record that came
# later may join two of them, or be in neither: it is named, and the next backfill counts it. The same is done for a dead letter
# that was amended after a publication. It is also done for one that a publication counted and that is dead again, or another
# record, by now: it may have joined sessions that are two again.


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
        missing: records in none of them. No record is in two, because two sessions with the same record overlap.
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
class KnownRecords:
    """What is known of a key's records, by their positions.

    Attributes:
        knew: returns whether a publication (by its number) knew a record.
        is_cure: returns whether a record is a dead letter that was amended.
    """

    times_us: Callable[[int], int]
    knew: Callable[[int, int], bool]
    is_cure: Callable[[int], bool] = lambda _: False


def expected_served_sessions(
    followed: Iterable[Followed],
    claims: Sequence[PublishedSession],
    known: KnownRecords,
    *,
    closed_ms: int,
    gap_us: int,
    ended: Iterable[int] = (),
) -> list[ExpectedServed]:
    """Return what must be served of those of a key's sessions that publications overlap.

    Args:
        claims: its sessions in all publications that count.
        closed_ms: sessions of the stream that end later are not served yet.
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
    followed: Iterable[Followed], former: Sequence[int], known: KnownRecords, gap_us: int
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
    known: KnownRecords,
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
