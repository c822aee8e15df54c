"""Follow keys through packed events: a key or a bucket of keys in a micro-batch of the stream, sorted keys in a recompute.

Events come as frames of pandas. A recompute gives the columns `_key` (JSON), `PLACE` and `_event` (JSON). The stream gives one
column, `LINES`, because each column costs Spark as much time for a group as some ten events: place, key and event, in three lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rivertwice.pipeline.fold_buckets import Bucket
from rivertwice.pipeline.fold_run import Emitted, FoldRun, FoldSpec

if TYPE_CHECKING:
    import pandas as pd

PLACE = ("_source", "_partition", "_offset")
"""The place of an event: number of its source, partition, offset. Within a batch events are folded in this order."""
LINES = "_lines"
"""The stream's column: the place as numbers with a blank between, `_key`, `_event`; JSON has no line break."""


def follow_key(spec: FoldSpec, state: str | None, frames: Iterable[pd.DataFrame]) -> tuple[str | None, list[Emitted]]:
    """Return the state after all packed events of one key in a batch, and their rows; the events may come in any order."""
    step = FoldRun(spec).step
    out: list[Emitted] = []
    for source, partition, offset, _, event in sorted(_events(frames)):
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
    states = Bucket(text)
    out: list[Emitted] = []
    for source, partition, offset, key, event in sorted(_events(frames)):
        state, emitted = step(states.get(key), event, partition, offset, source)
        states.put(key, state)
        out += emitted
    return states.text(), out


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


def _events(frames: Iterable[pd.DataFrame]) -> Iterator[tuple[int, int, int, str, str]]:
    """Yield source, partition, offset, key and event of each line of the stream."""
    for frame in frames:
        for lines in frame[LINES].tolist():
            place, key, event = lines.split("\n")
            source, partition, offset = place.split(" ")
            yield int(source), int(partition), int(offset), key, event
