"""The recorded batches of a replay as checkpoint files. Pure text work; the layout is Spark's offset log v1."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rivertwice.errors import LedgerError
from rivertwice.timeline.ledger import LedgerRow

Offsets = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class ReplayTopic:
    """A scratch topic that holds a log's records again, from `base` on, at offsets shifted by `base`.

    Attributes:
        topic: the scratch topic.
        source: the topic whose records it holds.
        base: partition to the source offset that lies at offset 0 of the scratch topic.
    """

    topic: str
    source: str
    base: Mapping[str, int]

    def shift(self, offsets: Offsets) -> dict[str, dict[str, int]]:
        """Return offsets of the source topic as offsets of the scratch topic; what lies before `base` is 0."""
        return {self.topic: {p: max(0, int(o) - int(self.base[p])) for p, o in offsets[self.source].items()}}

    def shift_text(self, text: str) -> str:
        """Return an `offsets/N` file that says the same of the scratch topic."""
        lines = text.split("\n")
        lines[2] = encode_offsets(self.shift(json.loads(lines[2])))
        return "\n".join(lines)


def encode_offsets(offsets: Offsets) -> str:
    """Return offsets as Spark writes them."""
    return json.dumps(offsets, separators=(",", ":"))


def check_chain(batch: int, offsets: Offsets, rows: Sequence[LedgerRow]) -> None:
    """Check that ledger rows follow a savepoint without a gap.

    Args:
        batch: the batch the savepoint stands at.
        offsets: where its next batch begins.
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
    """Return partition to half-open offset range that a run of rows covers; empty for no rows.

    A partition that was added on the way is covered from its first record on.
    """
    if not rows:
        return {}
    first, last = rows[0].ranges(topic), rows[-1].ranges(topic)
    return {partition: (first.get(partition, (0, 0))[0], end) for partition, (_, end) in last.items()}
