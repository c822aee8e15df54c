"""What does not agree, as a list: open trouble first, what waits after it, and what was repaired folded away, newest first.

A row is *open trouble* if what is served of it is DEFECT, NOT_COMPARABLE or LATE. It is *repaired* if the stream's row differs and
what is served agrees. It *waits* while its window is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core.instants import from_ms, to_iso, to_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition
from rivertwice.read.heatmap import axis_key, key_label, moved_after
from rivertwice.read.serving import Runs, Serving, open_serving, read_run, read_runs
from rivertwice.storage import Remembered
from rivertwice.timeline.judgements import read_causes, read_verdicts, rows_of
from rivertwice.timeline.lineage import head_path
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served_rows import publications_of
from rivertwice.timeline.verdicts import AGREES, BY_GRAVITY, DEFECT, LATE, NOT_COMPARABLE, OPEN

ROWS = 50
CAUSES = 5
TREND = 30
_DIFFERS = (DEFECT, NOT_COMPARABLE, LATE)


@dataclass(frozen=True)
class Trouble:
    """Rows that do not agree, by what is to be done.

    Attributes:
        open: what is served differs, the worst first. repaired: only the stream's row differs, the newest first.
        waiting: windows that are open, with the number of their rows, the newest first.
        totals: how many there are of each, however few are kept.
    """

    open: tuple[Mapping[str, Any], ...]
    repaired: tuple[Mapping[str, Any], ...]
    waiting: tuple[Mapping[str, Any], ...]
    totals: Mapping[str, int]


def describe_correctness(settings: Settings, name: str) -> dict[str, Any]:
    """Return the newest reconcile with its balance, the trend, and what does not agree."""
    serving = open_serving(settings, name)
    runs = read_runs(serving.home)
    if serving.definition is None or runs is None:
        return {"name": name, "run": None}
    run = read_run(serving.home, runs.newest["run"])
    entries = read_sequence(serving.home)
    trouble = _trouble(serving, serving.definition, runs)
    later = [each for each in publications_of(entries) if each.seq > run["sequence"]]
    return {
        "name": serving.home.root.name,
        "run": {
            "run": run["run"],
            "at": to_iso(run["created_at"]),
            "timeline": run["timeline"],
            "batch": run["batch"],
            "sequence": run["sequence"],
            "counts": run["counts"],
            "balance": run["balance"],
            "late_by_partition": run["late_by_partition"],
            "gate": {"passed": run["gate"]["passed"], "alerts": run["gate"]["alerts"]},
            "duration_s": run["duration_s"],
            "moved": moved_after(entries, head_path(serving.home), run),
            "published": len(later),
        },
        "trend": [
            {"run": each["run"], "at": to_iso(each["created_at"]), "counts": each["counts"]}
            for each in runs.brief[-TREND:]
        ],
        "open": [_with_causes(serving, runs, row, later) for row in trouble.open],
        "repaired": [_plain(row) for row in trouble.repaired],
        "waiting": [_plain(row) for row in trouble.waiting],
        "totals": dict(trouble.totals),
    }


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
    waiting = rows.filter(pc.and_(pc.equal(rows["verdict"], OPEN), pc.is_null(rows["key"])))
    others = rows.filter(pc.and_(pc.is_valid(rows["key"]), pc.equal(rows["verdict"], AGREES)))
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
        limit: how many of each are kept.
    """
    by_row: dict[tuple[Any, ...], dict[str, Any]] = {}
    for verdict in rows:
        address = (verdict["window_start"], verdict["window_end"], verdict["key"])
        row = by_row.setdefault(
            address,
            {"start": address[0], "end": address[1], "key": address[2], "pairs": {}, "late": 0, "reason": ""},
        )
        row["pairs"][verdict["pair"]] = verdict["verdict"]
        row["late"] = max(row["late"], verdict["late"] or 0)
        if verdict["pair"] == "served" or not row["reason"]:
            row["reason"] = verdict["reason"] or row["reason"]
    open_rows = [row for row in by_row.values() if row["pairs"].get("served") in _DIFFERS]
    repaired = [
        row
        for row in by_row.values()
        if row["pairs"].get("stream") in _DIFFERS and row["pairs"].get("served", AGREES) == AGREES
    ]
    open_rows.sort(
        key=lambda row: (BY_GRAVITY.index(row["pairs"]["served"]), -row["late"], -to_ms(row["start"]), row["key"] or "")
    )
    repaired.sort(key=lambda row: (-to_ms(row["start"]), row["key"] or ""))
    windows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for verdict in waiting:
        window = (verdict["window_start"], verdict["window_end"])
        row = windows.setdefault(window, {"start": window[0], "end": window[1], "rows": 0})
        row["rows"] = max(row["rows"], rows_of(verdict))
    newest = sorted(windows.values(), key=lambda row: -to_ms(row["start"]))
    totals = {"open": len(open_rows), "repaired": len(repaired), "waiting": len(newest)}
    return Trouble(tuple(open_rows[:limit]), tuple(repaired[:limit]), tuple(newest[:limit]), totals)


def _labelled(row: Mapping[str, Any], definition: Definition) -> Mapping[str, Any]:
    label = "all rows" if row["key"] is None else key_label(axis_key(row["key"], definition))
    return {**row, "label": label}


def _with_causes(serving: Serving, runs: Runs, row: Mapping[str, Any], later: Sequence[Any]) -> dict[str, Any]:
    """Return a row with its causes by address, and the publication that came after the verdict and covers its window."""
    start_ms = to_ms(row["start"])
    rows = read_causes_of(serving, runs, start_ms)
    own = [cause for cause in rows if cause["key"] == row["key"] and cause["window_start"] == row["start"]]
    by_place = {(cause["cause"], cause["topic"], cause["partition"], cause["offset"]): cause for cause in own}
    listed = [describe_cause(cause) for cause in list(by_place.values())[:CAUSES]]
    published = next(
        (each.backfill for each in reversed(later) if any(low <= start_ms < high for low, high in each.ranges)), None
    )
    return {**_plain(row), "causes": listed, "more": max(0, len(by_place) - CAUSES), "published": published}


def read_causes_of(serving: Serving, runs: Runs, start_ms: int) -> list[dict[str, Any]]:
    """Return the causes of the rows of a window, each read once while no reconcile is added."""
    tables = serving.home.tables
    key = (str(tables.causes), runs.newest["run"], start_ms)

    def read() -> list[dict[str, Any]]:
        found = read_causes(serving.home, runs.chain, [(start_ms, start_ms + 1)])
        return [] if found is None else list(found.to_pylist())

    return _CAUSES.get(key, (tables.causes, tables.reconciles), read)


def describe_cause(cause: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored cause for people: what, of which record, read by which batch. Pure."""
    address = None if cause["offset"] is None else f"{cause['topic']}/{cause['partition']}@{cause['offset']}"
    watermark = cause["late_watermark_ms"]
    return {
        "cause": cause["cause"],
        "address": address,
        "batch": cause["batch"],
        "event_time": None if cause["event_time"] is None else to_iso(cause["event_time"]),
        "watermark": None if watermark is None else to_iso(from_ms(watermark)),
        "detail": cause["detail"],
    }


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "start": to_iso(row["start"]), "end": to_iso(row["end"])}


_TROUBLE: Remembered[Trouble] = Remembered(32)
_CAUSES: Remembered[list[dict[str, Any]]] = Remembered(256)
