"""What a plan of sessions reads from the tables: sessions served now, and those that the newest reconcile found stale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill.model import Seed, Span
from rivertwice.backfill.session_plan import Zone
from rivertwice.core import PipelineHome
from rivertwice.definition import Definition
from rivertwice.timeline import Publication, key_texts, read_corrections

Micros = npt.NDArray[np.int64]


def spans_of(rows: pa.Table, definition: Definition) -> list[Span]:
    """Return result rows, of the served table or of corrections, as sessions; their count column gives the records."""
    assert definition.count_column is not None, "the definition was checked"
    window = definition.window
    starts, ends = (epoch_micros(rows[name]).tolist() for name in (window.start_column, window.end_column))
    counts = rows[definition.count_column].to_pylist()
    backfills = rows["_backfill"].to_pylist() if "_backfill" in rows.schema.names else [None] * rows.num_rows
    keys = key_texts(rows, definition.keys)
    sessions = zip(keys, starts, ends, counts, backfills, strict=True)
    return [Span(key, start, end, count or 0, backfill) for key, start, end, count, backfill in sessions]


def overlapping(rows: pa.Table, definition: Definition, zone: Zone) -> pa.Table:
    """Return the rows whose stretch overlaps a range of the zone (epoch milliseconds)."""
    window = definition.window
    starts, ends = epoch_micros(rows[window.start_column]), epoch_micros(rows[window.end_column])
    inside = np.zeros(rows.num_rows, dtype=bool)
    for low, high in zone:
        inside |= (starts < high * 1000) & (low * 1000 < ends)
    return rows.filter(pa.array(inside))


def epoch_micros(column: pa.ChunkedArray) -> Micros:
    """Return a timestamp column as epoch microseconds; no value may be null."""
    micros: Micros = pc.cast(pc.cast(column, pa.timestamp("us", "UTC")), pa.int64()).to_numpy().astype(np.int64)
    return micros


def without_published(
    home: PipelineHome, definition: Definition, seeds: Sequence[Seed], publications: Sequence[Publication]
) -> tuple[Seed, ...]:
    """Return the sessions that no session of the same key in the publications overlaps."""
    corrections = read_corrections(home, publications) if seeds else None
    if corrections is None:
        return tuple(seeds)
    zone = tuple((seed.start_ms, max(seed.end_ms, seed.start_ms + 1)) for seed in seeds)
    by_key: dict[str, list[Span]] = {}
    for span in spans_of(overlapping(corrections, definition, zone), definition):
        by_key.setdefault(span.key, []).append(span)
    return tuple(
        seed
        for seed in seeds
        if not any(
            span.start_us < seed.end_ms * 1000 and seed.start_ms * 1000 < span.end_us
            for span in by_key.get(seed.key, ())
        )
    )
