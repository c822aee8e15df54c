"""A pipeline's tables in memory, for tests of delivery: timelines, batches, publications, and what all of it serves."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core.instants import from_ms
from rivertwice.deliver.model import (
    BEFORE_ALL,
    WITHDRAW,
    Committed,
    DeliveredColumns,
    DeliveredRecord,
    Line,
    Position,
    View,
)
from rivertwice.deliver.plan import Limits, is_continued, plan_next
from rivertwice.deliver.records import records_of, rows_at
from rivertwice.timeline.lineage import Segment
from rivertwice.timeline.serving import Publication, select_served

SHAPE = DeliveredColumns("p", "window_start", "window_end", ("k",), ("n",))
SESSIONS = DeliveredColumns("p", "window_start", "window_end", ("k",), ("n",), sessions=True)
WINDOW = 1000
_FIELDS = [
    ("window_start", pa.timestamp("us", "UTC")),
    ("window_end", pa.timestamp("us", "UTC")),
    ("k", pa.string()),
    ("n", pa.int64()),
]
CHANGELOG = pa.schema([("_timeline", pa.string()), ("_batch", pa.int64()), *_FIELDS])
CORRECTIONS = pa.schema([("_backfill", pa.string()), ("_withdrawn", pa.bool_()), *_FIELDS])
Row = tuple[int, str, int] | tuple[int, str, int, int]
"""Window's start, key, value; of a session its end."""


def result_row(row: Row) -> dict[str, object]:
    start, key, value, *more = row
    end = more[0] if more else start + WINDOW
    return {"window_start": from_ms(start), "window_end": from_ms(end), "k": key, "n": value}


