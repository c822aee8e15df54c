"""Follow keys through packed events: a key or a bucket of keys in a micro-batch of the stream, sorted keys in a recompute.

Events come as frames of pandas with the columns `_key` (JSON), `PLACE` and `_event` (JSON). Nothing is read or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rivertwice.pipeline.fold_buckets import dump_bucket, load_bucket
from rivertwice.pipeline.fold_run import Emitted, FoldRun, FoldSpec

if TYPE_CHECKING:
    import pandas as pd

PLACE = ("_source", "_partition", "_offset")
"""The place of an event: number of its source, partition, offset. Within a batch events are folded in this order."""


def follow_key(spec: FoldSpec, state: str | None, frames: Iterable[pd.DataFrame]) -> tuple[str | None, list[Emitted]]:
    """Return the state after all packed events of one key in a batch, and their rows; the events may come in any order."""
    step = FoldRun(spec).step
    out: list[Emitted] = []
    for source, partition, offset, event in sorted(_rows(frames, "_event")):
        state, emitted = step(state, event, partition, offset, source)
        out += emitted
    return state, out


def follow_bucket(spec: FoldSpec, text: str | None, frames: Iterable[pd.DataFrame]) -> tuple[str | None, list[Emitted]]:
    """Return a bucket's state after all packed events of its keys in a batch, and their rows; the events may come in any order.

    Args:
        spec: the fold.
        text: the bucket's state; None if it has no key.
        frames: the events; a key of another bucket is followed too, but would not be found again.
    """
    step = FoldRun(spec).step
    states = load_bucket(text)
    out: list[Emitted] = []
    for source, partition, offset, key, event in sorted(_rows(frames, "_key", "_event")):
        old_state = states.get(key)
        state, emitted = step(old_state, event, partition, offset, source)
        if state is not None:
            states[key] = state
        elif old_state is not None:
            del states[key]
        out += emitted
    return dump_bucket(states), out


def follow_keys(spec: FoldSpec, frames: Iterable[pd.DataFrame]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the numbered rows of packed events, which come key by key in order; a key may continue in the next frame."""
    step = FoldRun(spec).step
    current: str | None = None
    state: str | None = None
    number = 0
    for frame in frames:
        out: list[tuple[Any, ...]] = []
        columns = (frame[name].tolist() for name in ("_key", *PLACE, "_event"))
        for key, source, partition, offset, event in zip(*columns, strict=True):
            if key != current:
                current, state, number = key, None, 0
            state, emitted = step(state, event, partition, offset, source)
            out += [(*row, number + further) for further, row in enumerate(emitted)]
            number += len(emitted)
        yield out


def _rows(frames: Iterable[pd.DataFrame], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the place and other columns of each packed event."""
    for frame in frames:
        yield from zip(*(frame[name].tolist() for name in (*PLACE, *names)), strict=True)
