"""A pipeline of sessions in memory: a stream that drops and splits as Spark's does, backfills by the real decisions, an oracle that
searches instead of reasoning. One topic, one partition, times in milliseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pyarrow as pa

from homes.backfill import view
from rivertwice.backfill.model import (
    BackfillPlan,
    BackfillRequest,
    BackfillView,
    BatchZone,
    PlannedSession,
    Seed,
    SessionsView,
    Span,
)
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.publish import check_sessions_not_older
from rivertwice.backfill.ranges import HalfOpenRange
from rivertwice.backfill.session_plan import Zone, asked_sessions, sessions_of, survey_sessions
from rivertwice.core.instants import EPOCH, TimeRange, from_ms
from rivertwice.timeline.digest import key_digest, key_text
from rivertwice.timeline.serving import Publication, select_served

GAP = 1000
DELAY = 2000
STAMP = pa.timestamp("us", "UTC")
RESULT = [("window_start", STAMP), ("window_end", STAMP), ("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())]
CHANGELOG = pa.schema([("_timeline", pa.string()), ("_batch", pa.int64()), *RESULT])
CORRECTIONS = pa.schema([("_backfill", pa.string()), ("_withdrawn", pa.bool_()), *RESULT])


@dataclass(frozen=True)
class Record:
    offset: int
    key: str
    at_ms: int
    value: int


@dataclass(frozen=True, order=True)
class Row:
    """A result row; two of equal records are equal."""

    key: str
    start_ms: int
    end_ms: int
    n: int
    total: int


def merged(records: Iterable[Record]) -> list[list[Record]]:
    """Return the records of each session of all records given, by key and in order."""
    found: list[list[Record]] = []
    for one in sorted(records, key=lambda one: (one.key, one.at_ms, one.offset)):
        last = found[-1][-1] if found else None
        if last is not None and last.key == one.key and one.at_ms - last.at_ms <= GAP:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def row_of(records: Sequence[Record]) -> Row:
    times = [one.at_ms for one in records]
    return Row(records[0].key, min(times), max(times) + GAP, len(records), sum(one.value for one in records))


def overlap(left: Row, right: Row) -> bool:
    return left.key == right.key and left.start_ms < right.end_ms and right.start_ms < left.end_ms


@dataclass
class World:
    """What was read, what the stream emitted, what was published."""

    batches: list[list[Record]] = field(default_factory=list)
    watermarks: list[int] = field(default_factory=list)
    state: list[list[Record]] = field(default_factory=list)
    emitted: list[tuple[int, Row]] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
    corrections: list[tuple[str, bool, Row]] = field(default_factory=list)
    dropped: int = 0
    bundle: str = "b" * 64
    semantics: str = "s" * 64

    def commit(self, records: Sequence[tuple[str, int, int]]) -> None:
        """Read a batch of (key, time, value): drop, merge, emit and forget, as Spark does."""
        first = sum(map(len, self.batches))
        batch = [Record(first + place, *one) for place, one in enumerate(records)]
        late = self.watermarks[-1] if self.watermarks else 0
        seen = [one.at_ms for earlier in self.batches for one in earlier]
        watermark = max([0, max(seen, default=0) - DELAY])
        kept = [one for one in batch if one.at_ms + GAP > late]
        self.dropped += len(batch) - len(kept)
        # Sessions of the state keep what they hold; only what touches is merged.
        self.state = merged([*(one for session in self.state for one in session), *kept])
        number = len(self.batches)
        self.emitted += [(number, row_of(one)) for one in self.state if row_of(one).end_ms <= watermark]
        self.state = [one for one in self.state if row_of(one).end_ms > watermark]
        self.batches.append(batch)
        self.watermarks.append(watermark)

    def rewind(self, chance: random.Random, batches: int) -> None:
        """Go back to a batch and read what came behind it again, cut otherwise: the head moves to the new path."""
        again = [(one.key, one.at_ms, one.value) for batch in self.batches[batches:] for one in batch]
        kept = [[(one.key, one.at_ms, one.value) for one in batch] for batch in self.batches[:batches]]
        self.batches, self.watermarks, self.state, self.emitted = [], [], [], []
        for batch in kept:
            self.commit(batch)
        at = 0
        while at < len(again):
            size = chance.choice([1, 3, 10, 40])
            self.commit(again[at : at + size])
            at += size
        self.commit([])

    @property
    def closed_ms(self) -> int:
        return self.watermarks[-1]

    @property
    def records(self) -> list[Record]:
        return [one for batch in self.batches for one in batch]

    def truth(self) -> list[Row]:
        return [row_of(one) for one in merged(self.records)]

    def served(self) -> dict[Row, str | None]:
        """Return what is served, by the served table's own rule: row to the backfill it comes from."""
        stream = [{"_timeline": "t1", "_batch": number, **columns_of(row)} for number, row in self.emitted]
        held = [{"_backfill": name, "_withdrawn": gone, **columns_of(row)} for name, gone, row in self.corrections]
        found = select_served(
            pa.Table.from_pylist(stream, schema=CHANGELOG),
            pa.Table.from_pylist(held, schema=CORRECTIONS),
            self.publications,
            semantics={self.semantics},
            closed_ms=self.closed_ms,
            session_keys=["k"],
        )
        rows = {_row(one): one["_backfill"] for one in found.to_pylist()}
        assert len(rows) == found.num_rows, "a row is served twice"
        return rows

    def view(self, stale: Sequence[Row] = ()) -> BackfillView:
        zones = []
        first = 0
        for number, batch in enumerate(self.batches):
            times = [one.at_ms for one in batch]
            pair = (first, first + len(batch))
            span = (min(times), max(times)) if times else (None, None)
            zones.append(BatchZone("t1", number, {"flights": {0: pair}}, len(batch), *span))
            first += len(batch)
        seeds = tuple(Seed(text(one.key), one.start_ms, one.end_ms) for one in stale)
        return view(
            batches=tuple(zones),
            window_ms=GAP,
            closed_ms=self.closed_ms,
            as_of={"flights": {0: first}},
            kafka={"flights": {0: (0, first)}},
            sequence=1 + len(self.publications),
            publications=tuple(self.publications),
            bundle=self.bundle,
            semantics=self.semantics,
            sessions=SessionsView(seeds),
        )

    def plan(
        self, asked: HalfOpenRange | None = None, stale: Sequence[Row] = (), chunk_records: int = 1_000_000
    ) -> BackfillPlan:
        """Plan by the real decisions; what is read is only what the zone asks for."""
        wide = None if asked is None else TimeRange(from_ms(asked[0]), from_ms(asked[1]))
        request = BackfillRequest("p", wide, "test")
        seen = self.view(stale)
        components = survey_sessions(
            asked_sessions(request, seen), self.read_served, self.read_truth, closed_ms=self.closed_ms, gap_ms=GAP
        )
        assert seen.sessions is not None
        seen = replace(seen, sessions=replace(seen.sessions, components=components))
        return plan_backfill(request, seen, chunk_records=chunk_records)

    def read_served(self, zone: Zone) -> list[Span]:
        rows = self.served().items()
        return [
            Span(text(row.key), row.start_ms * 1000, row.end_ms * 1000, row.n, made)
            for row, made in rows
            if any(row.start_ms < high and low < row.end_ms for low, high in zone)
        ]

    def read_truth(self, zone: Zone, keys: Collection[str] | None) -> list[Span]:
        inside = [
            one
            for one in self.records
            if any(low <= one.at_ms < high for low, high in zone) and (keys is None or text(one.key) in keys)
        ]
        return [
            Span(text(row.key), row.start_ms * 1000, row.end_ms * 1000, row.n)
            for row in (row_of(one) for one in merged(inside))
        ]

    def compute(self, plan: BackfillPlan) -> list[tuple[str, bool, Row]]:
        """Compute chunk by chunk from the records of each chunk's own offsets."""
        assert plan.sessions is not None
        by_offset = {one.offset: one for one in self.records}
        served = list(self.served())
        made = []
        for chunk in plan.chunks:
            runs = chunk.offsets.get("flights", {}).get(0, ())
            read = [by_offset[at] for low, high in runs for at in range(low, high)]
            published, vanishing = sessions_of(plan.sessions, chunk)
            found = {planned(row): row for row in (row_of(one) for one in merged(read))}
            made += [(plan.id, False, found[one]) for one in published]
            gone = {planned(row): row for row in served}
            made += [(plan.id, True, gone[one]) for one in vanishing]
        return made

    def publish(self, plan: BackfillPlan, rows: Sequence[tuple[str, bool, Row]]) -> None:
        """Publish by the real checks, once."""
        if any(one.backfill == plan.id for one in self.publications):
            return
        knew = {one.backfill for one in self.publications if one.as_of["flights"][0] > plan.as_of["flights"][0]}
        check_sessions_not_older(plan, [(name, planned(row)) for name, _, row in self.corrections if name in knew])
        assert plan.last_end_ms <= self.closed_ms
        self.corrections += [one for one in rows if one not in self.corrections]
        seq = 2 + len(self.publications)
        self.publications.append(
            Publication(seq, plan.id, plan.ranges, plan.semantics, plan.bundle, plan.as_of, sessions=True)
        )

    def backfill(
        self, asked: HalfOpenRange | None = None, stale: Sequence[Row] = (), chunk_records: int = 1_000_000
    ) -> BackfillPlan:
        plan = self.plan(asked, stale, chunk_records)
        self.publish(plan, self.compute(plan))
        return plan

    def chosen(self, means: Callable[[Row], bool]) -> tuple[set[Row], set[Row]]:
        """Return served rows and rows of the truth that a backfill must exchange, by search: all that hangs together with a row
        that is meant and cannot change any more."""
        sides = [(True, row) for row in self.served()] + [(False, row) for row in self.truth()]
        left = list(sides)
        served: set[Row] = set()
        truth: set[Row] = set()
        while left:
            group = [left.pop()]
            grown = True
            while grown:
                more = [one for one in left if any(overlap(one[1], other[1]) for other in group)]
                left = [one for one in left if one not in more]
                group += more
                grown = bool(more)
            low, high = min(row.start_ms for _, row in group), max(row.end_ms for _, row in group)
            hull = Row(group[0][1].key, low, high, 0, 0)
            if means(hull) and high + GAP <= self.closed_ms:
                served |= {row for mine, row in group if mine}
                truth |= {row for mine, row in group if not mine}
        return served, truth


