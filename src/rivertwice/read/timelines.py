"""The timelines of a pipeline as a drawing: lanes, forks, the head's path, head moves, publications. Bounded, whatever the history.

`draw_timelines` is pure. The horizontal place of a batch is not to scale: between two batches at which something happened, the width
grows with the logarithm of their number, so that a fork after a year can be seen beside one of today.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.agent import observe_stream
from rivertwice.core import PipelineHome, Settings, iso_of_ms, to_iso
from rivertwice.timeline import (
    Acceptance,
    Entry,
    EntryKind,
    Segment,
    Timeline,
    committed_batches,
    every_batch,
    head_path,
    path_of,
    read_sequence,
    select_head,
)
from rivertwice.versions import Step, StoredComparison, VersionView, view_versions

MOST_ON_PATH = 10
"""Newest timelines of the head's path that are drawn."""
MOST_OFF_PATH = 6
"""Newest other timelines that are drawn."""
MOST_MARKS = 40
"""Newest head moves, and newest publications, that are drawn."""
START, RESTORE, UPGRADE, REWIND, GAP, OTHER = "start", "restore", "upgrade", "rewind", "gap", "other"
_WAYS = (
    ("first start", START),
    ("restore from", RESTORE),
    ("planned restore from", RESTORE),
    ("upgrade to", UPGRADE),
    ("planned upgrade to", UPGRADE),
    ("rewind to", REWIND),
    ("went on past", GAP),
)


@dataclass(frozen=True)
class Lane:
    """One timeline.

    Attributes:
        parent, fork: the timeline that it left and the last batch that it shares with it; None: it began with the log.
        first: number of its own first batch; last: of its newest one, None if it has none yet.
        way: why the head moved to it (`start`, `restore`, `upgrade`, `rewind`, `gap`), `other` if it never was the head.
        serves: first and last batch of it on the head's path; None: none of its batches counts.
        text: what it serves, in words.
        changed: parts of the definition's fingerprint in which it differs from its parent.
    """

    timeline: str
    parent: str | None
    fork: int | None
    first: int
    last: int | None
    created_at: str
    way: str
    is_head: bool
    serves: tuple[int, int] | None
    text: str
    bundle: str
    changed: tuple[str, ...]


@dataclass(frozen=True)
class TimelineDot:
    """A head move or a publication, at the newest batch of the timeline that served when it happened."""

    seq: int
    kind: str
    way: str
    at: str
    timeline: str
    batch: int
    text: str


@dataclass(frozen=True)
class Drawing:
    """What is drawn.

    Attributes:
        head: the timeline that serves; None before the first start.
        newest: the newest batch of the head's path.
        lanes: in order of creation.
        marks: by their number in the sequence.
        scale: batch numbers with their horizontal place from 0 to 1; between two of them it is linear.
        left_out: how many timelines, head moves and publications are older and not drawn.
    """

    head: str | None
    newest: int | None
    lanes: tuple[Lane, ...]
    marks: tuple[TimelineDot, ...]
    scale: tuple[tuple[int, float], ...]
    left_out: Mapping[str, int]


def view_timelines(home: PipelineHome) -> Drawing:
    """Read the records of the timelines that are drawn, and the sequence; nothing else is read whole."""
    entries = read_sequence(home)
    head = select_head(entries)
    if head is None:
        return Drawing(None, None, (), (), (), {"timelines": 0, "moves": 0, "publications": 0})
    path = path_of(home, head)
    names = Timeline.names(home)
    shown = select_shown(names, [segment.timeline for segment in path])
    batches = _by_timeline(every_batch(home), shown)
    return draw_timelines(
        [Timeline.load(home, name) for name in shown],
        {name: int(numbers[-1]) for name, (numbers, _) in batches.items() if len(numbers)},
        path,
        entries,
        lambda name, instant: _newest_at(batches.get(name), instant),
        left_out=len(names) - len(shown),
    )


def select_shown(names: Sequence[str], path: Sequence[str]) -> list[str]:
    """Return the timelines that are drawn, in order of creation: the newest of the head's path, and the newest others. Pure."""
    others = [name for name in names if name not in path]
    chosen = {*path[-MOST_ON_PATH:], *others[-MOST_OFF_PATH:]}
    return [name for name in names if name in chosen]


