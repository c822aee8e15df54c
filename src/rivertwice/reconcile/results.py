"""The tables verdicts, causes and reconciles: one commit each, once per run; the last one makes a run exist."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from rivertwice.core import PipelineHome, Place, Row, from_ms, to_ms, to_plain
from rivertwice.reconcile.model import RowId, RowVerdict
from rivertwice.storage import NewFile, Remembered, Table, Where
from rivertwice.timeline import Increment, Verdict, causes_of, verdicts_of

FORMAT = 1
_TIME = pa.timestamp("us", "UTC")

VERDICTS = pa.schema(
    [
        ("_format", pa.int32()),
        ("run", pa.string()),
        ("pair", pa.string()),
        ("window_start", _TIME),
        ("window_end", _TIME),
        ("key", pa.string()),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("late", pa.int64()),
        ("dead", pa.int64()),
        ("as_of", pa.string()),
        ("sequence", pa.int64()),
        ("timeline", pa.string()),
        ("batch", pa.int64()),
        ("bundle", pa.string()),
        ("created_at", _TIME),
        ("rows", pa.int64()),
    ]
)
"""A row that agrees, or is open, has no separate row: one without a key stands for all `rows` of them in a window."""
CAUSES = pa.schema(
    [
        ("_format", pa.int32()),
        ("run", pa.string()),
        ("pair", pa.string()),
        ("window_start", _TIME),
        ("key", pa.string()),
        ("cause", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("batch", pa.int64()),
        ("late_watermark_ms", pa.int64()),
        ("event_time", _TIME),
        ("detail", pa.string()),
    ]
)
RECONCILES = pa.schema(
    [
        ("_format", pa.int32()),
        ("run", pa.string()),
        ("pipeline", pa.string()),
        ("created_at", _TIME),
        ("timeline", pa.string()),
        ("batch", pa.int64()),
        ("sequence", pa.int64()),
        ("as_of", pa.string()),
        ("counts", pa.string()),
        ("balance", pa.string()),
        ("late_by_partition", pa.string()),
        ("gate", pa.string()),
        ("duration_s", pa.float64()),
        ("increment", pa.string()),
    ]
)
_JSON_COLUMNS = ("as_of", "counts", "balance", "late_by_partition", "gate", "increment")


@dataclass(frozen=True)
class Stamp:
    """What a run looked at; every stored row carries it.

    Attributes:
        run: name of the run. timeline, batch: the last committed batch on the head's path.
        sequence: newest head move or publication. as_of: topic to partition to offset; records below were counted.
    """

    run: str
    pipeline: str
    created_at: datetime
    timeline: str
    batch: int
    bundle: str
    sequence: int
    as_of: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class ReconcileCause:
    """One named cause: a late or dead record by address, or a finding about the ledger or the dead letters."""

    pair: str
    cause: str
    row: RowId | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    batch: int | None = None
    late_watermark_ms: int | None = None
    event_time: datetime | None = None
    detail: str = ""


@dataclass(frozen=True)
class Written:
    """Verdicts and causes that executors wrote to files of their tables, which no commit has added yet."""

    verdicts: Sequence[NewFile] = ()
    causes: Sequence[NewFile] = ()


def store_run(
    home: PipelineHome,
    stamp: Stamp,
    verdicts: Sequence[StoredVerdict],
    causes: Sequence[ReconcileCause],
    summary: Mapping[str, Any],
    increment: Increment | None = None,
    write: Callable[[], Written] | None = None,
) -> bool:
    """Store a run's rows, and say whether all that is stored of the run are these.

    Killed and called again with the same run, each table still gets them once: then some are of the earlier attempt.

    The row in `reconciles` is written last: without it the run does not exist for any reader. An incremental run stores
    what it judged; what it builds on is in `increment`.

    Args:
        verdicts: as `stored_verdicts` gives them.
        summary: further columns of `reconciles`.
        write: lets executors write the verdicts and causes that they have; committed together with the others.
    """
    tables, is_own = home.tables, True
    written = Written() if write is None else write()
    if verdicts or written.verdicts or increment is None:
        is_own &= _append_once(tables.verdicts, stamp.run, _verdict_table(stamp, verdicts), written.verdicts)
    if causes or written.causes or increment is None:
        is_own &= _append_once(tables.causes, stamp.run, _cause_table(stamp.run, causes), written.causes)
    row = {
        "_format": FORMAT,
        "run": stamp.run,
        "pipeline": stamp.pipeline,
        "created_at": stamp.created_at,
        "timeline": stamp.timeline,
        "batch": stamp.batch,
        "sequence": stamp.sequence,
        "as_of": stamp.as_of,
        "increment": to_plain(increment),
        **summary,
    }
    plain = {
        name: json.dumps(value, sort_keys=True) if name in _JSON_COLUMNS and value is not None else value
        for name, value in row.items()
    }
    return is_own & _append_once(tables.reconciles, stamp.run, pa.Table.from_pylist([plain], schema=RECONCILES))


def _append_once(path: Place, run: str, rows: pa.Table, files: Sequence[NewFile] = ()) -> bool:
    """Append a run's rows and files, unless the table has rows of this run; say whether they were appended."""
    app = f"reconcile/{run}"
    if Table(path).applied_version(app) is not None:
        return False
    if not files:
        Table(path).append(rows, transactions={app: 1}, widen=True)
        return True
    Table(path).append(rows.slice(0, 0), widen=True)  # a table of 0.1 lacks a column
    own = [Table(path).write_file(rows)] if rows.num_rows else []
    Table(path).append_files([*own, *files], rows.schema, transactions={app: 1})
    return True


