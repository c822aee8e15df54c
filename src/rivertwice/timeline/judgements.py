"""Which stored verdicts and causes hold for a reconcile run: its own, and those of the run that it builds on.

A full run judges every window. An incremental run starts at the seal of an earlier run. It judges the windows that were not
settled there, and settled windows that changed since; it stores rows for these alone. All other rows of the earlier run hold
for it too. That run may build on one before it, so the rows of a run come from a chain of runs, each row from the newest one
that judged it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.config import PipelineHome, Place
from rivertwice.store import delta
from rivertwice.store.sql import all_of, is_among, is_within

Range = tuple[int, int]
"""Starts of windows, epoch ms, half-open."""


@dataclass(frozen=True)
class Increment:
    """What an incremental run judged.

    Attributes:
        base: the run that it builds on.
        settled_ms: windows that end at or before it (epoch ms) were judged by the base; None: no window was judged again.
        ranges: such windows, by their starts, that were all judged again nevertheless.
        length_ms: length of a window.
    """

    base: str
    settled_ms: int | None = None
    ranges: tuple[Range, ...] = ()
    length_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the increment as stored in `reconciles.increment`."""
        ranges = [list(pair) for pair in self.ranges]
        return {"base": self.base, "settled_ms": self.settled_ms, "ranges": ranges, "length_ms": self.length_ms}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Increment:
        """Read what `to_json` wrote."""
        ranges = tuple((int(low), int(high)) for low, high in data["ranges"])
        return cls(data["base"], data["settled_ms"], ranges, int(data["length_ms"]))


def rows_of(verdict: Mapping[str, Any]) -> int:
    """Return for how many result rows a stored verdict stands.

    All rows of a window that agree, or that are open, are stored as one, without a key. Until 0.1 each was stored.
    """
    rows = verdict.get("rows")
    return 1 if rows is None else int(rows)


Chain = list[tuple[str, Increment | None]]
"""Runs whose rows hold for a run, newest first, each with its increment."""


def run_chain(home: PipelineHome, run: str) -> Chain:
    """Return the runs whose rows hold for a run, newest first, each with its increment; the last one is a full run.

    A run that an earlier release stored is a full run.
    """
    runs = delta.read(home.tables.reconciles)
    if runs is None:
        return [(run, None)]
    has_increments = "increment" in runs.column_names
    increments = runs["increment"].to_pylist() if has_increments else [None] * runs.num_rows
    stored = dict(zip(runs["run"].to_pylist(), increments, strict=True))
    return chain_of({name: Increment.from_json(json.loads(text)) for name, text in stored.items() if text}, run)


def chain_of(increments: Mapping[str, Increment], run: str) -> Chain:
    """Return the runs whose rows hold for a run, newest first. Pure.

    Args:
        increments: of the stored runs that build on another.
        run: its name.
    """
    chain: Chain = []
    name: str | None = run
    while name is not None:
        increment = increments.get(name)
        chain.append((name, increment))
        name = None if increment is None else increment.base
    return chain


def verdicts_of(
    home: PipelineHome, run: str, ranges: Sequence[Range] | None = None, wanted: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return the stored verdicts that hold for a run, in no order.

    Args:
        home: of the pipeline.
        run: its name.
        ranges: starts of windows, at least one range; no row of another window is read. None: of all windows.
        wanted: only rows with one of these verdicts are returned. None: all.
    """
    chain = run_chain(home, run)
    table = _read(home.tables.verdicts, chain, ranges)
    return [] if table is None else verdicts_in(table, chain, wanted)


def verdicts_in(table: pa.Table, chain: Chain, wanted: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return those rows of a table of verdicts that hold for the first run of a chain, in no order. Pure."""
    named: set[tuple[Any, ...]] = set()
    rows: list[dict[str, Any]] = []
    for own, is_last in _rows_of_chain(table, chain):
        chosen = own if wanted is None else own.filter(pc.is_in(own["verdict"], pa.array(list(wanted))))
        rows += [row for row in chosen.to_pylist() if rows_of(row) and (not named or _address(row) not in named)]
        if not is_last:
            named.update(map(_address, own.to_pylist()))
    return rows


def causes_of(home: PipelineHome, run: str) -> list[dict[str, Any]]:
    """Return the stored causes that hold for a run, in no order; further causes of a row that is judged again are added to it."""
    chain = run_chain(home, run)
    table = _read(home.tables.causes, chain, None)
    return [] if table is None else [row for own, _ in _rows_of_chain(table, chain) for row in own.to_pylist()]


def _address(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["pair"], row["window_start"], row["window_end"], row["key"]


def _read(path: Place, chain: Chain, ranges: Sequence[Range] | None) -> pa.Table | None:
    conditions = [is_among("run", [name for name, _ in chain])]
    if ranges is not None:
        conditions.append(is_within("window_start", ranges))
    return delta.read(path, matching=all_of(conditions))


def _rows_of_chain(table: pa.Table, chain: Chain) -> Iterator[tuple[pa.Table, bool]]:
    """Yield each run's rows of windows that no newer run judged as a whole, the newest run first, and whether it is the last."""
    newer: list[Increment] = []
    for name, increment in chain:
        own = table.filter(pc.field("run") == name)
        yield own.filter(_kept(own, newer)), increment is None
        if increment is not None:
            newer.append(increment)


def _kept(rows: pa.Table, newer: Sequence[Increment]) -> pa.Array:
    """Return for each row whether the increments keep its window; a row without a window is kept."""
    starts = pc.cast(pc.cast(rows["window_start"], pa.timestamp("ms", "UTC"), safe=False), pa.int64())
    kept = pa.array(np.ones(rows.num_rows, dtype=bool))
    for increment in newer:
        if increment.settled_ms is not None:
            inside = pc.less_equal(starts, increment.settled_ms - increment.length_ms)
            for low, high in increment.ranges:
                inside = pc.and_(inside, pc.invert(pc.and_(pc.greater_equal(starts, low), pc.less(starts, high))))
            kept = pc.and_(kept, pc.fill_null(inside, True))
    return kept
