"""Deliver: look, plan, compute, hand over; again and again.

One step is one transaction of the sink, with the position in it:

1. Open the sink: it says where it stands. Whatever an earlier deliverer left unfinished is gone or done by then.
2. Look at the tables, and plan the next step from the position (pure).
3. Compute its records from the tables (pure over what was read).
4. Hand records and position over. A step without records is only remembered, and goes with the next one, or at the end.

Killed anywhere, the next start begins at 1; the tables hold every row for ever, so the same step is computed again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from rivertwice.config import PipelineHome, Settings
from rivertwice.delivery.model import Parcel, Position, Shape, View
from rivertwice.delivery.note import Note, only_deliverer, read_note, write_note
from rivertwice.delivery.plan import Limits, plan_next
from rivertwice.delivery.records import records_of
from rivertwice.delivery.sinks import Sink, make_sink
from rivertwice.delivery.source import StoredSource
from rivertwice.errors import LedgerError
from rivertwice.instants import utc_now
from rivertwice.pipeline.delivery_model import NEWEST, Delivery, WebhookDelivery

LOG = logging.getLogger(__name__)
POLL_S = 0.1
POLL_S3_S = 2.0
NOTE_EVERY_S = 1.0


@dataclass(frozen=True)
class Delivered:
    """What a run did: steps and records handed over, and where the sink stands."""

    sink: str
    steps: int
    records: int
    position: Position | None


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
        self._newest = asked.rows == NEWEST
        # A request cannot be taken back, so a crash repeats at most one batch's.
        self._limits = Limits(batches=1) if isinstance(asked, WebhookDelivery) else Limits()
        self._source = StoredSource(self._home)
        self._poll_s = POLL_S if isinstance(self._home.tables.changelog, Path) else POLL_S3_S
        self._stored: Position | None = None
        self._position: Position | None = None
        self._shape: tuple[str, Shape] | None = None
        self._note = Note()
        self._noted_at = 0.0
        self._steps = self._records = 0

    def run(self, stop: threading.Event, finish: threading.Event, *, again: bool = False) -> Delivered:
        """Deliver until told to `stop`, or, once `finish` is set, until nothing waits.

        Args:
            stop: end behind the step under way.
            finish: end when nothing waits.
            again: forget what the sink holds and deliver all.

        Raises:
            RivertwiceError: the sink or the tables do not allow to go on; a later run goes on where this one ended.
        """
        with only_deliverer(self._home, self._name):
            try:
                if again:
                    self._sink.forget()
                self._run(stop, finish, again=again)
            finally:
                self._sink.close()
        return Delivered(self._name, self._steps, self._records, self._position)

    def _run(self, stop: threading.Event, finish: threading.Event, *, again: bool) -> None:
        self._note = Note() if again else read_note(self._home, self._name)
        opened = False
        while not stop.is_set():
            ending = finish.is_set()
            view = self._source.look(self._position if opened else None)
            if view is not None and view.batches and not opened:
                self._open(view)
                opened = True
                continue
            if view is not None and opened and self._step(view):
                continue
            if ending:
                break
            stop.wait(self._poll_s)
        if opened:
            self._flush()

    def _open(self, view: View) -> None:
        """Step 1."""
        self._position = self._stored = self._sink.open(self._shape_of(view), self._source.schema())
        known = self._note.position
        if self._position is None and known is not None:
            message = (
                f"sink {self._name} of {self._home.root.name} holds no position, but {known.number} steps were delivered to it, up "
                f"to batch {known.batch} of {known.timeline}: its position was deleted, or it is another place now; nothing was "
                f"delivered; deliver all with `rivertwice deliver run {self._home.root.name} --sink {self._name} --again`"
            )
            raise LedgerError(message)

    def _shape_of(self, view: View) -> Shape:
        if self._shape is None or self._shape[0] != view.head.timeline:
            self._shape = (view.head.timeline, self._source.shape(view, newest=self._newest))
        return self._shape[1]

    def _step(self, view: View) -> bool:
        """Steps 2 to 4; return False if nothing waits."""
        step = plan_next(self._position, view, self._limits)
        if step is None:
            return False
        shape = self._shape_of(view)
        records = records_of(step, self._position, view, shape, self._source)
        after = replace(step.to, number=1 if self._stored is None else self._stored.number + 1)
        if records:
            self._sink.deliver(Parcel(shape, self._name, records, self._stored, after))
            self._stored = after
            self._steps += 1
            self._records += len(records)
            self._tell(len(records))
        self._position = after
        return True

    def _flush(self) -> None:
        """Hand over a position that only steps without records have moved."""
        if self._position is not None and self._position != self._stored:
            assert self._shape is not None, "a step was planned"
            self._sink.deliver(Parcel(self._shape[1], self._name, (), self._stored, self._position))
            self._stored = self._position
        self._tell(0, last=True)

    def _tell(self, records: int, *, last: bool = False) -> None:
        done = self._note.delivered_at if not records else self._now()
        self._note = Note(position=self._stored, rows=self._note.rows + records, delivered_at=done)
        if last or time.monotonic() - self._noted_at >= NOTE_EVERY_S:
            write_note(self._home, self._name, self._note)
            self._noted_at = time.monotonic()
