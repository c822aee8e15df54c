"""Deliver in a loop: look, plan, compute, hand over. The protocol of a sink, and which sink a definition means.

One step is one transaction of the sink, with the position in it, or several if the sink's transactions have to end in time: then each
has a part of the step's records, and the position inside the step. The rest comes before anything else, from the same step computed again.

1. Open the sink: it returns its position. An unfinished transaction of an earlier deliverer is cancelled or finished by then.
2. Look at the tables, and plan the next step from the position (pure).
3. Compute its records from the tables (pure over the rows that were read).
4. Hand records and position over. A step without records is only remembered, and goes with the next one, or at the end.
   Records that the destination refuses for good are set aside (`refusals`), and the sink continues.

If this is killed anywhere, the next start begins at 1. The tables keep every row for ever, so the same step is computed again.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from rivertwice.core import LedgerError, PipelineHome, Settings, utc_now
from rivertwice.definition import Delivery, IcebergDelivery, KafkaDelivery, PostgresDelivery, RowsMode
from rivertwice.deliver.aside import RETRY, AsideStore, asks, discarded, done
from rivertwice.deliver.model import DeliveredColumns, DeliveredRecord, DeliveryBatch, Holding, Line, Position, View
from rivertwice.deliver.note import Note, only_deliverer, read_note, write_note
from rivertwice.deliver.plan import UNLIMITED, Limits, check_continued, plan_next, position_inside
from rivertwice.deliver.records import records_again, records_of
from rivertwice.deliver.refusals import Aside, RefusedRecord, SetAside, after_step, check_bounds, fit, none_aside
from rivertwice.deliver.source import ServingSource

# The protocol of every sink, and the choice of the sink that a definition asks for.


class Sink(Protocol):
    """The destination of parcels. `open` is called first, and again after every error: it checks if the last parcel was taken."""

    def open(self, shape: DeliveredColumns, schema: pa.Schema) -> Position | None:
        """Connect and return the sink's position, None if it has none.

        Raises:
            ConfigError: the sink differs from the definition.
            LedgerError: it has a position, but not the data that belongs to it.
            ServiceError: it does not answer.
        """
        ...

    def deliver(self, parcel: DeliveryBatch, set_aside: SetAside = none_aside) -> None:
        """Take records and position, all or nothing (as far as the destination allows it).

        `set_aside` is called once, before the position is taken, with the records that the destination refuses for good,
        often none; they are left out. An error that it raises ends the step.

        Raises:
            ConfigError: the destination refuses every record, or differs from the definition.
            LostRaceError, LeaseLostError: another deliverer uses the sink; nothing was taken.
            ServiceError, UnknownOutcomeError: the outcome is unknown; `open` returns the position.
        """
        ...

    def forget(self) -> None:
        """Forget the position, so that everything is delivered again. Only a person asks for this."""
        ...

    def close(self) -> None:
        """Close connections; never raises for a broken one."""
        ...


class ReadableSink(Sink, Protocol):
    """A sink whose destination can be asked for what it holds, as all of a definition can."""

    def inspect(self) -> AbstractContextManager[Holding]:
        """Read what the destination holds, without `open`: a deliverer that runs is not disturbed.

        Raises:
            ConfigError: it cannot be read.
            ServiceError: it does not answer.
        """
        ...


def make_sink(settings: Settings, pipeline: str, name: str, asked: Delivery) -> ReadableSink:
    """Return the sink of a definition; nothing is connected yet."""
    if isinstance(asked, KafkaDelivery):
        from rivertwice.deliver.kafka_sink import KafkaSink

        return KafkaSink(settings, pipeline, name, asked)
    if isinstance(asked, PostgresDelivery):
        from rivertwice.deliver.postgres_sink import PostgresSink

        return PostgresSink(pipeline, name, asked)
    from rivertwice.deliver.iceberg_sink import IcebergSink

    return IcebergSink(pipeline, name, asked)


class SinkRunner(Protocol):
    """Keeps one sink at what is served, in the thread that calls it."""

    def run(self, stop: threading.Event, finish: threading.Event, *, again: bool = False) -> Delivered:
        """Work until `stop` is set, or, once `finish` is set, until nothing waits; `again`: do everything anew."""
        ...


def make_deliverer(settings: Settings, pipeline: str, name: str, asked: Delivery) -> SinkRunner:
    """Return what keeps a sink: a deliverer of rows, or, where a catalog names files of ours, a registrar."""
    if isinstance(asked, IcebergDelivery) and asked.registered:
        from rivertwice.deliver.registered import Registrar

        return Registrar(settings, pipeline, name, asked)
    return Deliverer(settings, pipeline, name, asked)


LOG = logging.getLogger(__name__)
POLL_S = 0.1
POLL_S3_S = 2.0
NOTE_EVERY_S = 1.0


@dataclass(frozen=True)
class Delivered:
    """What a run did: steps and records handed over, the sink's position, and how many deliveries are set aside."""

    sink: str
    steps: int
    records: int
    position: Position | None
    refused: int = 0


