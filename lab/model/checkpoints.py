"""What a checkpoint of the model contains: its small files, the batches that it plans, and the result of one of them."""

from __future__ import annotations

from typing import Any

from lab.model.durable import Checkpoint
from lab.model.stream import TOPIC, Computed, compute_batch
from lab.model.world import World
from rivertwice.core.errors import CheckpointError, LedgerError
from rivertwice.stream.checkpoint import PlannedBatch, parse_offsets
from rivertwice.stream.damage import CheckpointView


def view_of(checkpoint: Checkpoint) -> CheckpointView:
    """Return a checkpoint's small files as the product reads them."""
    texts = {f"offsets/{n}": checkpoint.offsets[n] for n in checkpoint.offsets}
    texts |= {f"commits/{n}": checkpoint.commits[n] for n in checkpoint.commits}
    metadata = '{"id":"q"}'
    return CheckpointView(metadata, frozenset(checkpoint.offsets), frozenset(checkpoint.commits), texts)


def planned_of(checkpoint: Checkpoint, batch: int) -> PlannedBatch:
    """Return what `offsets/N` contains."""
    if batch not in checkpoint.offsets:
        message = f"offsets/{batch} is missing"
        raise LedgerError(message)
    return parse_offsets(checkpoint.offsets[batch], batch)


def start_of(checkpoint: Checkpoint, batch: int) -> Any:
    """Return where a batch's range begins."""
    if batch - 1 in checkpoint.offsets:
        return planned_of(checkpoint, batch - 1).end_offsets
    if batch > 0:
        message = f"offsets/{batch - 1} is missing"
        raise LedgerError(message)
    return checkpoint.initial


def ranges_between(start: Any, end: Any) -> dict[int, tuple[int, int]]:
    """Return partition to half-open range."""
    return {int(p): (int(start[TOPIC][p]), int(offset)) for p, offset in end[TOPIC].items()}


def compute_planned(world: World, checkpoint: Checkpoint, batch: int, records: Any = None) -> Computed:
    """Compute a planned batch from the checkpoint's state before it."""
    planned, start = planned_of(checkpoint, batch), start_of(checkpoint, batch)
    late = planned_of(checkpoint, batch - 1).batch_watermark_ms if batch - 1 in checkpoint.offsets else 0
    if records is None:
        records = world.read_kafka(ranges_between(start, planned.end_offsets))
    state = checkpoint.state.get(batch - 1, {} if batch == 0 else None)
    if state is None:
        world.report_damage(f"state of batch {batch - 1} is missing")
        message = f"CANNOT_LOAD_STATE_STORE: version {batch} is missing"
        raise CheckpointError(message)
    if world.broken == "late by the own watermark":
        late = planned.batch_watermark_ms
    return compute_batch(state, records, late_ms=late, watermark_ms=planned.batch_watermark_ms)
