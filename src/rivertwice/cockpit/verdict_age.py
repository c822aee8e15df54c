"""How old what a reconcile says is, and which columns changed since: a head move, a publication, or records that came after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.cockpit.grid import Columns
from rivertwice.cockpit.serving import Runs, Serving
from rivertwice.instants import to_iso
from rivertwice.pipeline.definition import Definition
from rivertwice.store import delta
from rivertwice.store.remembered import Remembered
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.ledger import MOST
from rivertwice.timeline.lineage import Segment, find_move_off, head_path, path_semantics
from rivertwice.timeline.sequence import Entry, read_sequence
from rivertwice.timeline.served_rows import publications_of


def describe_age(serving: Serving, definition: Definition, runs: Runs, columns: Columns) -> dict[str, Any]:
    """Return the newest reconcile, whether the head moved after it, and which columns changed after it.

    A column changed if a publication that serves covers windows of it, or if a batch may have read records of them.
    """
    home, run = serving.home, runs.newest
    entries, path = read_sequence(home), head_path(home)
    semantics = path_semantics(home, path)
    published = [
        pair
        for publication in publications_of(entries)
        if publication.seq > run["sequence"] and publication.semantics in semantics
        for pair in publication.ranges
    ]
    last = newest_batch(home, path)
    batches = [] if last is None or last.batch <= run["batch"] else _events_since(serving, path, run["batch"])
    length_ms, step_ms = (
        int(part.total_seconds() * 1000) for part in (definition.window.length, definition.window.step)
    )
    # A record belongs to windows that start up to a window's length, less a step, before its own.
    reach = [(low - max(0, length_ms - step_ms), high + 1) for low, high in batches]
    moved = moved_after(entries, path, run)
    return {
        "run": run["run"],
        "at": to_iso(run["created_at"]),
        "timeline": run["timeline"],
        "batch": run["batch"],
        "sequence": run["sequence"],
        "moved": moved,
        "published": columns.touched(published),
        "read": columns.touched(reach),
        "newest_batch": None if last is None else last.batch,
    }


def moved_after(entries: list[Entry], path: list[Segment], run: Mapping[str, Any]) -> str | None:
    """Return that the head left what a reconcile saw, and where to; None: it did not. Pure."""
    move = find_move_off(entries, path, (run["timeline"], run["batch"]), run["sequence"])
    return None if move is None else f"the head moved to {move.payload['timeline']} after it (sequence {move.seq})"


def _events_since(serving: Serving, path: list[Segment], batch: int) -> list[tuple[int, int]]:
    """Return the first and the last event time (epoch ms) of each batch of the head's path after one."""
    home = serving.home
    key = (str(home.tables.ledger), batch, tuple(path))
    return _EVENTS.get(key, (home.tables.ledger, home.tables.sequence), lambda: _read_events(serving, path, batch))


def _read_events(serving: Serving, path: list[Segment], batch: int) -> list[tuple[int, int]]:
    names = ["timeline", "batch", "min_event_ms", "max_event_ms"]
    rows = delta.read(serving.home.tables.ledger, columns=names, between=("batch", batch + 1, MOST))
    if rows is None:
        return []
    kept = pa.concat_tables([rows.filter(_on(segment)) for segment in path])
    kept = kept.filter(pc.is_valid(kept["min_event_ms"]))
    return list(zip(kept["min_event_ms"].to_pylist(), kept["max_event_ms"].to_pylist(), strict=True))


def _on(segment: Segment) -> pc.Expression:
    inside = (pc.field("timeline") == segment.timeline) & (pc.field("batch") >= segment.first)
    return inside if segment.last is None else inside & (pc.field("batch") <= segment.last)


_EVENTS: Remembered[list[tuple[int, int]]] = Remembered(32)
