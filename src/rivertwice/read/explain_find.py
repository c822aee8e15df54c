"""Which row somebody means by a window and a key, and everything that the tables say about it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill import load_backfill_plan
from rivertwice.core import EPOCH, PipelineHome, Place, RequestError, Row, iso_of_ms, to_iso, to_ms
from rivertwice.definition import Definition
from rivertwice.read.explain_kinds import facts_of
from rivertwice.read.explain_model import (
    Address,
    Closing,
    Emitted,
    EmittedRow,
    ExplainedVerdict,
    HeadMove,
    Published,
    PublishedRow,
    Values,
    judge_age,
)
from rivertwice.reconcile import RowColumns
from rivertwice.storage import Table, Where
from rivertwice.timeline import (
    SERVED,
    WITHDRAWN,
    Chain,
    CommittedBatches,
    Entry,
    EntryKind,
    LedgerRow,
    Publication,
    condition_of_key,
    every_batch,
    find_move_off,
    head_path,
    key_text,
    publications_of,
    read_verdicts,
    require_columns,
    to_epoch_ms,
)

_NEAREST = 5
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class WindowRows:
    """All rows that were ever stored of the windows that start at an instant.

    Attributes:
        served: what is served. changelog: of all timelines. corrections: of all backfills, published or not. None: no such table.
    """

    served: pa.Table | None
    changelog: pa.Table | None
    corrections: pa.Table | None

    @property
    def tables(self) -> list[pa.Table]:
        """Those that there are."""
        return [rows for rows in (self.served, self.changelog, self.corrections) if rows is not None]

    def of_key(self, key: Mapping[str, Any], definition: Definition) -> WindowRows:
        """Return the rows of a key.

        Raises:
            RequestError: a value does not fit its column.
        """
        chosen = [None if rows is None else of_key(rows, key, definition) for rows in self._each()]
        return WindowRows(*chosen)

    def _each(self) -> tuple[pa.Table | None, ...]:
        return self.served, self.changelog, self.corrections


def read_window(home: PipelineHome, served: Any, definition: Definition, start: datetime) -> WindowRows:
    """Return the stored rows of the windows that start at an instant; of each table only the files that can have such rows are read."""
    column, start_ms = definition.window.start_column, to_ms(start)
    matching = Where(column).is_within([(start_ms, start_ms + 1)])
    read = [Table(place).read(matching=matching) for place in (served, home.tables.changelog, home.tables.corrections)]
    exact = pa.scalar(start, pa.timestamp("us", "UTC"))
    return WindowRows(*[None if rows is None else rows.filter(pc.equal(rows[column], exact)) for rows in read])


def parse_key(text: str | None, names: Sequence[str]) -> Row:
    """Return the key that a person wrote: a JSON object, or the value alone if there is one key column. Pure.

    Raises:
        RequestError: it has other columns, or none is given where there are some.
    """
    form = json.dumps(dict.fromkeys(names, "..."))
    if text is None:
        if names:
            message = f"the key is missing: a row is found by {', '.join(names)}; write it as '{form}'"
            raise RequestError(message)
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, dict):
        unknown = sorted(set(value) - set(names))
        if unknown or not value:
            message = f"the key {text[:80]} names {', '.join(unknown) or 'nothing'}, but the key columns are {', '.join(names) or 'none'}"
            raise RequestError(message)
        return value
    if len(names) != 1:
        message = f"{text[:80]!r} is not a key: there are {len(names)} key columns ({', '.join(names) or 'none'}); write it as '{form}'"
        raise RequestError(message)
    return {names[0]: text if isinstance(value, list) or value is None else value}


def of_key(rows: pa.Table, key: Mapping[str, Any], definition: Definition) -> pa.Table:
    """Return the rows of a key; a number is also taken as text where the column is one, so that `7` finds the key "7".

    Raises:
        RequestError: a value does not fit its column, or the table has no such column.
    """
    require_columns(rows.schema, list(key), "the table")
    fitting = {
        name: str(value)
        if pa.types.is_string(rows.schema.field(name).type) and isinstance(value, int | float)
        else value
        for name, value in key.items()
    }
    condition = condition_of_key(rows.schema, fitting, definition.row_keys)
    return rows if condition is None else rows.filter(condition)


def keys_in(rows: Sequence[pa.Table], names: Sequence[str]) -> dict[str, Row]:
    """Return the keys of rows: their text to key column and value. Pure."""
    found: dict[str, dict[str, Any]] = {}
    for table in rows:
        columns = [table[name].to_pylist() for name in names]
        for values in zip(*columns, strict=True):
            found.setdefault(key_text(names, values), dict(zip(names, values, strict=True)))
    return found


def refuse_key(pipeline: str, start: datetime, key: Mapping[str, Any], known: Sequence[str]) -> RequestError:
    """Return the error about a key that has no row in a window, with the nearest ones. Pure."""
    text = key_text(list(key), key.values())
    close = difflib.get_close_matches(text, known, n=_NEAREST, cutoff=0.5) or sorted(known)[:_NEAREST]
    more = "" if len(known) <= len(close) else f" (of {len(known)})"
    message = (
        f"no row of {pipeline} has the key {text} in the window at {to_iso(start)}; keys there: {', '.join(close)}{more}; if records of "
        "it came too late to be emitted, --with-truth computes it"
    )
    return RequestError(message)


def refuse_window(home: PipelineHome, served: Any, definition: Definition, start: datetime) -> RequestError:
    """Return the error about a window that has no row, with the nearest windows that have one."""
    column = definition.window.start_column
    place = served if Table(served).open() is not None else home.tables.changelog
    rows = Table(place).read(columns=[column])
    known = [] if rows is None else sorted(set(to_epoch_ms(rows[column]).tolist()))
    message = f"no row of {home.root.name} is of a window at {to_iso(start)}; {describe_nearest(known, to_ms(start), definition)}"
    return RequestError(message)


def describe_nearest(known_ms: Sequence[int], start_ms: int, definition: Definition) -> str:
    """Return in words which windows are nearest to an instant (epoch ms). Pure.

    Args:
        known_ms: starts of the windows that have rows, in order.
    """
    if not known_ms:
        return "no window has a row yet; `rivertwice status` shows how far the stream is"
    before = [ms for ms in known_ms if ms <= start_ms][-2:]
    after = [ms for ms in known_ms if ms > start_ms][:2]
    listed = ", ".join(iso_of_ms(ms) for ms in (*before, *after))
    step_ms = definition.window.step // timedelta(milliseconds=1)
    aligned = facts_of(definition).has_known_starts and start_ms % step_ms
    hint = f"; it lies in the one that starts at {iso_of_ms(start_ms // step_ms * step_ms)}" if aligned else ""
    return f"the nearest start at {listed}{hint} (windows: {definition.window.text})"


def window_end(definition: Definition, start: datetime, rows: WindowRows) -> datetime | None:
    """Return the end of the row's window: of a stored row, or of windows of one length; None: not known."""
    for table in rows.tables:
        if table.num_rows:
            end: datetime = table[definition.window.end_column][0].as_py()
            return end
    is_whole = facts_of(definition).has_known_starts and (start - EPOCH) % definition.window.step < _MICROSECOND
    if not is_whole:
        return None
    return start + definition.window.length