@dataclass
class World:
    """What the tables hold. Batches are numbered along a path, as Spark does."""

    lines: dict[str, Line] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    batches: dict[str, list[Committed]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    corrected: list[dict[str, object]] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
    head: str = ""
    seq: int = 0
    shape: DeliveredColumns = SHAPE
    version: str = ""

    def begin(self, name: str, parent: tuple[str, int] | None = None, semantics: str = "s") -> None:
        """Record a timeline, behind a batch of its parent's path if it has one."""
        path: list[Segment] = []
        if parent is not None:
            line, batch = self.lines[parent[0]], parent[1]
            for part in line.path:
                if part.first <= batch:
                    last = batch if part.last is None else min(part.last, batch)
                    path.append(Segment(part.timeline, part.first, last))
        first = 0 if parent is None else parent[1] + 1
        self.own[name] = semantics
        path.append(Segment(name, first, None))
        serving = frozenset(self.own[part.timeline] for part in path)
        self.lines[name] = Line(name, f"born-{name}", tuple(path), serving, self.version)
        self.batches[name] = []

    def commit(self, name: str, closed_ms: int, rows: Iterable[Row]) -> None:
        """Commit the next batch of a timeline."""
        number = self.lines[name].path[-1].first + len(self.batches[name])
        mine = [{"_timeline": name, "_batch": number, **result_row(row)} for row in rows]
        self.rows += mine
        self.batches[name].append(Committed(name, number, closed_ms, len(mine)))

    def move_head(self, name: str) -> None:
        self.head = name
        self.seq += 1

    def publish(self, ranges: Iterable[tuple[int, int]], rows: Iterable[Row], semantics: str = "s") -> None:
        self.seq += 1
        backfill = f"bf-{self.seq}"
        self.corrected += [{"_backfill": backfill, **result_row(row)} for row in rows]
        self.publications.append(Publication(self.seq, backfill, tuple(ranges), semantics, "b", {}))

    def path_batches(self, name: str) -> list[Committed]:
        return [
            batch
            for part in self.lines[name].path
            for batch in self.batches[part.timeline]
            if part.contains(part.timeline, batch.batch)
        ]

    def closed(self, name: str) -> int:
        found = self.path_batches(name)
        return found[-1].closed_ms if found else BEFORE_ALL

    def look(self, position: Position | None) -> View | None:
        """What `StoredSource.look` does, in memory."""
        if not self.head:
            return None
        line, found = self.lines[self.head], self.path_batches(self.head)
        publications = tuple(self.publications)
        if position is None:
            return View(line, tuple(found), publications, self.seq)
        held = self.lines[position.timeline]
        closed = next(
            batch.closed_ms for batch in self.path_batches(position.timeline) if batch.batch == position.batch
        )
        if is_continued(position, held, line, publications):
            found = [batch for batch in found if batch.batch >= position.batch]
        return View(line, tuple(found), publications, self.seq, held, closed)

    def columns_of(self, line: Line, *, newest: bool) -> DeliveredColumns:
        """Every line here has the same columns."""
        del line, newest
        return self.shape

    def of(self, line: Line) -> World:
        """Return the tables that have a line."""
        assert line.version == self.version
        return self

    def changelog(self, first: int, last: int) -> pa.Table:
        return pa.Table.from_pylist([row for row in self.rows if first <= row["_batch"] <= last], schema=CHANGELOG)

    def corrections(self, backfills: frozenset[str]) -> pa.Table:
        return pa.Table.from_pylist(
            [row for row in self.corrected if row["_backfill"] in backfills], schema=CORRECTIONS
        )

    def served(self) -> dict[tuple[object, ...], int]:
        """What the head serves now, by window and key: the served table's own rule over all there is."""
        line = self.lines[self.head]
        places = {(batch.timeline, batch.batch) for batch in self.path_batches(self.head)}
        rows = pa.Table.from_pylist(
            [row for row in self.rows if (row["_timeline"], row["_batch"]) in places], schema=CHANGELOG
        )
        corrections = pa.Table.from_pylist(self.corrected, schema=CORRECTIONS)
        found = select_served(
            rows,
            corrections,
            self.publications,
            semantics=line.semantics,
            closed_ms=self.closed(self.head),
            session_keys=["k"] if self.shape.sessions else None,
        )
        held = {
            _address(self.shape, row["window_start"], row["window_end"], row["k"]): row for row in found.to_pylist()
        }
        assert len(held) == found.num_rows
        return {address: row["n"] for address, row in held.items()}


def _address(shape: DeliveredColumns, start: datetime, end: datetime, key: str) -> tuple[object, ...]:
    low, high = (int(at.timestamp() * 1000) for at in (start, end))
    return (low, high, key) if shape.sessions else (low, key)


class Consumer:
    """Folds what it is sent, as any reader of a sink would: by key, in order."""

    def __init__(self, shape: DeliveredColumns = SHAPE) -> None:
        self.rows: dict[str, DeliveredRecord] = {}
        self.shape = shape

    def take(self, record: DeliveredRecord) -> None:
        """Take a record and check what it says of the one before."""
        before = self.rows.get(record.key)
        if record.old is None:
            assert before is None, f"{record} says nothing of {before}"
        else:
            assert before is not None, f"{record} replaces what was never delivered"
            assert before.values == record.old, f"{record} replaces other values than were delivered: {before}"
        assert record.op != "emit" or record.old is None
        if record.op == WITHDRAW:
            del self.rows[record.key]
        else:
            self.rows[record.key] = record

    def holds(self) -> dict[tuple[object, ...], int]:
        found = {}
        for record in self.rows.values():
            start, end, key, value = record.values
            found[_address(self.shape, start, end, key)] = value
            assert json.loads(record.key)["keys"] == {"k": key}
        return found


class Deliverer:
    """The loop of `deliver.Deliverer` around the very same decisions, with a sink that takes all or nothing."""

    def __init__(self, world: World, limits: Limits, consumer: Consumer | None = None) -> None:
        self.world, self.limits = world, limits
        self.consumer = consumer or Consumer(world.shape)
        self.stored: Position | None = None
        self.position: Position | None = None
        self.kinds: list[str] = []
        self.emitted: list[tuple[object, str]] = []

    def crash(self) -> None:
        self.position = self.stored  # all that was only remembered is gone

    def step(self, *, lose: bool = False) -> bool:
        view = self.world.look(self.position)
        step = None if view is None else plan_next(self.position, view, self.limits)
        if step is None or view is None:
            return False
        records = records_of(step, self.position, view, self.world.shape, self.world)
        if lose:
            self.crash()
            return True
        for record in records:
            self.consumer.take(record)
            if record.op == "emit":
                self.emitted.append((record.address, record.key))
        self.kinds.append(step.kind)
        self.position = step.to
        if records:
            self.stored = step.to
        return True

    def stumble(self, chance: random.Random) -> None:
        """Take some steps, lose some of them on the way, and crash now and then."""
        for _ in range(chance.randint(0, 3)):
            self.step(lose=chance.random() < 0.3)
        if chance.random() < 0.2:
            self.crash()

    def to_end(self) -> None:
        while self.step():
            pass
        self.check()

    def check(self) -> None:
        """Compare what the consumer holds with what `deliver check` computes at its position, as a whole and in days."""
        position, world, shape = self.position, self.world, self.world.shape
        if position is None:
            return
        batches = tuple(batch for batch in world.path_batches(position.timeline) if batch.batch <= position.batch)
        publications = tuple(entry for entry in world.publications if entry.seq <= position.seq)
        view = View(world.lines[position.timeline], batches, publications, position.seq)
        held = {key: record.values for key, record in self.consumer.rows.items()}
        assert rows_at(view, position, shape, world) == held
        if shape.newest is None:
            days = {str(row["window_start"]) for row in [*world.rows, *world.corrected]}
            of_days = [rows_at(view, position, shape, _OfDay(world, day), day=day) for day in sorted(days)]
            assert sum(map(len, of_days)) == len(held)
            assert {key: values for found in of_days for key, values in found.items()} == held


class _OfDay:
    """Reads as `source.DayReader` does; here each window's start is a day of its own."""

    def __init__(self, world: World, day: str) -> None:
        self._world, self._day = world, day

    def changelog(self, first: int, last: int) -> pa.Table:
        return self._stamped(self._world.changelog(first, last), all_days=False)

    def corrections(self, backfills: frozenset[str]) -> pa.Table:
        return self._stamped(self._world.corrections(backfills), all_days=self._world.shape.sessions)

    def _stamped(self, rows: pa.Table, *, all_days: bool) -> pa.Table:
        days = pa.array([str(start) for start in rows["window_start"].to_pylist()], pa.string())
        stamped = rows.append_column("_day", days)
        return stamped if all_days else stamped.filter(pc.equal(days, self._day))