def draw_timelines(
    lines: Sequence[Timeline],
    newest: Mapping[str, int],
    path: Sequence[Segment],
    entries: Sequence[Entry],
    newest_at: Callable[[str, datetime], int | None],
    *,
    left_out: int = 0,
) -> Drawing:
    """Draw the timelines of a pipeline. Pure.

    Args:
        lines: the records of the timelines that are drawn, in order of creation.
        newest: timeline to the number of its newest own batch; one without a batch is left out.
        path: the head's path, root first.
        newest_at: returns the newest own batch of a timeline at an instant, None if it had none.
    """
    by_name = {line.timeline: line for line in lines}
    head = path[-1].timeline
    moves = {entry.payload["timeline"]: entry for entry in reversed(entries) if entry.kind == EntryKind.HEAD}
    lanes = tuple(_lane(line, by_name, newest, path, moves.get(line.timeline)) for line in lines)
    marks, skipped = _marks(entries, by_name, newest_at)
    last = max((lane.serves[1] for lane in lanes if lane.serves is not None), default=None)
    return Drawing(head, last, lanes, marks, scale_of(_places(lanes, marks)), {"timelines": left_out, **skipped})


def way_of(reason: str) -> str:
    """Return the kind of a head move from its stored reason. Pure."""
    return next((way for start, way in _WAYS if reason.startswith(start)), OTHER)


def scale_of(batches: Iterable[int]) -> tuple[tuple[int, float], ...]:
    """Return each batch with its horizontal place from 0 to 1, in order; gaps count by their logarithm. Pure."""
    ordered = sorted(set(batches))
    if len(ordered) < 2:
        return tuple((batch, 0.0) for batch in ordered)
    widths = [math.log2(1 + later - earlier) for earlier, later in pairwise(ordered)]
    places, at = [0.0], 0.0
    for width in widths:
        at += width
        places.append(at)
    return tuple((batch, round(place / at, 4)) for batch, place in zip(ordered, places, strict=True))


def _lane(
    line: Timeline,
    lines: Mapping[str, Timeline],
    newest: Mapping[str, int],
    path: Sequence[Segment],
    move: Entry | None,
) -> Lane:
    name, last = line.timeline, newest.get(line.timeline)
    parent = None if line.parent is None else lines.get(line.parent.timeline)
    serves = _served_part(name, last, path)
    return Lane(
        timeline=name,
        parent=None if line.parent is None else line.parent.timeline,
        fork=None if line.parent is None else line.parent.batch,
        first=line.first_batch,
        last=last,
        created_at=to_iso(line.created_at),
        way=OTHER if move is None else way_of(str(move.payload["reason"])),
        is_head=name == path[-1].timeline,
        serves=serves,
        text=describe_serving(serves, last, is_head=name == path[-1].timeline),
        bundle=line.bundle[:12],
        changed=() if parent is None else _changed(line, parent),
    )


def _served_part(name: str, last: int | None, path: Sequence[Segment]) -> tuple[int, int] | None:
    segment = next((part for part in path if part.timeline == name), None)
    if segment is None or last is None:
        return None
    end = last if segment.last is None else min(segment.last, last)
    return (segment.first, end) if segment.first <= end else None


def describe_serving(serves: tuple[int, int] | None, last: int | None, *, is_head: bool) -> str:
    """Return in words what a timeline serves. Pure."""
    if serves is None:
        return "the head; it has no batch itself yet" if is_head else "not served: none of its batches counts"
    first, end = serves
    text = f"serves what batches {first} to {end} emitted" if first != end else f"serves what batch {first} emitted"
    lost = (last or end) - end
    return text if not lost else f"{text}; {lost} later {'batch counts' if lost == 1 else 'batches count'} no more"


def _changed(line: Timeline, parent: Timeline) -> tuple[str, ...]:
    parts = ("state", "semantics", "decode")
    return tuple(part for part in parts if line.fingerprint.get(part) != parent.fingerprint.get(part))


def _marks(
    entries: Sequence[Entry],
    lines: Mapping[str, Timeline],
    newest_at: Callable[[str, datetime], int | None],
) -> tuple[tuple[TimelineDot, ...], dict[str, int]]:
    """Return the newest marks on timelines that are drawn, and how many head moves and publications are left out."""
    moves, publications = [], []
    head = None
    for entry in entries:
        if entry.kind == EntryKind.HEAD:
            head = str(entry.payload["timeline"])
            moves.append((entry, head))
        elif entry.kind == EntryKind.PUBLICATION and head is not None:
            publications.append((entry, head))
    chosen = [*moves[-MOST_MARKS:], *publications[-MOST_MARKS:]]
    marks = [_mark(entry, lines[name], newest_at) for entry, name in chosen if name in lines]
    drawn = {kind: sum(mark.kind == kind for mark in marks) for kind in (EntryKind.HEAD, EntryKind.PUBLICATION)}
    skipped = {
        "moves": len(moves) - drawn[EntryKind.HEAD],
        "publications": len(publications) - drawn[EntryKind.PUBLICATION],
    }
    return tuple(sorted(marks, key=lambda mark: mark.seq)), skipped


