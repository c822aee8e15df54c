"""Deliver the results of every pipeline that has sinks and whose desired state is running. A thread per sink; supervision never waits.

An error is noted and reported once, and the delivery is tried again with backoff; it never ends the agent. A stream whose
desired state is stopped is delivered to its end; a table whose files a catalog names is followed all the same, because upkeep and
backfills change it. Sinks are those of the definition that serves, as it is now: they shape no result.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from rivertwice.agent.act import page, page_over, record_event
from rivertwice.agent.backoff import delay_after
from rivertwice.agent.keeper import Keeper
from rivertwice.core import Deadline, RivertwiceError, Settings, utc_now
from rivertwice.definition import Delivery
from rivertwice.deliver import Note, make_deliverer, read_aside, read_note, sinks_of, write_note
from rivertwice.timeline import Intent

LOG = logging.getLogger(__name__)
PAGE_AT = 5  # failures in a row
JOIN_S = 10.0
REFUSED_EVERY = timedelta(seconds=10)
"""How often the record of refused deliveries is read: it may be in an object store."""


class DeliveryWorker(threading.Thread):
    """Delivers to one sink until it is asked to end, or until it fails."""

    def __init__(self, settings: Settings, pipeline: str, sink: str, asked: Delivery) -> None:
        super().__init__(name=f"deliver-{pipeline}-{sink}", daemon=True)
        self._settings = settings
        self.pipeline = pipeline
        self.sink = sink
        self.asked = asked
        self.halt = threading.Event()
        self.finish = threading.Event()

    def run(self) -> None:
        """Deliver; an error is noted with the next attempt."""
        began = utc_now()
        try:
            make_deliverer(self._settings, self.pipeline, self.sink, self.asked).run(self.halt, self.finish)
        except Exception as error:
            self._failed(error, began, utc_now())

    def _failed(self, error: Exception, began: datetime, now: datetime) -> None:
        text = str(error) if isinstance(error, RivertwiceError) else f"{type(error).__name__}: {error}"
        if not isinstance(error, RivertwiceError):
            LOG.exception("delivery of %s to %s failed", self.pipeline, self.sink)
        home = self._settings.pipeline(self.pipeline)
        before = read_note(home, self.sink)
        progressed = before.delivered_at is not None and before.delivered_at >= began
        failures = 1 if progressed else before.failures + 1
        attempt = now + delay_after(failures)
        note = replace(before, failures=failures, error=text, failed_at=now, next_attempt=attempt)
        write_note(home, self.sink, note)
        if text != before.error:
            message = f"delivery to {self.sink} failed, tried again: {text}"
            record_event(self._settings, "delivery_failed", self.pipeline, message, now)
        if failures >= PAGE_AT:
            message = f"delivery to {self.sink} failed {failures} times in a row: {text}"
            page(self._settings, "delivery", self.pipeline, message, now, severity="warning", subject=self.sink)


class DeliveryKeeper(Keeper):
    """Keeps a worker per sink to deliver; workers end after their step."""

    what, every_s, join_s = "delivery", 2.0, 30.0

    def __init__(self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event) -> None:
        super().__init__(settings, names, stop)
        self.workers: dict[tuple[str, str], DeliveryWorker] = {}
        self._looked_at: dict[str, datetime] = {}

    def look(self, name: str, now: datetime) -> None:
        """Start the workers that are needed and not running, and end those that are not needed any more."""
        home = self._settings.pipeline(name)
        intent = Intent.load(self._settings.pipeline(home.serving_version))
        wanted = intent is not None and intent.desired == "running"
        sinks = sinks_of(self._settings, name)
        for key, worker in list(self.workers.items()):
            if key[0] != name:
                continue
            if not worker.is_alive():
                del self.workers[key]
            elif sinks.get(key[1]) != worker.asked:  # the definition has changed
                worker.halt.set()
            elif not (wanted or worker.asked.registered):
                worker.finish.set()
            elif worker.finish.is_set():  # needed again: it ends, and another one begins
                worker.halt.set()
        notes = {sink: read_note(home, sink) for sink in sinks}
        failing = [sink for sink, note in notes.items() if note.failures]
        page_over(
            self._settings, {"delivery"}, name, "the sink takes records, or is not defined any more", now, but=failing
        )
        for sink, asked in sinks.items():
            note = notes[sink]
            due = note.next_attempt is None or note.next_attempt <= now
            if (wanted or asked.registered) and due and (name, sink) not in self.workers:
                worker = DeliveryWorker(self._settings, name, sink, asked)
                self.workers[(name, sink)] = worker
                worker.start()
        self._report_refused(name, notes, now)

    def _report_refused(self, name: str, notes: Mapping[str, Note], now: datetime) -> None:
        """Report the sinks whose destination refused deliveries, and the end of that."""
        looked = self._looked_at.get(name)
        if looked is not None and timedelta(0) <= now - looked < REFUSED_EVERY:
            return
        self._looked_at[name] = now
        home = self._settings.pipeline(name)
        lacking: set[str] = set()
        for sink, note in notes.items():
            aside = read_aside(home, sink, note.position)
            keys = aside.open_keys()
            if keys:
                lacking.add(sink)
                page(
                    self._settings, "delivery_refused", name, aside.describe(sink), now,
                    severity="warning", subject=sink,
                )  # fmt: skip
        why = "nothing that the destination refused is open any more"
        page_over(self._settings, {"delivery_refused"}, name, why, now, but=lacking)

    def end(self) -> None:
        """End all workers after their step."""
        for worker in self.workers.values():
            worker.halt.set()
        deadline = Deadline.after(JOIN_S)
        for worker in self.workers.values():
            worker.join(deadline.left())
