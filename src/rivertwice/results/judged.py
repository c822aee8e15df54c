"""The verdicts and causes that hold for the newest reconcile, as a filter: an incremental run stores only what it judged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.config import PipelineHome
from rivertwice.instants import from_ms
from rivertwice.store import delta
from rivertwice.timeline.judgements import Chain, Increment, chain_of

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_ADDRESS = ("pair", "window_start", "window_end", "key")
_STAMP = pa.timestamp("us", "UTC")


def newest_chain(home: PipelineHome) -> tuple[Chain, dict[str, Any]] | None:
    """Return the runs whose rows hold for the newest one, newest first, and that run's row; None before the first."""
    table = delta.open_table(home.tables.reconciles)
    if table is None:
        return None
    stored = {field.name for field in table.schema().fields}
    names = [name for name in ("run", "created_at", "increment", "timeline", "batch", "sequence") if name in stored]
    rows = delta.read(home.tables.reconciles, columns=names, at=table)
    runs = [] if rows is None else rows.to_pylist()
    if not runs:
        return None
    newest = max(runs, key=lambda row: (row["created_at"], row["run"]))
    increments = {row["run"]: Increment.from_json(json.loads(row["increment"])) for row in runs if row.get("increment")}
    return chain_of(increments, newest["run"]), newest


def rows_that_hold(chain: Chain, dataset: ds.Dataset) -> pc.Expression:
    """Return the condition that a stored row holds for the first run of a chain (`timeline.judgements.verdicts_in`).

    A run's own rows hold. An older row holds if no newer run judged its window as a whole, or, for a verdict, its address. The
    addresses that the incremental runs judged are read, no other rows.
    """
    has_verdicts = "verdict" in dataset.schema.names
    named = _named(chain, dataset) if has_verdicts else {}
    own = pc.field("run") == chain[-1][0]
    holds = own
    for run, increment in reversed(chain[:-1]):
        older = holds
        if increment is not None and increment.settled_ms is not None:
            older = older & _is_kept(increment)
        if run in named:
            older = older & ~_address().isin(named[run])
        holds = (pc.field("run") == run) | older
    if has_verdicts and "rows" in dataset.schema.names:
        holds = holds & (pc.field("rows").is_null() | (pc.field("rows") != 0))
    return holds


def _is_kept(increment: Increment) -> pc.Expression:
    assert increment.settled_ms is not None, "the caller looked"
    start = pc.field("window_start")
    settled = pa.scalar(from_ms(increment.settled_ms - increment.length_ms), _STAMP)
    kept = start <= settled
    for low, high in increment.ranges:
        kept = kept & ~((start >= pa.scalar(from_ms(low), _STAMP)) & (start < pa.scalar(from_ms(high), _STAMP)))
    return start.is_null() | kept


def _address() -> pc.Expression:
    """Return a row's address as one text; a row without a key has another one than any that has a key."""
    texts = [pc.field(name).cast(pa.int64()).cast(pa.string()) for name in ("window_start", "window_end")]
    return pc.binary_join_element_wise(
        pc.field("pair"), *texts, pc.coalesce(pc.field("key"), pc.scalar("-")), pc.scalar(" ")
    )


def _named(chain: Chain, dataset: ds.Dataset) -> dict[str, pa.Array]:
    """Return the addresses that each incremental run judged."""
    runs = [run for run, increment in chain[:-1] if increment is not None]
    if not runs:
        return {}
    columns = {"run": pc.field("run"), "address": _address()}
    rows = dataset.to_table(columns=columns, filter=pc.field("run").isin(runs))
    return {
        run: own["address"].combine_chunks() for run in runs if (own := rows.filter(pc.field("run") == run)).num_rows
    }
