"""The ledger is re-derived from the log, never trusted: ranges, counts, event times and every watermark.

A batch is addressed by its index on the head's path (0, 1, 2 ...), which is unique even after a fork.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rivertwice.log import Part, Parts, key_parts
from rivertwice.timeline import BatchCounts, LedgerRow, WatermarkRule, next_watermarks

__all__ = ["BatchCounts", "Chain", "LedgerDefect", "Ranges"]

Ranges = Parts
PartOffsets = Mapping[Part, int]
WATERMARK_FIELDS = frozenset({"batch_watermark_ms", "offsets_text.batchWatermarkMs"})


@dataclass(frozen=True)
class LedgerDefect:
    """One field of one ledger row that the log contradicts."""

    index: int
    batch: int
    field: str
    recorded: Any
    derived: Any

    @property
    def message(self) -> str:
        """The defect in one sentence."""
        return f"ledger of batch {self.batch}: {self.field} is {self.recorded}, the log says {self.derived}"


@dataclass(frozen=True)
class Chain:
    """Re-derived watermarks by path index: `late` is by what rows are late, `batch` by what windows are emitted."""

    late: tuple[int, ...]
    batch: tuple[int, ...]

    @property
    def closed_ms(self) -> int:
        """Windows that end at or before this are closed."""
        return self.batch[-1] if self.batch else 0

    def closes(self, index: int, end_ms: int) -> bool:
        """Say whether a batch closed the windows that end then: not yet by its late watermark, but by its own."""
        return self.late[index] < end_ms <= self.batch[index]


def parse_offsets_text(text: str, topics: Collection[str]) -> tuple[int | None, dict[Part, int] | None]:
    """Return (batchWatermarkMs, end offsets) of a verbatim `offsets/N`; None for what it does not hold.

    If there are several lines of offsets, which must be the same, only offsets that are equal in all of them are returned.
    """
    watermark: int | None = None
    ends: dict[Part, int] | None = None
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        value = json.loads(line)
        if "batchWatermarkMs" in value:
            watermark = int(value["batchWatermarkMs"])
        elif all(isinstance(value.get(topic), dict) for topic in topics):
            offsets = offsets_of(value, topics)
            ends = offsets if ends is None else {part: end for part, end in ends.items() if offsets.get(part) == end}
    return watermark, ends


def offsets_of(offsets: Mapping[str, Mapping[str, int]], topics: Iterable[str]) -> dict[Part, int]:
    """Return recorded offsets of topics by part; a topic that is not recorded has none."""
    return {
        Part(topic, int(partition)): int(offset)
        for topic in topics
        for partition, offset in offsets.get(topic, {}).items()
    }


def derive_ranges(
    rows: Sequence[LedgerRow],
    topics: Sequence[str],
    genesis: PartOffsets,
    jumps: Mapping[int, PartOffsets] | None = None,
) -> tuple[list[Ranges], list[LedgerDefect]]:
    """Return each batch's offset ranges, by majority of three witnesses, and the ledger fields that disagree.

    A boundary is in the ledger three times: as the batch's end, in its verbatim offsets file, and as the next
    batch's start. One altered witness is outvoted and named.

    Args:
        rows: batches of the path, in order.
        jumps: path index to where its batch begins instead, after an accepted gap.
    """
    leaps = jumps or {}
    texts = [parse_offsets_text(row.offsets_text, topics)[1] for row in rows]
    starts = [offsets_of(row.start_offsets, topics) for row in rows]
    ends = [offsets_of(row.end_offsets, topics) for row in rows]
    ranges: list[Ranges] = []
    defects: list[LedgerDefect] = []
    previous = dict(genesis)
    for index, row in enumerate(rows):
        previous |= leaps.get(index, {})
        first = {p: previous.get(p, 0) for p in ends[index]}
        if index == 0 and not genesis:
            first = {p: starts[0].get(p, 0) for p in ends[0]}
        claimed = {p: starts[index].get(p, 0) for p in ends[index]}
        if claimed != first:
            defects.append(_moved(index, row, "start_offsets", claimed, first))
        following = starts[index + 1] if index + 1 < len(rows) and index + 1 not in leaps else None
        voted = {p: _vote(p, texts[index], ends[index], following) for p in ends[index]}
        if voted != ends[index]:
            defects.append(_moved(index, row, "end_offsets", ends[index], voted))
        text = texts[index]
        if text is not None and {p: text.get(p) for p in voted} != voted:
            defects.append(_moved(index, row, "offsets_text", text, voted))
        ranges.append({p: (first[p], max(first[p], voted[p])) for p in voted})
        previous = {**previous, **voted}
    return ranges, defects


def _moved(index: int, row: LedgerRow, field: str, recorded: PartOffsets, derived: PartOffsets) -> LedgerDefect:
    """Return the defect of an offset field, by partition, or by the parts' names if there are several topics."""
    keys = key_parts({*recorded, *derived})
    plain = [{keys[part]: offset for part, offset in offsets.items()} for offsets in (recorded, derived)]
    return LedgerDefect(index, row.batch, field, *plain)


