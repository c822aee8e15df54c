"""Which stored verdicts and causes hold for a reconcile run: its own, and those of the run that it builds on.

A full run judges every window. An incremental run starts at the seal of an earlier run. It judges the windows that were not
settled there, and settled windows that changed since; it stores rows for these alone. All other rows of the earlier run hold
for it too. That run may build on one before it, so the rows of a run come from a chain of runs, each row from the newest one
that judged it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import PipelineHome, Place, Row
from rivertwice.storage import Table, Where

Range = tuple[int, int]
"""Starts of windows, epoch ms, half-open."""


@dataclass(frozen=True)
class Increment:
    """What an incremental run judged.

    Attributes:
        settled_ms: windows that end at or before it (epoch ms) were judged by the base; None: no window was judged again.
        ranges: such windows, by their starts, that were all judged again nevertheless.
    """

    base: str
    settled_ms: int | None = None
    ranges: tuple[Range, ...] = ()
    length_ms: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Increment:
        """Read an increment as it is stored in `reconciles.increment`."""
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
    runs = Table(home.tables.reconciles).read()
    if runs is None:
        return [(run, None)]
    has_increments = "increment" in runs.column_names
    increments = runs["increment"].to_pylist() if has_increments else [None] * runs.num_rows
    stored = dict(zip(runs["run"].to_pylist(), increments, strict=True))
    return chain_of({name: Increment.from_json(json.loads(text)) for name, text in stored.items() if text}, run)


def chain_of(increments: Mapping[str, Increment], run: str) -> Chain:
    """Return the runs whose rows hold for a run, newest first. Pure."""
    chain: Chain = []
    name: str | None = run
    while name is not None:
        increment = increments.get(name)
        chain.append((name, increment))
        name = None if increment is None else increment.base
    return chain


def verdicts_of(
    home: PipelineHome, run: str, ranges: Sequence[Range] | None = None, wanted: Sequence[str] | None = None
) -> list[Row]:
    """Return the stored verdicts that hold for a run, in no order.

    Args:
        ranges: starts of windows, at least one range; no row of another window is read. None: of all windows.
        wanted: only rows with one of these verdicts are returned. None: all.
    """
    chain = run_chain(home, run)
    table = _read(home.tables.verdicts, chain, ranges)
    return [] if table is None else verdicts_in(table, chain, wanted)


def verdicts_in(table: pa.Table, chain: Chain, wanted: Sequence[str] | None = None) -> list[Row]:
    """Return those rows of a table of verdicts that hold for the first run of a chain, in no order. Pure."""
    rows = holding_verdicts(table, chain)
    chosen = rows if wanted is None else rows.filter(pc.is_in(rows["verdict"], pa.array(list(wanted))))
    return list(chosen.to_pylist())


def read_verdicts(
    home: PipelineHome, chain: Chain, ranges: Sequence[Range] | None, further: str | None = None
) -> pa.Table | None:
    """Return the stored verdicts that hold for the first run of a chain, in no order; None: there is no such table.

    Args:
        ranges: starts of windows, at least one range; no row of another window is read. None: of all windows.
        further: a condition of `storage.sql` that depends on a row's address alone (pair, window, key).
    """
    table = _read(home.tables.verdicts, chain, ranges, further)
    return None if table is None else holding_verdicts(table, chain)


def holding_verdicts(table: pa.Table, chain: Chain) -> pa.Table:
    """Return those rows of a table of verdicts that hold for the first run of a chain. Pure.

    A row holds if no newer run judged its window as a whole, or its address alone.
    """
    rows, places = _rows_of_chain(table, chain)
    if len(chain) > 1 and rows.num_rows:
        newest = np.full(rows.num_rows, len(chain), dtype=np.int64)
        addresses = _address_numbers(rows)
        np.minimum.at(newest, addresses, places)
        rows = rows.filter(pa.array(newest[addresses] == places))
    if "rows" in rows.column_names:
        rows = rows.filter(pc.fill_null(pc.not_equal(rows["rows"], 0), True))
    return rows


def causes_of(home: PipelineHome, run: str, ranges: Sequence[Range] | None = None) -> list[Row]:
    """Return the stored causes that hold for a run, in no order; further causes of a row that is judged again are added to it.

    Args:
        ranges: starts of windows, at least one range; no cause of another window is read, nor one without a window. None: all.
    """
    table = read_causes(home, run_chain(home, run), ranges)
    return [] if table is None else list(table.to_pylist())


def read_causes(
    home: PipelineHome, chain: Chain, ranges: Sequence[Range] | None, further: str | None = None
) -> pa.Table | None:
    """Return the stored causes that hold for the first run of a chain, as `read_verdicts` returns verdicts."""
    table = _read(home.tables.causes, chain, ranges, further)
    return None if table is None else _rows_of_chain(table, chain)[0]


def _address_numbers(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return a number for each row, the same for rows of the same address, below the number of rows."""
    numbers = np.zeros(rows.num_rows, dtype=np.int64)
    for name in ("pair", "window_start", "window_end", "key"):
        column = rows[name].combine_chunks()
        codes = pc.dictionary_encode(column, null_encoding="encode").indices.to_numpy().astype(np.int64)
        numbers = np.unique(numbers * (int(codes.max()) + 1) + codes, return_inverse=True)[1].astype(np.int64)
    return numbers


def _read(path: Place, chain: Chain, ranges: Sequence[Range] | None, further: str | None = None) -> pa.Table | None:
    conditions = [Where("run").is_among([name for name, _ in chain])]
    if ranges is not None:
        conditions.append(Where("window_start").is_within(ranges))
    if further is not None:
        conditions.append(further)
    return Table(path).read(matching=Where.all(conditions))


def _rows_of_chain(table: pa.Table, chain: Chain) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return the rows whose windows no newer run judged as a whole, and of each the place of its run in the chain.

    A chain may be long: every run of a year builds on the one before it. Only runs that have a row here cost more than a step.
    """
    names = [name for name, _ in chain]
    found = pc.index_in(table["run"], value_set=pa.array(names, pa.string()))
    rows = table.filter(pc.is_valid(found))
    places = pc.drop_null(found).to_numpy().astype(np.int64)
    kept = np.ones(rows.num_rows, dtype=bool)
    starts = pc.cast(pc.cast(rows["window_start"], pa.timestamp("ms", "UTC"), safe=False), pa.int64())
    is_window = pc.is_valid(starts).to_numpy()
    starts_ms = pc.fill_null(starts, 0).to_numpy()
    for place in np.unique(places).tolist():
        own = places == place
        kept[own] = ~is_window[own] | ~_judged_again(starts_ms[own], [each for _, each in chain[:place]])
    return rows.filter(pa.array(kept)), places[kept]


def _judged_again(starts_ms: npt.NDArray[np.int64], newer: Sequence[Increment | None]) -> npt.NDArray[np.bool_]:
    """Return for each window whether one of some newer runs judged all of it."""
    judging = [each for each in newer if each is not None and each.settled_ms is not None]
    again = np.zeros(len(starts_ms), dtype=bool)
    if judging:
        again |= starts_ms > min((each.settled_ms or 0) - each.length_ms for each in judging)
    for low, high in sorted({pair for each in judging for pair in each.ranges}):
        again |= (starts_ms >= low) & (starts_ms < high)
    return again
