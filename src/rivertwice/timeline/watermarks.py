"""The watermark a batch may have had, from what the batches before it accepted. Pure.

Source: Spark raises the watermark between batches and never lowers it. With one source it becomes the largest event time
of the batch, less the delay. With several, each source's own mark is the largest (event time - delay) that the running
query has seen of it, 0 before it has seen any, and the watermark becomes the smallest (policy `min`) or the largest
(`max`) of these marks. A query that starts again has no marks, only the watermark. So by `min` the watermark depends on
where the query began. The ledger's epoch, which rises by one with every start, shows that, with one exception: if a driver
died between a batch's commit and the end of the batch, the next driver runs the batch once more and has its marks, while
the ledger keeps the first driver's epoch. So a batch has one of a few possible watermarks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rivertwice.definition import Definition
from rivertwice.timeline.counts import BatchCounts
from rivertwice.timeline.ledger import LedgerRow


@dataclass(frozen=True)
class WatermarkRule:
    """How a definition's sources make one watermark: topic to delay in milliseconds, and the policy (`min` or `max`)."""

    delays_ms: Mapping[str, int]
    policy: str = "min"

    def marks(self, counts: Mapping[str, BatchCounts]) -> dict[str, int]:
        """Return topic to largest event time less delay, for the topics with accepted rows."""
        return {
            topic: topic_counts.max_event_ms - self.delays_ms[topic]
            for topic, topic_counts in counts.items()
            if topic_counts.max_event_ms is not None and topic in self.delays_ms
        }

    def raised(self, previous: int, batches: Sequence[Mapping[str, int]]) -> int:
        """Return the watermark after a run whose batches had these marks; before the last batch it was `previous`."""
        marks: dict[str, int] = {}
        for batch in batches:
            for topic, mark in batch.items():
                marks[topic] = max(mark, marks.get(topic, mark))
        known = [marks.get(topic, 0) for topic in self.delays_ms]
        return max(previous, max(known) if self.policy == "max" else min(known))


def rule_of(definition: Definition) -> WatermarkRule:
    """Return the rule of a definition."""
    delays = {source.topic: round(source.watermark.total_seconds() * 1000) for source in definition.streams.values()}
    return WatermarkRule(delays, definition.watermark_policy)


def run_starts(epochs: Sequence[int], index: int) -> list[int]:
    """Return where the run may have begun whose marks gave the batch at `index` its watermark, the usual one first.

    Args:
        epochs: of the path's batches, by path index; `index` may be the one after the last.
        index: at least 1.
    """
    ends = index - 1
    first = ends
    while first > 0 and epochs[first - 1] == epochs[ends]:
        first -= 1
    starts = [first]
    if first > 0:
        starts.append(first - 1)  # its driver ran the batch before its first one again
    if index == len(epochs) or epochs[index] != epochs[ends]:
        starts.append(ends)  # the next driver ran that batch again
    return list(dict.fromkeys(starts))


def next_watermarks(
    epochs: Sequence[int], marks: Sequence[Mapping[str, int]], index: int, previous: int, rule: WatermarkRule
) -> list[int]:
    """Return the watermarks that the batch at `index` may have, the usual one first.

    Args:
        epochs: of the path's batches, by path index.
        marks: of the same batches (`WatermarkRule.marks`).
        index: path index; it may be the one after the last.
        previous: watermark of the batch before it, epoch ms.
        rule: by which the batch before it raised the watermark.
    """
    if index == 0:
        return [previous]
    watermarks = (rule.raised(previous, marks[start:index]) for start in run_starts(epochs, index))
    return list(dict.fromkeys(watermarks))


def watermark_after(row: LedgerRow, delay_ms: int) -> int:
    """Return the watermark of the batch after a committed one of a single source, epoch ms."""
    return (
        row.batch_watermark_ms if row.max_event_ms is None else max(row.batch_watermark_ms, row.max_event_ms - delay_ms)
    )


def watermarks_after(rows: Sequence[LedgerRow], rule: WatermarkRule, at: int | None = None) -> list[int]:
    """Return the watermarks that the batch after a committed one may have by the ledger, the usual one first.

    Args:
        rows: batches of a path, in order.
        at: index of the committed batch; None takes the last.
    """
    index = len(rows) - 1 if at is None else at
    row = rows[index]
    if len(rule.delays_ms) == 1:
        return [watermark_after(row, *rule.delays_ms.values())]
    marks = [rule.marks(ledger_row.by_topic) for ledger_row in rows]
    return next_watermarks([ledger_row.epoch for ledger_row in rows], marks, index + 1, row.batch_watermark_ms, rule)