@dataclass(frozen=True)
class StoredVerdict:
    """A verdict as it is stored: of one row, or of all rows of a window that agree or are open (`key` is None)."""

    pair: str
    start_ms: int
    end_ms: int
    key: str | None
    verdict: str
    reason: str
    late: int = 0
    dead: int = 0
    rows: int = 1


def stored_verdicts(verdicts: Iterable[RowVerdict]) -> list[StoredVerdict]:
    """Return what is stored of verdicts: one for each row, but those that agree or are open together by window. Pure."""
    alike: Counter[tuple[str, int, int, str, str]] = Counter()
    stored = []
    for verdict in verdicts:
        row = verdict.row
        if verdict.verdict in (Verdict.AGREES, Verdict.OPEN) and not (verdict.late or verdict.dead):
            alike[verdict.pair, row.start_ms, row.end_ms, verdict.verdict, verdict.reason] += 1
            continue
        each = StoredVerdict(verdict.pair, *row, verdict.verdict, verdict.reason, late=verdict.late, dead=verdict.dead)
        stored.append(each)
    return [*stored, *(_together(*what, rows) for what, rows in alike.items())]


def _together(pair: str, start_ms: int, end_ms: int, verdict: str, reason: str, rows: int) -> StoredVerdict:
    return StoredVerdict(pair, start_ms, end_ms, None, verdict, reason, rows=rows)


def verdict_stamps(stamp: Stamp) -> dict[str, Any]:
    """Return the columns of a stored verdict that are the same for all of a run."""
    return {
        "_format": FORMAT,
        "run": stamp.run,
        "as_of": json.dumps(stamp.as_of, sort_keys=True),
        "sequence": stamp.sequence,
        "timeline": stamp.timeline,
        "batch": stamp.batch,
        "bundle": stamp.bundle,
        "created_at": stamp.created_at,
    }


def _verdict_table(stamp: Stamp, verdicts: Sequence[StoredVerdict]) -> pa.Table:
    stamps = verdict_stamps(stamp)
    rows = [
        {
            **stamps,
            "pair": verdict.pair,
            "window_start": from_ms(verdict.start_ms),
            "window_end": from_ms(verdict.end_ms),
            "key": verdict.key,
            "verdict": verdict.verdict,
            "reason": verdict.reason,
            "late": verdict.late,
            "dead": verdict.dead,
            "rows": verdict.rows,
        }
        for verdict in verdicts
    ]
    return pa.Table.from_pylist(rows, schema=VERDICTS)


def cause_fields(cause: ReconcileCause) -> dict[str, Any]:
    """Return the columns of a stored cause, without those that are the same for all of a run."""
    return {
        "pair": cause.pair,
        "window_start": None if cause.row is None else from_ms(cause.row.start_ms),
        "key": None if cause.row is None else cause.row.key,
        "cause": cause.cause,
        "topic": cause.topic,
        "partition": cause.partition,
        "offset": cause.offset,
        "batch": cause.batch,
        "late_watermark_ms": cause.late_watermark_ms,
        "event_time": cause.event_time,
        "detail": cause.detail,
    }


def _cause_table(run: str, causes: Sequence[ReconcileCause]) -> pa.Table:
    rows = [{"_format": FORMAT, "run": run, **cause_fields(cause)} for cause in causes]
    return pa.Table.from_pylist(rows, schema=CAUSES)


def reconcile_runs(home: PipelineHome, since: datetime | None = None) -> list[Row]:
    """Return every finished run, oldest first, with its JSON columns decoded; only those from an instant on, if one is given."""
    wanted = None if since is None else Where("created_at").is_after(to_ms(since) - 1)
    table = Table(home.tables.reconciles).read(matching=wanted)
    return [] if table is None else _decoded(table.sort_by([("created_at", "ascending"), ("run", "ascending")]))


def _decoded(runs: pa.Table) -> list[Row]:
    rows = runs.to_pylist()
    return [{n: json.loads(v) if n in _JSON_COLUMNS and v is not None else v for n, v in row.items()} for row in rows]


def _read_newest(home: PipelineHome) -> Row | None:
    table = Table(home.tables.reconciles).read()
    if table is None or not table.num_rows:
        return None
    return _decoded(table.sort_by([("created_at", "descending"), ("run", "descending")]).slice(0, 1))[0]


def newest_reconcile(home: PipelineHome) -> Row | None:
    """Return the newest finished run, or None; a table without a new commit is not read again."""
    table = home.tables.reconciles
    newest = _NEWEST.get(str(table), (table,), lambda: _read_newest(home))
    return None if newest is None else dict(newest)


def verdict_rows(home: PipelineHome, run: str) -> list[Row]:
    """Return the verdicts that hold for a run, ordered by pair, window and key; some may be of runs that it builds on.

    All rows of a window that agree, or are open, are one verdict without a key (`judgements.rows_of`).
    """
    rows = verdicts_of(home, run)
    return sorted(rows, key=lambda row: (row["pair"], row["window_start"], row["key"] or ""))


def cause_rows(home: PipelineHome, run: str) -> list[Row]:
    """Return the causes that hold for a run, ordered by pair and address; some may be of runs that it builds on."""
    rows = causes_of(home, run)
    return sorted(rows, key=lambda r: (r["pair"], r["cause"], r["topic"] or "", r["partition"] or 0, r["offset"] or 0))


_NEWEST: Remembered[dict[str, Any] | None] = Remembered()