# The rows that tables hold of one address, as the decisions about it need them: emitted, published, judged.


@dataclass(frozen=True)
class PipelineState:
    """What is read once of a pipeline.

    Attributes:
        home: of the version whose rows are explained.
        definition: what the head runs; shape: how its rows are compared.
        committed: the batches of the head's path.
        semantics: of the definitions whose publications serve.
        is_current: whether the served table shows all that is committed.
    """

    home: PipelineHome
    served: Place
    definition: Definition
    shape: RowColumns
    committed: CommittedBatches
    entries: list[Entry]
    semantics: frozenset[str]
    is_current: bool

    def values(self, row: Mapping[str, Any]) -> Values:
        """Return the value columns of a row."""
        return {name: row[name] for name in self.shape.columns}

    def differing(self, left: Values, right: Values) -> tuple[str, ...]:
        """Return the columns in which two rows differ, by the definition's tolerances."""
        one, other = (tuple(row[name] for name in self.shape.columns) for row in (left, right))
        return tuple(self.shape.differences(one, other))


def first_row(rows: pa.Table | None) -> Row | None:
    """Return the first row of a table; None if there is none."""
    found: list[dict[str, Any]] = [] if rows is None else rows.slice(0, 1).to_pylist()
    return found[0] if found else None


def emitted_rows(pipeline: PipelineState, own: WindowRows, address: Address) -> list[EmittedRow]:
    """Return the rows that any timeline emitted for the address; rows of batches that were never committed are none."""
    if own.changelog is None or not own.changelog.num_rows:
        return []
    table = every_batch(pipeline.home)
    names = ("timeline", "batch", "committed_at", "batch_watermark_ms")
    known = {(t, b): (at, mark) for t, b, at, mark in zip(*(table[name].to_pylist() for name in names), strict=True)}
    rows = []
    for row in own.changelog.to_pylist():
        batch = (row["_timeline"], row["_batch"])
        if batch in known:
            at, mark = known[batch]
            is_final = pipeline.definition.window.closed_ms(mark) >= to_ms(address.end)
            rows.append(EmittedRow(*batch, at, batch in pipeline.committed, is_final, pipeline.values(row)))
    return rows


def emitter_of(committed: CommittedBatches, row: EmittedRow) -> Emitted:
    """Return who emitted a row of the head's path."""
    table = committed.table
    place = table["batch"].to_pylist().index(row.batch)
    return Emitted(row.timeline, row.batch, table["epoch"][place].as_py(), row.at)


