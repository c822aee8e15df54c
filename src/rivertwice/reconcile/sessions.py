"""What a stream makes of one key's records when windows are sessions. Pure: integers in, sessions out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
        truth: the session of all records.
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
        gap_us: the gap.
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
