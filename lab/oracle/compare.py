"""Compare what is in the tables with what must be there; every difference is counted once and named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lab.oracle.expect import Expected, Sums, Window
from lab.oracle.rules import Record
from lab.oracle.sources import Batch, Segment

NAMED = 12


@dataclass(frozen=True)
class Emitted:
    """A row of the changelog, with the place of its batch on the path."""

    window: Window
    end_ms: int
    n: int
    total: int
    top: int
    batch: int | None


@dataclass
class Tally:
    """The findings so far."""

    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    unexplained: int = 0
    named: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def add(self, kind: str, what: str, count: int = 1) -> None:
        """Count a finding; the first few of each kind are kept in words."""
        setattr(self, kind, getattr(self, kind) + count)
        self.named[kind] += 1
        if self.named[kind] <= NAMED:
            self.findings.append(f"{kind}: {what}")


def compare_ledger(
    tally: Tally, path: list[Segment], batches: list[Batch], expected: Expected, emitted: list[Emitted]
) -> None:
    """The ledger's rows: contiguous, as the checkpoint planned them, and counted as the log counts them."""
    genesis = path[0].genesis if path else {}
    rows = Counter(row.batch for row in emitted)
    for place, (batch, counted) in enumerate(zip(batches, expected.batches, strict=True)):
        name = f"batch {batch.number} of {batch.timeline}"
        before = batches[place - 1] if place else None
        first = path[0].first if before is None else before.number + 1
        if batch.number != first:
            tally.add("unexplained", f"{name} follows {first - 1} on the path")
        began = genesis if before is None else before.end
        if any(batch.start.get(p, 0) != began.get(p, 0) for p in batch.end):
            tally.add("unexplained", f"{name} begins at {batch.start}, the log was read to {began}")
        if before is not None and batch.epoch < before.epoch:
            tally.add("unexplained", f"{name} was written by epoch {batch.epoch} after epoch {before.epoch}")
        if batch.text_end != batch.end or batch.text_watermark_ms != batch.watermark_ms:
            tally.add("unexplained", f"{name} differs from its offsets file")
        if batch.watermark_ms != counted.watermark_ms:
            tally.add(
                "unexplained", f"{name} has watermark {batch.watermark_ms}, its events give {counted.watermark_ms}"
            )
        recorded = (batch.read, batch.bad, batch.accepted, batch.min_event_ms, batch.max_event_ms, batch.emitted)
        events = counted.events
        due = (
            counted.read, counted.bad, counted.accepted, min(events, default=None), max(events, default=None), rows[place],
        )  # fmt: skip
        if recorded != due:
            tally.add(
                "unexplained", f"{name} recorded (read, bad, accepted, min, max, emitted) {recorded}, it has {due}"
            )


def compare_rows(tally: Tally, expected: Expected, emitted: list[Emitted], window_ms: int) -> None:
    """The result rows: each closed window's once, with its values, from the one batch that had to emit it."""
    by_window: dict[Window, list[Emitted]] = {}
    for row in emitted:
        by_window.setdefault(row.window, []).append(row)
    for window, sums in sorted(expected.rows.items()):
        rows = by_window.pop(window, [])
        if sums.batch is None:
            for row in rows:
                tally.add("unexplained", f"{window} was emitted in batch {row.batch}, but it is still open")
            continue
        if not rows:
            addresses = expected.members[window]
            tally.add("lost", f"{window} with {sums} was never emitted; records {addresses[:5]}", len(addresses))
            continue
        if len(rows) > 1:
            tally.add("duplicated", f"{window} was emitted in batches {[row.batch for row in rows]}", len(rows) - 1)
        values = [(Sums(row.n, row.total, row.top, row.batch), row.end_ms - window[0]) for row in rows]
        if (sums, window_ms) not in values:
            tally.add("wrong", f"{window} has {values}, it must have {sums}")
            missing = sums.n - max(row.n for row in rows)
            if missing > 0:
                tally.add("lost", f"{missing} records of {window} are not in its row", missing)
    for window, rows in sorted(by_window.items()):
        tally.add("unexplained", f"{window} was emitted, but no record belongs to it", len(rows))


def compare_dead(
    tally: Tally, expected: Expected, letters: list[tuple[Any, ...]], records: dict[tuple[int, int], Record]
) -> None:
    """The dead letters: (place of batch, reason, partition, offset, value) of each, against the oracle's own decoder."""
    addresses: set[tuple[int, int]] = set()
    for place, reason, partition, offset, value in letters:
        address = (partition, offset)
        due = expected.dead.get(address)
        if due is None:
            tally.add("unexplained", f"dead letter {address} ({reason}) is an acceptable record")
        elif address in addresses:
            tally.add("duplicated", f"dead letter {address} is recorded twice")
        elif (reason, place) != due or value != records[address].value:
            tally.add(
                "wrong", f"dead letter {address} has {(reason, place)}, it must have {due}, with the record's bytes"
            )
        addresses.add(address)
    for address in sorted(expected.dead.keys() - addresses):
        tally.add("lost", f"dead letter {address} {expected.dead[address]} was never recorded")


def compare_served(tally: Tally, expected: Expected, served: list[tuple[Any, ...]]) -> None:
    """What is served: (start, key, n, total, top, status); each window once, and the stream's rows as the stream's."""
    counts: Counter[Window] = Counter((start, key) for start, key, *_ in served)
    for window, count in counts.items():
        if count > 1:
            tally.add("duplicated", f"{window} is served {count} times", count - 1)
    for start, key, n, total, top, status in served:
        sums = expected.rows.get((start, key))
        if status == "stream" and (sums is None or (sums.n, sums.total, sums.top) != (n, total, top)):
            tally.add("wrong", f"{(start, key)} is served as {(n, total, top)}, the stream had to emit {sums}")


def balance(expected: Expected, lost: set[Window]) -> dict[str, dict[str, int]]:
    """Return per partition how many pairs are in each part; the sum of the parts is the number of pairs that were read."""
    parts: dict[int, Counter[str]] = {}

    def count(address: tuple[int, int], part: str) -> None:
        parts.setdefault(address[0], Counter())[part] += 1

    for window, addresses in expected.members.items():
        part = "lost" if window in lost else "open" if expected.rows[window].batch is None else "emitted"
        for address in addresses:
            count(address, part)
    for part, group in (
        ("late", expected.late), ("excluded", expected.excluded), ("dead", list(expected.dead)), ("gone", expected.gone),
    ):  # fmt: skip
        for address in group:
            count(address, part)
    return {str(partition): dict(sorted(counts.items())) for partition, counts in sorted(parts.items())}