def text(key: str) -> str:
    return key_text(["k"], [key])


def planned(row: Row) -> PlannedSession:
    return PlannedSession(key_digest(text(row.key)), row.start_ms * 1000, row.end_ms * 1000, row.n)


def columns_of(row: Row) -> dict[str, object]:
    return {
        "window_start": from_ms(row.start_ms),
        "window_end": from_ms(row.end_ms),
        "k": row.key,
        "n": row.n,
        "total": row.total,
    }


def _row(one: dict[str, object]) -> Row:
    start, end = ((one[name] - EPOCH) // timedelta(milliseconds=1) for name in ("window_start", "window_end"))  # type: ignore[operator]
    return Row(str(one["k"]), start, end, one["n"], one["total"])  # type: ignore[arg-type]


def random_records(chance: random.Random, count: int) -> Iterator[tuple[str, int, int]]:
    """Yield (key, time, value) in order of arrival; many times are multiples of 500, so that bounds are met exactly."""
    tardy, far = chance.choice([0.1, 0.3, 0.5]), chance.choice([8000, 20_000, 60_000])
    keys = "abcd"[: chance.randint(1, 4)]
    now = 100_000
    for _ in range(count):
        now += chance.choice([0, 0, 200, 500, 500, 1000, 1500, 4000])
        # The second span is where a session has been emitted and a record next to it is not late yet.
        late = chance.choice([chance.randint(0, far), chance.randint(3000, 12_000)]) if chance.random() < tardy else 0
        at = now - late
        yield chance.choice(keys), at if chance.random() < 0.3 else at // 500 * 500, chance.randint(1, 9)


def random_batches(chance: random.Random, count: int) -> Iterator[list[tuple[str, int, int]]]:
    records = list(random_records(chance, count))
    at = 0
    while at < len(records):
        size = chance.choice([0, 1, 1, 2, 5])
        yield records[at : at + size]
        at += size