def find_closing(pipeline: PipelineState, address: Address) -> Closing | None:
    """Return the first batch of the head's path whose watermark closed the window."""
    if not facts_of(pipeline.definition).closes:
        return None
    end_ms, table = to_ms(address.end), pipeline.committed.table
    for place, mark in enumerate(table["batch_watermark_ms"].to_pylist()):
        if pipeline.definition.window.closed_ms(mark) >= end_ms:
            names = ("timeline", "batch", "committed_at")
            return Closing(*(table[name][place].as_py() for name in names))
    return None


def covering_publications(pipeline: PipelineState, own: WindowRows, address: Address) -> list[PublishedRow]:
    """Return the publications that cover the window, oldest first, each with its row of the key."""
    rows = {} if own.corrections is None else {row["_backfill"]: row for row in own.corrections.to_pylist()}
    times = {entry.seq: entry.created_at for entry in pipeline.entries}
    covering = []
    for publication in publications_of(pipeline.entries):
        row = rows.get(publication.backfill)
        if row is None and (publication.sessions or not _covers(publication, address)):
            continue
        is_row = row is not None and not row.get(WITHDRAWN)
        covering.append(
            PublishedRow(
                publication.seq,
                publication.backfill,
                times[publication.seq],
                _reason(pipeline.home, publication.backfill),
                publication.semantics in pipeline.semantics,
                pipeline.values(row) if row is not None and is_row else None,
            )
        )
    return covering


def _covers(publication: Publication, address: Address) -> bool:
    start_ms = to_ms(address.start)
    return any(low <= start_ms < high for low, high in publication.ranges)


def _reason(home: PipelineHome, backfill: str) -> str | None:
    try:
        return load_backfill_plan(home, backfill).reason
    except RequestError:  # the plan was removed, or is of another release; the publication stands all the same
        return None


def served_publication(
    pipeline: PipelineState, served: Mapping[str, Any] | None, covering: PublishedRow | None
) -> Published | None:
    """Return who published what is served; None if the stream's row serves."""
    if covering is None or (served is not None and served["_backfill"] != covering.backfill):
        return None
    entry = next(entry for entry in publications_of(pipeline.entries) if entry.seq == covering.sequence)
    return Published(covering.backfill, covering.sequence, covering.at, covering.reason, entry.as_of)


def amendments_of(pipeline: PipelineState, published: Published) -> int:
    """Return up to which decision about dead letters a publication counted them."""
    return next(entry.amendments for entry in publications_of(pipeline.entries) if entry.seq == published.sequence)


def head_moves(entries: Sequence[Entry]) -> list[HeadMove]:
    """Return the moves of the head, oldest first."""
    return [
        HeadMove(entry.seq, entry.created_at, str(entry.payload["timeline"]), str(entry.payload["reason"]))
        for entry in entries
        if entry.kind == EntryKind.HEAD
    ]


def judged_rows(
    pipeline: PipelineState, chain: Chain | None, address: Address, read: Callable[..., pa.Table | None]
) -> list[Row]:
    """Return the verdicts or causes of the row that hold for the newest reconcile, and those of all rows of its window.

    Args:
        chain: the runs that hold for the newest one; None: there is none.
        read: `judgements.read_verdicts` or `read_causes`; no row of another window is read.
    """
    if chain is None:
        return []
    rows = read(pipeline.home, chain, [(to_ms(address.start), to_ms(address.start) + 1)])
    names = pipeline.definition.row_keys
    key = key_text(names, [address.key[name] for name in names])
    found = [] if rows is None else rows.to_pylist()
    return [row for row in found if row["window_start"] == address.start and row["key"] in (None, key)]


def describe_verdicts(
    pipeline: PipelineState,
    newest: tuple[Chain, Mapping[str, Any]] | None,
    address: Address,
    published: PublishedRow | None,
    batches: Sequence[LedgerRow],
    now: datetime,
) -> tuple[ExplainedVerdict, ...]:
    """Return what the newest reconcile says of a row against the truth: of what is served first, then of the stream.

    Args:
        newest: the newest reconcile, with the runs that hold for it; None: there is none.
        batches: those that may have read records of the window.
    """
    if newest is None:
        return ()
    chain, run = newest
    rows = judged_rows(pipeline, chain, address, read_verdicts)
    seen = (run["timeline"], run["batch"])
    move = find_move_off(pipeline.entries, head_path(pipeline.home), seen, run["sequence"])
    verdicts = []
    for pair in (SERVED, "stream"):
        of_pair = [row for row in rows if row["pair"] == pair]
        row = next((row for row in of_pair if row["key"] is not None), next(iter(of_pair), None))
        if row is None:
            continue
        stale = judge_age(
            pair,
            row["verdict"],
            sequence=run["sequence"],
            batch=run["batch"],
            left_by=None if move is None else move.seq,
            published=None if published is None else published.sequence,
            last_read=max((batch.batch for batch in batches), default=None),
            is_closed=find_closing(pipeline, address) is not None,
        )
        age = (now - run["created_at"]).total_seconds()
        verdicts.append(
            ExplainedVerdict(pair, row["verdict"], row["reason"], run["run"], run["created_at"], age, stale)
        )
    return tuple(verdicts)