class Deliverer:
    """Delivers one pipeline's results to one sink; one thread."""

    def __init__(
        self,
        settings: Settings,
        pipeline: str,
        name: str,
        asked: Delivery,
        *,
        sink: Sink | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """Create a deliverer; nothing happens until `run`."""
        self._home: PipelineHome = settings.pipeline(pipeline)
        self._name = name
        self._sink = sink or make_sink(settings, pipeline, name, asked)
        self._now = now
        self._newest = asked.rows == RowsMode.NEWEST
        self._source = ServingSource(settings, pipeline)
        self._poll_s = POLL_S if isinstance(self._home.tables.changelog, Path) else POLL_S3_S
        if isinstance(asked, IcebergDelivery):
            self._poll_s = float(
                asked.every_s
            )  # batches that come meanwhile go together: a commit costs files, and a snapshot
        self._stored: Position | None = None
        self._position: Position | None = None
        self._shape: tuple[Line, DeliveredColumns] | None = None
        self._note = Note()
        self._aside = AsideStore(self._home, name)
        self._noted_at = 0.0
        self._steps = self._records = 0

    def run(self, stop: threading.Event, finish: threading.Event, *, again: bool = False) -> Delivered:
        """Deliver until `stop` is set, or, once `finish` is set, until no step waits.

        Args:
            stop: end after the current step.
            again: forget the sink's position and deliver everything.

        Raises:
            RivertwiceError: the sink or the tables do not allow the run to continue; a later run continues where this one ended.
        """
        with only_deliverer(self._home, self._name):
            try:
                if again:
                    self._sink.forget()
                    self._aside.forget()
                self._run(stop, finish, again=again)
            finally:
                self._sink.close()
        left_out = len(self._aside.now.open_keys())
        return Delivered(self._name, self._steps, self._records, self._position, left_out)

    def _run(self, stop: threading.Event, finish: threading.Event, *, again: bool) -> None:
        self._note = Note() if again else read_note(self._home, self._name)
        opened = False
        while not stop.is_set():
            ending = finish.is_set()
            view = self._source.look(self._position.whole if opened and self._position is not None else None)
            if view is not None and view.batches and not opened:
                self._open(view)
                opened = True
                continue
            if view is not None and opened and (self._step(view, stop) or self._answer(view)):
                continue
            if ending:
                break
            stop.wait(self._poll_s)
        if opened:
            self._flush()

    def _open(self, view: View) -> None:
        """Do step 1."""
        self._position = self._stored = self._sink.open(self._shape_of(view), self._source.schema())
        known = self._note.position
        if self._position is None and known is not None:
            message = (
                f"sink {self._name} of {self._home.root.name} holds no position, but {known.number} steps were delivered to it, up "
                f"to batch {known.batch} of {known.timeline}: its position was deleted, or it is another place now; nothing was "
                f"delivered; deliver all with `rivertwice deliver run {self._home.root.name} --sink {self._name} --again`"
            )
            raise LedgerError(message)
        self._aside.open(self._position)

    def _shape_of(self, view: View) -> DeliveredColumns:
        if self._shape is None or self._shape[0] != view.head:
            self._shape = (view.head, self._source.shape(view, newest=self._newest))
        return self._shape[1]

    def _step(self, view: View, stop: threading.Event) -> bool:
        """Do steps 2 to 4; return False if no step waits."""
        position = self._position
        part = None if position is None else position.part
        whole = None if position is None else position.whole
        if part is not None:
            view = self._source.look_to(whole, part.to)
        step = plan_next(whole, view, Limits() if part is None else UNLIMITED)
        if step is None:
            return False
        shape = self._shape_of(view)
        records = records_of(step, whole, view, shape, self._source)
        done = 0
        if part is not None:
            check_continued(part, step.to, records, self._name, shape.pipeline)
            done = part.done
        while done < len(records) and not stop.is_set():
            to = replace(step.to, number=self._next_number())
            part_of = functools.partial(position_inside, whole, to, records, done)
            done += self._hand_over(shape, records[done:], to, part_of=part_of)
            self._position = self._stored
        if not records:
            self._position = replace(step.to, number=self._next_number())
        return True

    def _next_number(self) -> int:
        return 1 if self._stored is None else self._stored.number + 1

    def _hand_over(
        self,
        shape: DeliveredColumns,
        records: Sequence[DeliveredRecord],
        after: Position,
        *,
        asked: bool = False,
        part_of: Callable[[int], Position] | None = None,
    ) -> int:
        """Do step 4; records that the destination refuses for good are set aside, and stored before the position is.

        Returns:
            The number of records, from the first on, that the sink's position covers now.
        """
        left_out: Sequence[RefusedRecord] = ()
        fitted = fit(records, self._aside.now)
        places = {record.key: at for at, record in enumerate(records)}
        covered, sent = len(records), len(fitted)

        def covers(taken: int) -> int:
            """Return how many of the records a position covers, from how many of the fitted ones it covers."""
            return len(records) if taken == len(fitted) else places[fitted[taken].key]

        def set_aside(refused: Sequence[RefusedRecord], taken: int | None = None) -> None:
            nonlocal left_out, covered, sent
            left_out = refused
            sent = len(fitted) if taken is None else taken
            covered = covers(sent)
            now = self._aside.now
            then = after_step(now, records[:covered], refused, step=after.number, now=self._now(), asked=asked)
            check_bounds(then, () if asked else refused, self._name, shape.pipeline)
            self._aside.prepare(after.number, then)

        parcel = DeliveryBatch(shape, self._name, fitted, self._stored, after, self._schema(after))
        if part_of is not None:
            parcel = replace(parcel, part_of=lambda taken: part_of(covers(taken)))
        self._sink.deliver(parcel, set_aside)
        self._aside.settle()
        if left_out:
            LOG.warning(
                "%s refuses %s records for good, set aside; the first: %s",
                self._name,
                len(left_out),
                left_out[0].reason,
            )
        self._stored = parcel.position_after(sent)
        self._steps += 1
        self._records += sent - len(left_out)
        self._tell(sent - len(left_out))
        return covered

    def _schema(self, after: Position) -> pa.Schema | None:
        """Return the types of the result's columns, if the sink is about to get the rows of another version."""
        return None if self._stored is None or self._stored.version == after.version else self._source.schema()

    def _answer(self, view: View) -> bool:
        """Carry out a request about refused deliveries; return False if there is none. No step waits."""
        waiting = asks(self._home, self._name)
        if not waiting or self._position is None:
            return False
        request = waiting[0]
        if request.what == RETRY:
            self._retry(view, frozenset(self._aside.now.open_keys(request.keys)))
        else:
            self._aside.change(discarded(self._aside.now, request))
        done(self._home, self._name, request)
        return True

    def _retry(self, view: View, keys: frozenset[str]) -> None:
        """Deliver the rows that are served now for these keys."""
        position = self._position
        if not keys or position is None:
            return
        shape = self._shape_of(view)
        aside = self._aside.now
        lacking = {key: aside.entries[key].held for key in sorted(keys)}
        records = records_again(lacking, position, view, shape, self._source)
        after = replace(position, number=self._next_number())
        left = {record.key for record in records}
        gone = {key: entry for key, entry in aside.entries.items() if key not in keys or key in left}
        if len(gone) < len(aside.entries):  # some of these keys are not served, and the destination has no row of them
            self._aside.change(Aside(gone, aside.in_a_row))
        if records:
            self._hand_over(shape, records, after, asked=True)
            self._position = after

    def _flush(self) -> None:
        """Hand over a position that was moved only by steps without records."""
        if self._position is not None and self._position != self._stored:
            assert self._shape is not None, "a step was planned"
            schema = self._schema(self._position)
            self._sink.deliver(
                DeliveryBatch(self._shape[1], self._name, (), self._stored, self._position, schema=schema)
            )
            self._stored = self._position
        self._tell(0, last=True)

    def _tell(self, records: int, *, last: bool = False) -> None:
        done = self._note.delivered_at if not records else self._now()
        self._note = Note(position=self._stored, rows=self._note.rows + records, delivered_at=done)
        if last or time.monotonic() - self._noted_at >= NOTE_EVERY_S:
            write_note(self._home, self._name, self._note)
            self._noted_at = time.monotonic()