def _vote(part: Part, *witnesses: PartOffsets | None) -> int:
    votes = [witness[part] for witness in witnesses if witness is not None and part in witness]
    return Counter(votes).most_common(1)[0][0]


def derive_chain(counts: Sequence[BatchCounts], delays_ms: Sequence[int], sealed: Chain | None = None) -> Chain:
    """Return the watermarks the batches must have had; those of the first ones may be known (`sealed`).

    Source: Spark raises the watermark between batches, to the largest event time seen so far less the delay; a batch
    filters late rows by the watermark of the batch before it. A fold's delay (`NO_WATERMARK`) is so long that it stays zero.
    """
    late: list[int] = [] if sealed is None else list(sealed.late)
    batch: list[int] = [] if sealed is None else list(sealed.batch)
    for index in range(len(batch), len(counts)):
        previous = batch[-1] if batch else 0
        late.append(previous)
        max_event_ms = counts[index - 1].max_event_ms if index else None
        batch.append(previous if max_event_ms is None else max(previous, max_event_ms - delays_ms[index - 1]))
    return Chain(tuple(late), tuple(batch))


def derive_chain_of_many(
    by_topic: Sequence[Mapping[str, BatchCounts]], rules: Sequence[WatermarkRule], rows: Sequence[LedgerRow]
) -> Chain:
    """Return the watermarks the batches of several sources must have had; see `timeline.watermarks`.

    If several watermarks are possible for a batch, the recorded one is used if it is among them, else the ordinary one.

    Args:
        by_topic: what the log holds in each batch, by topic.
        rules: of the definition that ran, by path index.
        rows: batches of the path; only epochs and recorded watermarks are looked at.
    """
    epochs = [row.epoch for row in rows]
    marks = [rule.marks(counts) for rule, counts in zip(rules, by_topic, strict=True)]
    late: list[int] = []
    batch: list[int] = []
    for index, row in enumerate(rows):
        previous = batch[-1] if batch else 0
        late.append(previous)
        candidates = next_watermarks(epochs, marks, index, previous, rules[max(index - 1, 0)])
        batch.append(row.batch_watermark_ms if row.batch_watermark_ms in candidates else candidates[0])
    return Chain(tuple(late), tuple(batch))


