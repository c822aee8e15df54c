"""What every plan takes from its request, its view and its chunks, whatever the kind of windows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rivertwice.backfill.model import BackfillPlan, BackfillRequest, BackfillView, Chunk
from rivertwice.backfill.ranges import HalfOpenRange
from rivertwice.backfill.zones import plan_sources, union_offsets


def draft_plan(
    request: BackfillRequest, view: BackfillView, ranges: tuple[HalfOpenRange, ...], chunks: Sequence[Chunk]
) -> BackfillPlan:
    """Return a plan that has no id yet, and nothing that depends on the kind of windows.

    Args:
        request: what is asked.
        view: what was observed.
        ranges: where the windows to publish start, as half-open ranges of epoch milliseconds.
        chunks: the work, in order.

    Raises:
        LogGapError: neither the archive nor Kafka has a record that is needed.
    """
    offsets = union_offsets(chunk.offsets for chunk in chunks)
    archive, kafka = plan_sources(offsets, view)
    return BackfillPlan(
        id="",
        pipeline=view.pipeline,
        reason=request.reason,
        window_ms=view.window_ms,
        ranges=ranges,
        as_of=view.as_of,
        topic_ids=view.topic_ids,
        offsets=offsets,
        archive=archive,
        kafka=kafka,
        chunks=tuple(chunks),
        bundle=view.bundle,
        semantics=view.semantics,
        sequence=view.sequence,
        amendments=view.amendments,
    )
