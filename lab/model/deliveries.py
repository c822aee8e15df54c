"""Deliverers: look, plan, compute, hand over; to Kafka, to a database. Two hosts may deliver at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lab.model.agent import rows_served
from lab.model.judge_sinks import DELIVERED, EQUAL
from lab.model.process import Process, Steps, point
from lab.model.sinks import COMMIT, EPOCH, FENCED, INVALID, SEND, Request
from lab.model.stream import WINDOW_MS
from lab.model.violations import fail
from lab.model.world import World
from rivertwice.core.errors import LeaseLostError, LostRaceError, ServiceError, UnknownOutcomeError
from rivertwice.deliver.model import (
    BATCHES,
    PUBLISHED,
    Committed,
    DeliveredRecord,
    DeliveryStep,
    Line,
    Position,
    RowOrigin,
    View,
)
from rivertwice.deliver.plan import Limits, is_prefix_of_served
from rivertwice.deliver.records import diff
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.served_rows import publications_of

LIMITS = Limits(batches=1)
LOOKED = point("deliver: tables looked at")
SENT = point("deliver: request sent")
AGAIN = point("deliver: request sent again")
READ = point("deliver: position read")
EPOCH_LOOKED = point("deliver to kafka: looked whether others sent under this name")
COMMITTED = point("deliver: committed")
WAITS = point("deliver to postgres: another session has the position's row")
LOCKED = point("deliver to postgres: position's row locked")
WRITTEN = point("deliver to postgres: rows and position written")

Step = Generator[int, None, Any]
Row = tuple[tuple[Any, ...], RowOrigin]


def run_deliver(world: World, me: Process) -> Steps:
    """Deliver until no step waits; the kind names the sink, `far` on another host.

    Raises:
        RivertwiceError: the sink or another deliverer does not let it continue; a later run continues.
    """
    sink = me.kind.rpartition(" ")[2]
    if not world.lock(f"deliver {sink} {me.host}", me):
        message = "another process of this host delivers"
        raise LostRaceError(message)
    if look(world, None) is None:
        return
    outlet = _OUTLETS[sink](world, me)
    stored = position = yield from outlet.open()
    while True:
        view = look(world, position)
        assert view is not None, "there is a head"
        step = world.rules.plan_next(position, view, LIMITS)
        yield LOOKED
        if step is None:
            if position != stored:
                yield from outlet.deliver((), stored, position)
            return
        held, wanted = (_touched(rows_at(world, at), step, view) for at in (position, step.to))
        records = diff(held, wanted)
        after = replace(step.to, number=1 if stored is None else stored.number + 1)
        if records:
            yield from outlet.deliver(tuple(records), stored, after)
            stored = after
        position = after


def _touched(rows: Mapping[str, Row], step: DeliveryStep, view: View) -> Mapping[str, Row]:
    """Return the rows that a step may change: of windows that its batches close, of a publication's windows, or all."""
    if step.kind == BATCHES:
        return {key: row for key, row in rows.items() if int(key) > view.held_closed_ms}
    if step.kind == PUBLISHED:
        inside = [key for key in rows if any(start <= int(key) - WINDOW_MS < end for start, end in step.ranges)]
        return {key: rows[key] for key in inside}
    return rows


def look(world: World, position: Position | None) -> View | None:
    """Return the content of the tables, None before the first batch."""
    head = world.head()
    rows = [] if head is None else world.path_rows(head)
    if head is None or not rows:
        return None
    batches = tuple(Committed(row.timeline, row.batch, row.batch_watermark_ms, row.emitted) for row in rows)
    view = View(_line(world, head), batches, tuple(publications_of(world.sequence)), world.last_seq())
    if position is None:
        return view
    closed = _rows_to(world, position)[-1].batch_watermark_ms
    view = replace(view, held=_line(world, position.timeline), held_closed_ms=closed)
    if not is_prefix_of_served(position, view):
        return view
    return replace(view, batches=tuple(batch for batch in batches if batch.batch >= position.batch))


def _line(world: World, timeline: str) -> Line:
    path = tuple(world.rules.trace_path(timeline, world.timelines.__getitem__))
    semantics = frozenset(world.timelines[part.timeline].fingerprint["semantics"] for part in path)
    return Line(timeline, timeline, path, semantics)


def _rows_to(world: World, position: Position) -> list[LedgerRow]:
    return [row for row in world.path_rows(position.timeline) if row.batch <= position.batch]


def rows_at(world: World, position: Position | None) -> Mapping[str, Row]:
    """Return what is served at a position, by key."""
    if position is None:
        return {}
    at = (position.timeline, position.batch, position.seq)
    if at not in world.delivered:  # it never changes: batches and publications stay as they are
        entries = [entry for entry in world.sequence if entry.seq <= position.seq]
        served = rows_served(world, position.timeline, _rows_to(world, position), entries)
        origin = RowOrigin(position.timeline, position.batch, None)
        world.delivered[at] = {f"{end:05}": ((held,), origin) for end, held in served.items()}
    return world.delivered[at]


def truth_at(world: World, position: Position) -> Mapping[str, Any]:
    """Return what a reader must hold at a position."""
    return {key: values[0] for key, (values, _) in rows_at(world, position).items()}


class _Outlet:
    """A sink as a deliverer sees it."""

    sink = ""

    def __init__(self, world: World, me: Process) -> None:
        self.world = world
        self.me = me
        self.sinks = world.sinks
        self.broken = world.broken
        reader = getattr(self.sinks, self.sink).reader
        reader.truth = TruthOf(world)

    def ask(self, what: str, **content: Any) -> Step:
        """Send a request until an answer comes, and return it."""
        request = self.sinks.send(Request(self.sink, what, self.me.pid, **content))
        yield SENT
        while request.answer is None and request.sender is None:  # delayed: the client sends it again
            request = self.sinks.send(replace(request, sender=self.me.pid))
            yield AGAIN
        if request.answer is None:
            self.sinks.arrive(request)
        return request.answer


