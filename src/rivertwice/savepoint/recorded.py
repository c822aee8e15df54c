"""The recorded batches of a replay as checkpoint files. Pure text work; the layout is Spark's offset log v1."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rivertwice.errors import LedgerError
from rivertwice.log.addresses import StoredOffsets, encode_offsets
from rivertwice.stream.checkpoint import with_source_line
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.watermarks import WatermarkRule, watermarks_after


@dataclass(frozen=True)
class ReplayTopic:
    """A scratch topic that holds a log's records again, from `base` on, at offsets shifted by `base`.

    Attributes:
        topic: the scratch topic.
        source: the topic whose records it holds.
        base: partition to the source offset that is at offset 0 of the scratch topic.
        absent: partition to (end of a recorded batch, how many offsets from `base` to there hold no record), in order; a scratch
            topic has no such offsets, so later ones move up. A partition without any is not named.
    """

    topic: str
    source: str
    base: Mapping[str, int]
    absent: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def place(self, partition: str, offset: int) -> int:
        """Return where the scratch topic continues after a source offset at which a batch ends; 0 before `base`."""
        before = [count for end, count in self.absent.get(partition, ()) if end <= offset]
        return max(0, offset - int(self.base[partition]) - (before[-1] if before else 0))


@dataclass(frozen=True)
class ReplayTopics:
    """The scratch topics of a replay, one for each topic of the pipeline."""

    topics: tuple[ReplayTopic, ...]

    @property
    def names(self) -> dict[str, str]:
        """Source topic to scratch topic."""
        return {replay_topic.source: replay_topic.topic for replay_topic in self.topics}

    @property
    def bases(self) -> dict[str, Mapping[str, int]]:
        """Source topic to partition to the source offset that is at offset 0 of its scratch topic."""
        return {replay_topic.source: replay_topic.base for replay_topic in self.topics}

    @property
    def has_absent(self) -> bool:
        """Whether offsets of a source topic hold no record, so that later records have moved up."""
        return any(replay_topic.absent for replay_topic in self.topics)

    def shift(self, offsets: StoredOffsets) -> dict[str, dict[str, int]]:
        """Return offsets of the source topics as offsets of the scratch topics; an offset before a `base` becomes 0."""
        return {
            replay_topic.topic: {p: replay_topic.place(p, int(o)) for p, o in offsets[replay_topic.source].items()}
            for replay_topic in self.topics
        }

    def shift_text(self, text: str) -> str:
        """Return an `offsets/N` file with the same positions in the scratch topics."""
        return with_source_line(text, encode_offsets(self.shift(json.loads(text.split("\n")[2]))))


def check_chain(batch: int, offsets: StoredOffsets, rows: Sequence[LedgerRow]) -> None:
    """Check that ledger rows follow a savepoint without a gap.

    Args:
        batch: the savepoint's batch.
        offsets: the offsets where its next batch begins.
        rows: the batches to replay, in order.

    Raises:
        LedgerError: a batch is missing, or a range does not begin where the one before it ended.
    """
    for row in rows:
        if row.batch != batch + 1 or row.start_offsets != offsets:
            message = (
                f"batch {row.batch} of timeline {row.timeline} starts at {row.start_offsets}, but batch {batch} ended at "
                f"{offsets}: the ledger has a hole, so the range cannot be replayed; run a reconcile, which names it"
            )
            raise LedgerError(message)
        batch, offsets = row.batch, row.end_offsets


def span(rows: Sequence[LedgerRow], topic: str) -> dict[int, tuple[int, int]]:
    """Return partition to the half-open offset range that consecutive rows cover; empty for no rows.

    A partition that was added in between is covered from its first record.
    """
    if not rows:
        return {}
    first, last = rows[0].ranges(topic), rows[-1].ranges(topic)
    return {partition: (first.get(partition, (0, 0))[0], end) for partition, (_, end) in last.items()}


def absent_until(rows: Sequence[LedgerRow], topic: str) -> dict[str, list[tuple[int, int]]]:
    """Return partition to (end of each row's range, offsets without a record up to there), of partitions that have some. Pure."""
    until: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        for partition, end in row.end_offsets.get(topic, {}).items():
            before = until.get(partition, [(0, 0)])[-1][1]
            own = int(row.absent.get(topic, {}).get(partition, 0))
            until.setdefault(partition, []).append((int(end), before + own))
    return {partition: ends for partition, ends in until.items() if ends[-1][1]}


def count_one_run(rows: Sequence[LedgerRow], *, several: bool) -> int:
    """Return how many of the rows one query replays: all, or, for several sources, those that one driver ran.

    A query knows the marks of several sources only from its own batches (`timeline.watermarks`). So a replay must start a new
    query where a new driver started. With one source that makes no difference.
    """
    if not several:
        return len(rows)
    return next((number for number, row in enumerate(rows) if row.epoch != rows[0].epoch), len(rows))


def plan_watermarks(path: Sequence[LedgerRow], rows: Sequence[LedgerRow], rule: WatermarkRule) -> dict[int, int]:
    """Return batch to the watermark of the batch after it, for several sources; empty for one source.

    A replay sees fewer batches of a run than the driver did, so its own marks may be lower. It is given the recorded watermarks,
    and after the last of `rows` the watermark that follows from their ledger.

    Args:
        path: the ledger of the path, from its beginning to the last of `rows` at least.
        rows: the batches that are replayed.
        rule: how the definition's sources make the watermark.
    """
    if len(rule.delays_ms) == 1:
        return {}
    end = (rows[-1].timeline, rows[-1].batch)
    last = next(number for number, row in enumerate(path) if (row.timeline, row.batch) == end)
    known = {row.batch: following.batch_watermark_ms for row, following in itertools.pairwise(rows)}
    return {**known, rows[-1].batch: watermarks_after(path[: last + 1], rule)[0]}
