"""Find the rows that a person names by pipeline and table, as they are at this moment, with their verdicts."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import PipelineHome, RequestError, Row, Settings, base_of, from_ms
from rivertwice.storage import Table, TableFiles
from rivertwice.timeline import (
    PROVISIONAL,
    SERVED,
    Chain,
    Increment,
    Kind,
    ResultTable,
    Rows,
    Scope,
    Status,
    chain_of,
    head_definition,
    head_path,
    kind_named,
    newest_batch,
    path_until,
    serving_by_stamp,
    status_of,
)

if TYPE_CHECKING:
    import pyarrow.dataset as ds


# The verdicts and causes that hold for the newest reconcile, as a filter: an incremental run stores only what it judged.

_ADDRESS = ("pair", "window_start", "window_end", "key")
_STAMP = pa.timestamp("us", "UTC")


def newest_chain(home: PipelineHome) -> tuple[Chain, Row] | None:
    """Return the runs whose rows hold for the newest one, newest first, and that run's row; None before the first."""
    table = Table(home.tables.reconciles).open()
    if table is None:
        return None
    stored = set(table.schema.names)
    names = [name for name in ("run", "created_at", "increment", "timeline", "batch", "sequence") if name in stored]
    rows = table.read(columns=names)
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


WINDOW_START = "window_start"
_ABSENT = {
    SERVED: "nothing is served yet: the agent builds the table after the first batch; `rivertwice status` shows how far the stream is",
    PROVISIONAL: "it has rows only if its definition says `emit: updates`",
    "verdicts": "it was never reconciled; run `rivertwice reconcile {name}`",
    "causes": "it was never reconciled; run `rivertwice reconcile {name}`",
    "reconciles": "it was never reconciled; run `rivertwice reconcile {name}`",
    "quality": "none of its suites has run: `expectations/{name}/windows.json` runs with each reconcile (`rivertwice docs howto-quality`)",
    "dead-letters": "no record was refused so far",
    "late-rows": "its late policy keeps none, or no record was late so far",
    "amendments": "nothing was decided about a dead letter so far",
}


def find_rows(
    settings: Settings, name: str, table: str = SERVED, *, require_current: bool = False, raw: bool = True
) -> Rows:
    """Return the rows of a pipeline's table, of which nothing is read yet.

    A pipeline's own name means the version that serves; `NAME@v2` means that version, also while another one serves.

    Args:
        require_current: refuse rows that do not show all that is committed.
        raw: with the columns of records' own values (`Kind.raw`).

    Raises:
        RequestError: there is no such pipeline or table, the table has not been written yet, or it is not current.
    """
    settings.known_pipeline(name)
    kind = kind_named(table)
    rows = open_rows(settings, name, kind, raw=raw)
    if rows is None:
        why = _ABSENT.get(kind.name, "nothing was written to it yet").format(name=name)
        message = f"{name} has no {kind.name.replace('-', ' ')}: {why}"
        raise RequestError(message)
    if require_current:
        rows.status.require_current()
    return rows


def open_rows(settings: Settings, name: str, kind: Kind, *, raw: bool = True) -> Rows | None:
    """Return the rows of a table, with or without the columns of records' own values, or None if it does not exist."""
    home = settings.pipeline(name)
    serving = serving_by_stamp(home)
    if name == base_of(name):
        home = settings.pipeline(serving)
    place = home.served_while(serving) if kind.name == SERVED else kind.place(home)
    handle = Table(place).open()
    if handle is None:
        return None
    has_stamp = kind.name in (SERVED, PROVISIONAL)
    status = status_of(home, kind.name, place, handle, has_stamp=has_stamp)
    files = TableFiles(handle, () if raw else kind.raw)
    scope, status = _scope(home, kind, files, status)
    definition = head_definition(home)
    start = WINDOW_START if definition is None else definition.window.start_column
    keys = () if definition is None else tuple(definition.row_keys)
    return Rows(ResultTable(name, kind, handle, files, kind.time or start, keys, status, scope))


def _scope(home: PipelineHome, kind: Kind, files: TableFiles, status: Status) -> tuple[pc.Expression | None, Status]:
    """Return which rows of a table count, None for all, and its status with the reconcile for which they hold."""
    if kind.scope is Scope.PATH:
        return _on_path(home, *kind.batch), status
    if kind.scope is Scope.NEWEST_RUN:
        newest = newest_chain(home)
        if newest is None:
            return pc.scalar(False), status
        chain, run = newest
        return rows_that_hold(chain, files.dataset()), dataclasses.replace(status, run=run["run"])
    return None, status


def _on_path(home: PipelineHome, timeline: str, batch: str) -> pc.Expression:
    """Return the condition that a row is of a committed batch of the head's path."""
    path = head_path(home)
    last = newest_batch(home, path)
    keep = pc.scalar(False)
    for part in [] if last is None else path_until(path, last.batch):
        inside = (pc.field(timeline) == part.timeline) & (pc.field(batch) >= part.first)
        keep = keep | (inside if part.last is None else inside & (pc.field(batch) <= part.last))
    return keep