def _mark(entry: Entry, line: Timeline, newest_at: Callable[[str, datetime], int | None]) -> TimelineDot:
    if entry.kind == EntryKind.HEAD:
        reason = str(entry.payload["reason"])
        batch, way, text = line.first_batch, way_of(reason), f"{line.timeline} serves: {reason}"
    else:
        own = newest_at(line.timeline, entry.created_at)
        batch, way = line.first_batch if own is None else own, EntryKind.PUBLICATION
        text = describe_publication(entry.payload)
    return TimelineDot(entry.seq, entry.kind, way, to_iso(entry.created_at), line.timeline, batch, text)


def describe_publication(payload: Mapping[str, Any]) -> str:
    """Return in words what a publication covers. Pure."""
    ranges = payload["ranges"]
    first, last = min(start for start, _ in ranges), max(end for _, end in ranges)
    number = f"{len(ranges)} range{'s'[: len(ranges) != 1]} of windows"
    return f"{payload['backfill']}: {number} from {iso_of_ms(first)} to {iso_of_ms(last)}"


def _places(lanes: Sequence[Lane], marks: Sequence[TimelineDot]) -> Iterable[int]:
    for lane in lanes:
        yield from (lane.first, lane.first if lane.last is None else lane.last)
        if lane.fork is not None:
            yield lane.fork
        if lane.serves is not None:
            yield from lane.serves
    for mark in marks:
        yield mark.batch


def _by_timeline(table: pa.Table, names: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """Return timeline to its batch numbers and, in epoch microseconds, when they were committed; both in order of the batches."""
    found = {}
    for name in names:
        rows = table.filter(pc.equal(table["timeline"], name)).select(["batch", "committed_at"]).sort_by("batch")
        stamps = rows["committed_at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        found[name] = (rows["batch"].to_numpy(), stamps.to_numpy())
    return found


def _newest_at(own: tuple[Any, Any] | None, instant: datetime) -> int | None:
    if own is None or not len(own[0]):
        return None
    place = int(np.searchsorted(own[1], int(instant.timestamp() * 1_000_000), side="right"))
    return int(own[0][place - 1]) if place else None


# The versions of a pipeline side by side: what each serves, how far it is proved, how it compares, and what to do next.


@dataclass(frozen=True)
class ExampleRow:
    """A row without a cause, by its window and kind; its values are not shown."""

    start: str
    end: str
    kind: str


@dataclass(frozen=True)
class ComparisonView:
    """A comparison of a version with the one that serves.

    Attributes:
        start, end: the windows that were compared. left_out: windows that only one of them has.
        reasons: why it did not pass. different: why rows cannot be compared at all.
    """

    run: str
    at: datetime
    by: str
    beside: str
    start: str | None
    end: str | None
    passed: bool
    counts: Mapping[str, int]
    left_out: int
    reasons: Sequence[str]
    different: Sequence[str]
    examples: tuple[ExampleRow, ...]


@dataclass(frozen=True)
class VersionRow:
    """A version beside others: since when it serves, when it began, its stream, how far it is proved, and what to do next."""

    name: str
    serves: bool
    since: str | None
    began: str | None
    state: str
    batches: int
    proved_until: str | None
    comparison: ComparisonView | None
    accepted: Acceptance | None
    next: Step


def describe_versions(settings: Settings, pipeline: str, now: datetime) -> list[VersionRow]:
    """Return a row for each open version, the first one too; none if there is no other."""
    if not settings.pipeline(pipeline).is_first_version:
        return []
    return [_row(settings, view, now) for view in view_versions(settings, pipeline)]


def _row(settings: Settings, view: VersionView, now: datetime) -> VersionRow:
    home = settings.pipeline(view.name)
    return VersionRow(
        name=view.name,
        serves=view.serves,
        since=view.since,
        began=view.began,
        state=observe_stream(settings, view.name, now).state,
        batches=len(committed_batches(home, head_path(home))),
        proved_until=view.proved_until,
        comparison=None if view.comparison is None else describe_comparison(view.comparison),
        accepted=view.accepted,
        next=view.next,
    )


def describe_comparison(stored: StoredComparison) -> ComparisonView:
    """Return what is shown of a comparison. Pure; rows without a cause are named by their window and kind, not by their values."""
    return ComparisonView(
        run=stored.run,
        at=stored.created_at,
        by=stored.by,
        beside=stored.beside,
        start=stored.start,
        end=stored.end,
        passed=stored.passed,
        counts=stored.counts,
        left_out=stored.left_out_windows,
        reasons=stored.reasons,
        different=stored.different,
        examples=tuple(ExampleRow(row["window_start"], row["window_end"], row["kind"]) for row in stored.examples[:5]),
    )
