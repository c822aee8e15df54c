"""What does not agree, as a list: open trouble first, what waits after it, and what was repaired folded away, newest first.

A row is *open trouble* if what is served of it is DEFECT, NOT_COMPARABLE or LATE. It is *repaired* if the stream's row differs and
what is served agrees. It *waits* while its window is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import Row, Settings, from_ms, to_ms
from rivertwice.definition import Definition
from rivertwice.read.heatmap import NotCompared, axis_key, key_label, moved_after
from rivertwice.read.serving import Runs, Serving, open_serving, read_run, read_runs
from rivertwice.storage import Remembered
from rivertwice.timeline import (
    Publication,
    Verdict,
    head_path,
    publications_of,
    read_causes,
    read_sequence,
    read_verdicts,
    rows_of,
)

ROWS = 50
CAUSES = 5
TREND = 30
_DIFFERS = (Verdict.DEFECT, Verdict.NOT_COMPARABLE, Verdict.LATE)


@dataclass
class TroubleRow:
    """A row that does not agree: its window and key, pair to verdict, late records, the reason, and the key in words."""

    start: datetime
    end: datetime
    key: str | None
    pairs: dict[str, str] = field(default_factory=dict)
    late: int = 0
    reason: str = ""
    label: str = ""


@dataclass(frozen=True)
class CauseView:
    """A stored cause for people: what, of which record, read by which batch."""

    cause: str
    address: str | None
    batch: int | None
    event_time: datetime | None
    watermark: datetime | None
    detail: str | None


@dataclass
class OpenRow(TroubleRow):
    """A row whose served value differs: its first causes, how many more there are, and the backfill published since."""

    causes: tuple[CauseView, ...] = ()
    more: int = 0
    published: str | None = None


@dataclass
class WaitingWindow:
    """A window that is open, and how many rows it has."""

    start: datetime
    end: datetime
    rows: int = 0


@dataclass(frozen=True)
class RunView:
    """The newest reconcile.

    Attributes:
        counts: pair to verdict to rows. balance: where the records ended up. gate: what it found; both as stored.
        moved: that the head left what it saw, and where to. published: publications since.
    """

    run: str
    at: datetime
    timeline: str
    batch: int
    sequence: int
    counts: Mapping[str, Mapping[str, int]]
    balance: Mapping[str, Any]
    gate: Mapping[str, Any]
    duration_s: float
    moved: str | None
    published: int


@dataclass(frozen=True)
class TrendPoint:
    """A reconcile in the trend."""

    run: str
    at: datetime
    counts: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Correctness:
    """The newest reconcile with its balance, the trend, and what does not agree; totals: how many rows of each list there are."""

    name: str
    run: RunView
    trend: tuple[TrendPoint, ...]
    open: tuple[OpenRow, ...]
    repaired: tuple[TroubleRow, ...]
    waiting: tuple[WaitingWindow, ...]
    totals: Mapping[str, int]


@dataclass(frozen=True)
class Trouble:
    """Rows that do not agree, by what is to be done.

    Attributes:
        open: what is served differs, the worst first. repaired: only the stream's row differs, the newest first.
        waiting: windows that are open, with the number of their rows, the newest first.
        totals: how many there are of each, however few are kept.
    """

    open: tuple[TroubleRow, ...]
    repaired: tuple[TroubleRow, ...]
    waiting: tuple[WaitingWindow, ...]
    totals: Mapping[str, int]


def describe_correctness(settings: Settings, name: str) -> Correctness | NotCompared:
    """Return the newest reconcile with its balance, the trend, and what does not agree."""
    serving = open_serving(settings, name)
    runs = read_runs(serving.home)
    if serving.definition is None or runs is None:
        return NotCompared(name)
    run = read_run(serving.home, runs.newest["run"])
    entries = read_sequence(serving.home)
    trouble = _trouble(serving, serving.definition, runs)
    later = [each for each in publications_of(entries) if each.seq > run["sequence"]]
    return Correctness(
        name=serving.home.root.name,
        run=RunView(
            run=run["run"],
            at=run["created_at"],
            timeline=run["timeline"],
            batch=run["batch"],
            sequence=run["sequence"],
            counts=run["counts"],
            balance=run["balance"],
            gate=run["gate"],
            duration_s=run["duration_s"],
            moved=moved_after(entries, head_path(serving.home), run),
            published=len(later),
        ),
        trend=tuple(TrendPoint(each["run"], each["created_at"], each["counts"]) for each in runs.brief[-TREND:]),
        open=tuple(_with_causes(serving, runs, row, later) for row in trouble.open),
        repaired=trouble.repaired,
        waiting=trouble.waiting,
        totals=trouble.totals,
    )


def _trouble(serving: Serving, definition: Definition, runs: Runs) -> Trouble:
    tables = serving.home.tables
    key = (str(tables.verdicts), runs.newest["run"])
    return _TROUBLE.get(key, (tables.verdicts, tables.reconciles), lambda: _read_trouble(serving, definition, runs))


def _read_trouble(serving: Serving, definition: Definition, runs: Runs) -> Trouble:
    """Read the rows of the newest reconcile that do not agree; they are few beside those that do, and kept until the next one."""
    rows = read_verdicts(serving.home, runs.chain, None)
    if rows is None:
        return Trouble((), (), (), {})
    differing = rows.filter(pc.is_in(rows["verdict"], pa.array(_DIFFERS)))
    waiting = rows.filter(pc.and_(pc.equal(rows["verdict"], Verdict.OPEN), pc.is_null(rows["key"])))
    others = rows.filter(pc.and_(pc.is_valid(rows["key"]), pc.equal(rows["verdict"], Verdict.AGREES)))
    found = sort_trouble([*differing.to_pylist(), *others.to_pylist()], waiting.to_pylist())
    return Trouble(
        tuple(_labelled(row, definition) for row in found.open),
        tuple(_labelled(row, definition) for row in found.repaired),
        found.waiting,
        found.totals,
    )


def sort_trouble(rows: Iterable[Mapping[str, Any]], waiting: Iterable[Mapping[str, Any]], limit: int = ROWS) -> Trouble:
    """Return rows that do not agree by what is to be done about them. Pure.

    Args:
        rows: verdicts on single rows, of both pairs.
        waiting: verdicts OPEN on all rows of a window.
    """
    by_row: dict[tuple[Any, ...], TroubleRow] = {}
    for verdict in rows:
        address = (verdict["window_start"], verdict["window_end"], verdict["key"])
        row = by_row.setdefault(address, TroubleRow(*address))
        row.pairs[verdict["pair"]] = verdict["verdict"]
        row.late = max(row.late, verdict["late"] or 0)
        if verdict["pair"] == "served" or not row.reason:
            row.reason = verdict["reason"] or row.reason
    open_rows = [row for row in by_row.values() if row.pairs.get("served") in _DIFFERS]
    repaired = [
        row
        for row in by_row.values()
        if row.pairs.get("stream") in _DIFFERS and row.pairs.get("served", Verdict.AGREES) == Verdict.AGREES
    ]
    open_rows.sort(
        key=lambda row: (Verdict.BY_GRAVITY.index(row.pairs["served"]), -row.late, -to_ms(row.start), row.key or "")
    )
    repaired.sort(key=lambda row: (-to_ms(row.start), row.key or ""))
    windows: dict[tuple[Any, ...], WaitingWindow] = {}
    for verdict in waiting:
        bounds = (verdict["window_start"], verdict["window_end"])
        window = windows.setdefault(bounds, WaitingWindow(*bounds))
        window.rows = max(window.rows, rows_of(verdict))
    newest = sorted(windows.values(), key=lambda window: -to_ms(window.start))
    totals = {"open": len(open_rows), "repaired": len(repaired), "waiting": len(newest)}
    return Trouble(tuple(open_rows[:limit]), tuple(repaired[:limit]), tuple(newest[:limit]), totals)


def _labelled(row: TroubleRow, definition: Definition) -> TroubleRow:
    return replace(row, label="all rows" if row.key is None else key_label(axis_key(row.key, definition)))


def _with_causes(serving: Serving, runs: Runs, row: TroubleRow, later: Sequence[Publication]) -> OpenRow:
    """Return a row with its causes by address, and the publication that came after the verdict and covers its window."""
    start_ms = to_ms(row.start)
    rows = read_causes_of(serving, runs, start_ms)
    own = [cause for cause in rows if cause["key"] == row.key and cause["window_start"] == row.start]
    by_place = {(cause["cause"], cause["topic"], cause["partition"], cause["offset"]): cause for cause in own}
    listed = tuple(describe_cause(cause) for cause in list(by_place.values())[:CAUSES])
    published = next(
        (each.backfill for each in reversed(later) if any(low <= start_ms < high for low, high in each.ranges)), None
    )
    return OpenRow(**vars(row), causes=listed, more=max(0, len(by_place) - CAUSES), published=published)


def read_causes_of(serving: Serving, runs: Runs, start_ms: int) -> Sequence[Row]:
    """Return the causes of the rows of a window, each read once while no reconcile is added."""
    tables = serving.home.tables
    key = (str(tables.causes), runs.newest["run"], start_ms)

    def read() -> Sequence[Row]:
        found = read_causes(serving.home, runs.chain, [(start_ms, start_ms + 1)])
        return [] if found is None else list(found.to_pylist())

    return _CAUSES.get(key, (tables.causes, tables.reconciles), read)


def describe_cause(cause: Row) -> CauseView:
    """Return a stored cause for people. Pure."""
    address = None if cause["offset"] is None else f"{cause['topic']}/{cause['partition']}@{cause['offset']}"
    watermark = cause["late_watermark_ms"]
    judged_by = None if watermark is None else from_ms(watermark)
    return CauseView(cause["cause"], address, cause["batch"], cause["event_time"], judged_by, cause["detail"])


_TROUBLE: Remembered[Trouble] = Remembered(32)
_CAUSES: Remembered[Sequence[Row]] = Remembered(256)