def check_ledger(
    rows: Sequence[LedgerRow],
    topics: Sequence[str],
    counts: Sequence[BatchCounts],
    chain: Chain,
    by_topic: Sequence[Mapping[str, BatchCounts]] = (),
) -> list[LedgerDefect]:
    """Return every count, event time and watermark of the ledger that the log contradicts.

    What a row of format 2 records for each topic is compared too, if `by_topic` is given. For an only topic that is done
    only if the totals are right, or each of their defects would be reported twice.
    """
    defects: list[LedgerDefect] = []
    for index, (row, derived) in enumerate(zip(rows, counts, strict=True)):
        text_watermark = parse_offsets_text(row.offsets_text, topics)[0]
        pairs: list[tuple[str, Any, Any]] = [
            ("read", row.read, derived.read),
            ("bad", row.bad, derived.bad),
            ("accepted", row.accepted, derived.accepted),
            ("min_event_ms", row.min_event_ms, derived.min_event_ms),
            ("max_event_ms", row.max_event_ms, derived.max_event_ms),
            ("batch_watermark_ms", row.batch_watermark_ms, chain.batch[index]),
        ]
        if text_watermark is not None:
            pairs.append(("offsets_text.batchWatermarkMs", text_watermark, chain.batch[index]))
        if (
            row.by_topic
            and by_topic
            and (len(topics) > 1 or all(recorded == expected for _, recorded, expected in pairs[:5]))
        ):
            no_counts = BatchCounts()
            pairs += [
                (
                    f"by_topic.{topic}",
                    _counted(row.by_topic.get(topic, no_counts)),
                    _counted(by_topic[index].get(topic, no_counts)),
                )
                for topic in topics
            ]
        defects.extend(
            LedgerDefect(index, row.batch, name, recorded, expected)
            for name, recorded, expected in pairs
            if recorded != expected
        )
    return defects


def _counted(counts: BatchCounts) -> dict[str, Any]:
    """Return counts without the digest: other records are not a defect of the ledger (`gaps.find_exchanged`)."""
    return {name: value for name, value in asdict(counts).items() if name != "digest"}


def check_absent(
    rows: Sequence[LedgerRow],
    ranges: Sequence[Ranges],
    counts: Mapping[tuple[int, Part], BatchCounts],
    unreadable: Collection[int] = (),
    first: int = 0,
) -> list[LedgerDefect]:
    """Return the batches whose ledger says that other numbers of offsets hold no record than the log does.

    A record that the log lost, or that the ledger took for absent, is found here, by partition.

    Args:
        counts: (path index, part) to what the log has.
        unreadable: path indexes of batches that cannot be read completely.
        first: path index of the first batch to look at.
    """
    defects = []
    for index, (row, batch) in enumerate(zip(rows, ranges, strict=True)):
        if index < first or index in unreadable:
            continue
        derived = {
            part: end - start - counts.get((index, part), BatchCounts()).read for part, (start, end) in batch.items()
        }
        recorded = {part: int(row.absent.get(part.topic, {}).get(str(part.partition), 0)) for part in batch}
        if derived != recorded:
            differing = {part: number for part, number in derived.items() if number != recorded[part]}
            defects.append(_moved(index, row, "absent", {part: recorded[part] for part in differing}, differing))
    return defects


def select_touching(defects: Iterable[LedgerDefect]) -> frozenset[int]:
    """Return the path indexes whose rows name windows to blame: the batch itself, or the next one for a watermark."""
    return frozenset(d.index + 1 if d.field in WATERMARK_FIELDS else d.index for d in defects)


def blame_windows(
    defects: Iterable[LedgerDefect],
    chain: Chain,
    windows: Iterable[tuple[int, int]],
    touched: Callable[[int], Iterable[int]],
) -> dict[int, str]:
    """Return window start to reason for exactly the windows a ledger defect puts in doubt.

    A wrong watermark of batch N: the windows N closes by the recorded or by the true watermark, and those that rows of
    N+1 touch (they were judged late by it). Any other wrong field of N: the windows rows of N touch.

    Args:
        windows: (start, end) of every window that has a row on any side.
        touched: path index to the starts of the windows its rows touch.
    """
    known = list(windows)
    blamed: dict[int, str] = {}
    for defect in defects:
        if defect.field in WATERMARK_FIELDS:
            low = chain.late[defect.index]
            high = max(defect.recorded, defect.derived)
            starts = [start for start, end in known if low < end <= high]
            starts.extend(touched(defect.index + 1))
        else:
            starts = list(touched(defect.index))
        for start in starts:
            blamed.setdefault(start, defect.message)
    return blamed
