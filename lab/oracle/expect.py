"""What a stream with the recorded batches must have done with every record: its own chain of watermarks, its own late rule."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from lab.oracle.rules import DELAY_MS, WINDOW_MS, Record, Row, read_record
from lab.oracle.sources import Batch

Window = tuple[int, str]
"""(start of the window in epoch ms, key)."""


@dataclass(frozen=True)
class Sums:
    """A result row's values and the place of the batch that must emit it on the path; None: still open."""

    n: int
    total: int
    top: int
    batch: int | None


@dataclass
class Batched:
    """What one batch must have counted."""

    watermark_ms: int = 0
    read: int = 0
    bad: int = 0
    accepted: int = 0
    events: list[int] = field(default_factory=list)


@dataclass
class Expected:
    """All that must hold.

    Attributes:
        rows: every window's row, open ones too.
        members: window to the addresses in it.
        late: addresses left out by the watermark. excluded: by the row filter.
        dead: address to reason and the place of the batch that must record it.
        gone: addresses within the committed ranges whose records no longer exist anywhere.
        batches: what each batch must have counted, in the path's order.
    """

    rows: dict[Window, Sums] = field(default_factory=dict)
    members: dict[Window, list[tuple[int, int]]] = field(default_factory=dict)
    late: list[tuple[int, int]] = field(default_factory=list)
    excluded: list[tuple[int, int]] = field(default_factory=list)
    dead: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    gone: list[tuple[int, int]] = field(default_factory=list)
    batches: list[Batched] = field(default_factory=list)


def expect(
    records: dict[tuple[int, int], Record], batches: list[Batch], absent: frozenset[tuple[int, int]] = frozenset()
) -> Expected:
    """Go through the batches in the path's order.

    A batch's watermark is the largest accepted event time before it, less the delay, and never falls. A record comes
    too late if its window had ended by the watermark of the batch before its own. A window is emitted by the first
    batch whose watermark has reached its end. An offset that is `absent` from the log counts as no record.
    """
    expected = Expected()
    windows: dict[Window, list[Row]] = defaultdict(list)
    members: dict[Window, list[tuple[int, int]]] = defaultdict(list)
    largest = late_by = 0
    for place, batch in enumerate(batches):
        counted = Batched(watermark_ms=max(late_by, largest - DELAY_MS) if place else 0)
        for address in addresses(batch):
            record = records.get(address)
            if record is None and address in absent:
                continue
            counted.read += 1
            if record is None:
                expected.gone.append(address)
                continue
            row = read_record(record)
            if isinstance(row, str):
                counted.bad += 1
                expected.dead[address] = (row, place)
                continue
            counted.accepted += 1
            counted.events.append(row.event_ms)
            if row.excluded:
                expected.excluded.append(address)
            elif row.window + WINDOW_MS <= late_by:
                expected.late.append(address)
            else:
                windows[row.window, row.key].append(row)
                members[row.window, row.key].append(address)
        expected.batches.append(counted)
        largest = max([largest, *counted.events])
        late_by = counted.watermark_ms
    expected.members = dict(members)
    expected.rows = {window: sum_rows(rows, _emitter(window, expected.batches)) for window, rows in windows.items()}
    return expected


def addresses(batch: Batch) -> list[tuple[int, int]]:
    """Return the addresses in a batch's recorded ranges."""
    return [(p, offset) for p, end in sorted(batch.end.items()) for offset in range(batch.start.get(p, 0), end)]


def sum_rows(rows: list[Row], batch: int | None) -> Sums:
    """Return the result row of one window and key."""
    amounts = [row.amount for row in rows]
    return Sums(len(amounts), sum(amounts), max(amounts), batch)


def _emitter(window: Window, batches: list[Batched]) -> int | None:
    end = window[0] + WINDOW_MS
    return next((place for place, batch in enumerate(batches) if batch.watermark_ms >= end), None)


def truth(records: dict[tuple[int, int], Record]) -> tuple[dict[Window, Sums], dict[Window, list[tuple[int, int]]]]:
    """Return what a batch over all accepted records gives: nothing is late, every window is there."""
    windows: dict[Window, list[Row]] = defaultdict(list)
    members: dict[Window, list[tuple[int, int]]] = defaultdict(list)
    for address, record in sorted(records.items()):
        row = read_record(record)
        if isinstance(row, Row) and not row.excluded:
            windows[row.window, row.key].append(row)
            members[row.window, row.key].append(address)
    return {window: sum_rows(rows, None) for window, rows in windows.items()}, dict(members)
