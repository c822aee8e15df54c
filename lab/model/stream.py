"""What Spark computes from a batch, in a few lines: late rows, windows, watermark and state. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WINDOW_MS = 10
DELAY_MS = 8
TOPIC = "events"

Address = tuple[int, int]
State = Mapping[int, frozenset[Address]]
"""Window end to the addresses (partition, offset) of the rows it holds."""


class Record(NamedTuple):
    """One record of the log; `kind` is ok, bad (a dead letter) or skip (the transform's filter leaves it out)."""

    kind: str
    event_ms: int


@dataclass(frozen=True)
class Computed:
    """The result of a batch.

    Attributes:
        rows: windows it emits, each with the addresses counted in it, by window end.
        state: what stays open after it.
        dead: addresses of its bad records.
    """

    rows: tuple[tuple[int, frozenset[Address]], ...]
    state: State
    dead: tuple[Address, ...]
    read: int
    accepted: int
    min_event_ms: int | None
    max_event_ms: int | None

    @property
    def digest(self) -> str:
        """A text that is equal exactly for equal rows."""
        return repr([(end, sorted(addresses)) for end, addresses in self.rows])


def window_end(event_ms: int) -> int:
    """Return the exclusive end of the tumbling window an event lies in."""
    return event_ms // WINDOW_MS * WINDOW_MS + WINDOW_MS


def compute_batch(
    before: State, records: Sequence[tuple[Address, Record]], *, late_ms: int, watermark_ms: int
) -> Computed:
    """Return what a batch emits and keeps.

    Args:
        before: state after the batch before.
        records: the records of its range.
        late_ms: the previous batch's watermark; rows of windows that had ended by it are dropped.
        watermark_ms: its own; windows that end by it are emitted and leave the state.
    """
    state = {end: set(addresses) for end, addresses in before.items()}
    dead: list[Address] = []
    events: list[int] = []
    for address, record in records:
        if record.kind == "bad":
            dead.append(address)
            continue
        events.append(record.event_ms)
        end = window_end(record.event_ms)
        if record.kind == "ok" and end > late_ms:
            state.setdefault(end, set()).add(address)
    rows = tuple((end, frozenset(state[end])) for end in sorted(state) if end <= watermark_ms)
    return Computed(
        rows=rows,
        state={end: frozenset(addresses) for end, addresses in state.items() if end > watermark_ms},
        dead=tuple(dead),
        read=len(records),
        accepted=len(events),
        min_event_ms=min(events, default=None),
        max_event_ms=max(events, default=None),
    )


def next_watermark(watermark_ms: int, max_event_ms: int | None) -> int:
    """Return the watermark of the batch after one whose largest accepted event time is given."""
    return watermark_ms if max_event_ms is None else max(watermark_ms, max_event_ms - DELAY_MS)


def split_rate(starts: Sequence[int], ends: Sequence[int], rate: int) -> list[int]:
    """Return where a batch ends that takes at most `rate` records, partition by partition in turn."""
    taken = list(starts)
    left = rate
    while left and any(taken[p] < ends[p] for p in range(len(ends))):
        for partition in range(len(ends)):
            if left and taken[partition] < ends[partition]:
                taken[partition] += 1
                left -= 1
    return taken