class TruthOf:
    """Returns what is served at a position of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __call__(self, position: Position) -> Mapping[str, Any]:
        """Return what a reader must hold."""
        return truth_at(self.world, position)


class _KafkaOutlet(_Outlet):
    """Does what `log.outbox` does: each transaction has an epoch that no other one has."""

    sink = "kafka"

    def __init__(self, world: World, me: Process) -> None:
        super().__init__(world, me)
        self.epoch = 0  # that no transaction has used; 0: none
        self.used = 0
        self.seen = 0

    def open(self) -> Step:
        if self.broken == "position read before the epoch":
            position = self.sinks.kafka.position
            yield READ
            self.epoch = yield from self.ask(EPOCH)
            self.seen = self.sinks.kafka.sent
            return position
        self.epoch = yield from self.ask(EPOCH)
        position, self.seen = self.sinks.kafka.position, self.sinks.kafka.sent
        yield READ
        return position

    def _next_epoch(self) -> Step:
        if self.broken == "a transaction begins on the epoch of the one before":
            self.epoch = self.used
            return
        epoch = yield from self.ask(EPOCH)
        if self.sinks.kafka.sent > self.seen and self.broken != "a new epoch without a look at the positions":
            message = "another deliverer sent under this name"
            raise LeaseLostError(message)
        yield EPOCH_LOOKED
        self.epoch = epoch

    def deliver(self, records: Sequence[DeliveredRecord], _: Position | None, after: Position) -> Step:
        if not self.epoch:
            yield from self._next_epoch()
        epoch = self.used = self.epoch
        self.epoch = 0
        if records:
            self._require((yield from self.ask(SEND, epoch=epoch, sequence=2 * after.number, records=tuple(records))))
        if self.broken == "rows and position in two transactions":
            self._require((yield from self.ask(COMMIT, epoch=epoch)))
        self._require((yield from self.ask(SEND, epoch=epoch, sequence=2 * after.number + 1, position=after)))
        self.seen = self.sinks.kafka.sent
        self._require((yield from self.ask(COMMIT, epoch=epoch)))
        yield COMMITTED
        with suppress(ServiceError, LeaseLostError):  # what was sent is committed; the next transaction asks again
            yield from self._next_epoch()

    def _require(self, answer: int | str) -> None:
        if answer == FENCED:
            message = "another deliverer opened the sink"
            raise LeaseLostError(message)
        if answer == INVALID:
            message = "Kafka says that no transaction is open"
            raise ServiceError(message)


class _PostgresOutlet(_Outlet):
    """Does what `deliver.postgres_sink` does: rows and position in one transaction, under the lock of the position's row."""

    sink = "postgres"

    def open(self) -> Step:
        position = self.sinks.postgres.position
        yield READ
        return position

    def deliver(self, records: Sequence[DeliveredRecord], before: Position | None, after: Position) -> Step:
        database = self.sinks.postgres
        if self.broken == "position compared without its lock":
            self._compare(before)
            yield READ
        while (session := database.lock(self.me.pid)) is None:
            yield WAITS
        if self.broken != "position compared without its lock":
            self._compare(before)
        yield LOCKED
        self._require_open(session.is_over)
        session.records = tuple(records)
        if self.broken == "rows and position in two transactions":
            yield from self._commit(session.number)
            while (session := database.lock(self.me.pid)) is None:
                yield WAITS
        session.position = after
        yield WRITTEN
        self._require_open(session.is_over)
        yield from self._commit(session.number)
        yield COMMITTED

    def _compare(self, before: Position | None) -> None:
        database = self.sinks.postgres
        if database.position != before and self.broken != "position not compared":
            if database.holder is not None and database.holder.sender == self.me.pid:
                database.roll_back()
            message = "another deliverer was here"
            raise LostRaceError(message)

    def _commit(self, number: int) -> Step:
        answer = yield from self.ask(COMMIT, epoch=number)
        if answer == INVALID:
            message = "the connection is lost; the position shows what became of the transaction"
            raise UnknownOutcomeError(message)

    def _require_open(self, is_over: bool) -> None:
        if is_over:
            message = "PostgreSQL ended the session"
            raise ServiceError(message)


_OUTLETS: Mapping[str, type[Any]] = {outlet.sink: outlet for outlet in (_KafkaOutlet, _PostgresOutlet)}
SINKS = tuple(_OUTLETS)


def check_sinks(world: World) -> None:
    """Let late requests arrive and each sink that was delivered to come to the end; each reader must hold what is served then."""
    sinks = world.sinks
    for process in [process for process in world.processes.values() if "deliver" in process.kind]:
        world.end(process)
    for request in list(sinks.network):
        if request in sinks.network:  # one that arrives makes others idle
            sinks.arrive(request)
    sinks.postgres.roll_back()
    for sink in SINKS:
        if getattr(sinks, sink).reader.truth is None:
            continue
        for _ in range(2):  # an end that a late request explains is tried again, as the agent does
            process = world.processes[world.spawn(f"deliver {sink}")]
            with suppress(LeaseLostError, LostRaceError, ServiceError, UnknownOutcomeError):
                deque(process.steps, maxlen=0)
            world.end(process)
        place, view = getattr(sinks, sink), look(world, getattr(sinks, sink).position)
        if view is None:
            continue
        if world.rules.plan_next(place.position, view, LIMITS) is not None:
            fail(DELIVERED, f"{sink} is at {place.position}")
        if place.position is not None and place.reader.rows != truth_at(world, place.position):
            fail(EQUAL, sink)
