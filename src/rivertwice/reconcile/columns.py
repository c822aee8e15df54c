"""The columns of kept late rows and dead letters beside their address, compared with the log. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rivertwice.core.instants import from_ms
from rivertwice.definition.definition import Definition
from rivertwice.log.addresses import Part
from rivertwice.reconcile.model import DefectFinding, LateRow
from rivertwice.reconcile.view import HeadView

RecordPlace = tuple[Part, int]
"""(part, offset)."""


@dataclass(frozen=True)
class Contents:
    """What the log holds at the addresses of late records and dead letters: column to value, by address."""

    late: Mapping[RecordPlace, Mapping[str, Any]] = field(default_factory=dict)
    dead: Mapping[RecordPlace, Mapping[str, Any]] = field(default_factory=dict)


def check_late_columns(view: HeadView, derived: Sequence[LateRow], contents: Contents) -> list[DefectFinding]:
    """Compare every column of the late rows whose records were really late; `check_late_rows` names all others."""
    definition = view.newest.definition
    if not definition.late.keeps_rows or view.late is None:
        return []
    is_aligned = definition.window.kind.is_aligned
    number_of = {row.batch: number for number, row in enumerate(view.rows)}
    newest = {number for number, group in enumerate(view.groups) if group == view.groups[-1]}
    expected_columns: dict[tuple[int, Part, int, Any], dict[str, Any]] = {}
    for late_row in derived:
        if number_of[late_row.batch] not in newest:
            continue
        part = Part(late_row.topic, late_row.partition)
        columns: dict[str, Any] = {
            **_window_of(definition, late_row),
            "event_time": late_row.event_time,
            "late_watermark": from_ms(late_row.late_watermark_ms),
            **contents.late.get((part, late_row.offset), {}),
        }
        start = from_ms(late_row.row.start_ms) if is_aligned else None
        expected_columns[number_of[late_row.batch], part, late_row.offset, start] = columns
    findings = []
    for row in view.late.to_pylist():
        number, part = view.index.get((row["_timeline"], row["_batch"])), Part(row["topic"], row["partition"])
        start = _plain(row["window_start"]) if is_aligned else None
        if number is None:
            continue
        expected = expected_columns.get((number, part, row["offset"], start))
        if expected is not None:
            findings += _differences(view, number, part, row, expected, "late_rows", "the late row of record")
    return findings


def _window_of(definition: Definition, late_row: LateRow) -> dict[str, datetime]:
    """Return the window under which a late record is kept; if events begin windows, the window of the record alone."""
    if definition.window.kind.is_aligned:
        return {"window_end": from_ms(late_row.row.end_ms)}
    return {"window_start": late_row.event_time, "window_end": late_row.event_time + definition.window.length}


def check_dead_columns(view: HeadView, contents: Contents) -> list[DefectFinding]:
    """Compare the columns of the dead letters that must exist; `check_dead_letters` names all others.

    `detail` is not compared, because its words may change with a version, nor are the record's bytes, which may be large.
    """
    findings = []
    for row in [] if view.dead is None else view.dead.to_pylist():
        number, part = view.index.get((row["_timeline"], row["_batch"])), Part(row["topic"], row["partition"])
        columns = contents.dead.get((part, row["offset"]))
        if number is not None and columns is not None:
            findings += _differences(view, number, part, row, columns, "dead_letters", "dead letter")
    return findings


def _differences(
    view: HeadView,
    number: int,
    part: Part,
    row: Mapping[str, Any],
    columns: Mapping[str, Any],
    kind: str,
    what: str,
) -> list[DefectFinding]:
    batch = view.rows[number]
    line = view.copies.timelines.get(batch.timeline)
    origin = {} if line is None else {"cluster_id": line.cluster_id, "topic_id": line.topic_ids.get(part.topic)}
    where = f"{what} {part.topic}/{part.partition}@{row['offset']} (batch {batch.batch})"
    return [
        DefectFinding(
            kind,
            f"{where}: {name} is {row[name]}, the log says {expected}",
            batch.batch,
            part.topic,
            part.partition,
            row["offset"],
        )
        for name, expected in {**columns, **origin}.items()
        if name in row and _plain(row[name], name) != _plain(expected, name)
    ]


def _plain(value: Any, name: str = "") -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    if name == "fields" and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
