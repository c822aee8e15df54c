"""How far each sink is; and which sinks a pipeline has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from rivertwice.core import PipelineHome, RivertwiceError, Settings, base_of
from rivertwice.definition import Delivery, IcebergDelivery, load_definition
from rivertwice.deliver.aside import read_aside
from rivertwice.deliver.model import Position
from rivertwice.deliver.note import Note, read_note
from rivertwice.deliver.plan import count_waiting, is_prefix_of_served, waiting_since
from rivertwice.deliver.refusals import AsideEntry
from rivertwice.deliver.source import ServingSource


@dataclass(frozen=True)
class PartView:
    """Where the step that a sink has a part of leads, and how many of its records the sink has."""

    batch: int | None
    sequence: int
    records: int


@dataclass(frozen=True)
class SinkView:
    """How far a sink is; the position is the last one noted in this home, at most a second old while a deliverer runs.

    Attributes:
        lag_batches: that wait; None: not known.
        waits_since: since when rows wait and the sink took none; a sink that collects rows for some time waits from then on.
        on_head_path: whether its position is. refused: deliveries that its destination refused for good and that are open.
        error: the last one, or why something is not known.
    """

    sink: str
    to: str
    guarantee: str
    version: str | None
    timeline: str | None
    batch: int | None
    sequence: int | None
    steps: int
    part: PartView | None
    rows: int
    lag_batches: int | None
    waits_since: datetime | None
    on_head_path: bool | None
    delivered_at: datetime | None
    consecutive_failures: int
    next_attempt: datetime | None
    refused: int | None
    error: str | None


@dataclass(frozen=True)
class RefusedView(AsideEntry):
    """A delivery that the destination of a sink refused for good."""

    sink: str = ""


def view_delivery(settings: Settings, pipeline: str, sinks: Mapping[str, Delivery]) -> list[SinkView]:
    """Return how far each sink is."""
    return [_view(settings, pipeline, name, sink) for name, sink in sinks.items()]


def _view(settings: Settings, pipeline: str, name: str, sink: Delivery) -> SinkView:
    home = settings.pipeline(pipeline)
    note = read_note(home, name)
    position = note.position
    lag, on_path, since, problem = _lag(settings, pipeline, note)
    if since is not None:
        patience = timedelta(seconds=sink.every_s) if isinstance(sink, IcebergDelivery) else timedelta(0)
        since = max(since, note.delivered_at or since) + patience
    refused, unread = _refused(home, name, position)
    part = None if position is None else position.part
    return SinkView(
        sink=name,
        to=sink.place,
        guarantee=sink.guarantee,
        version=None if position is None else position.version or pipeline,
        timeline=None if position is None else position.timeline,
        batch=None if position is None else position.batch,
        sequence=None if position is None else position.seq,
        steps=0 if position is None else position.number,
        part=None if part is None else PartView(part.to.batch, part.to.seq, part.done),
        rows=note.rows,
        lag_batches=lag,
        waits_since=since,
        on_head_path=on_path,
        delivered_at=note.delivered_at,
        consecutive_failures=note.failures,
        next_attempt=note.next_attempt,
        refused=refused,
        error=note.error or problem or unread,
    )


def _refused(home: PipelineHome, sink: str, position: Position | None) -> tuple[int | None, str | None]:
    """Return how many refused deliveries are open, or the reason why that is unknown."""
    try:
        return len(read_aside(home, sink, position).open_keys()), None
    except RivertwiceError as error:
        return None, str(error)


def view_refused(home: PipelineHome, sink: str) -> list[RefusedView]:
    """Return the deliveries that a sink's destination refused for good, oldest first."""
    aside = read_aside(home, sink, read_note(home, sink).position)
    entries = sorted(aside.entries.values(), key=lambda entry: (entry.first_at, entry.key))
    return [RefusedView(**vars(entry), sink=sink) for entry in entries]


def _lag(settings: Settings, pipeline: str, note: Note) -> tuple[int | None, bool | None, datetime | None, str | None]:
    """Return how many batches wait, whether the position is on the head's path, since when rows wait, or why that is unknown."""
    try:
        position = None if note.position is None else note.position.whole
        view = ServingSource(settings, pipeline).look(position)
        if view is None or not view.batches:
            return 0, None, None, None
        on_path = position is None or is_prefix_of_served(position, view)
        return count_waiting(position, view), on_path, waiting_since(position, view), None
    except RivertwiceError as error:
        return None, None, None, str(error)


# Which sinks a pipeline has: those of the definition that serves. They belong to the pipeline, not to one of its versions.


def sinks_of(settings: Settings, name: str) -> Mapping[str, Delivery]:
    """Return name to sink; a later version has none: while it serves, it fills those of the pipeline.

    Raises:
        DefinitionError: the definition that serves cannot be loaded.
    """
    home = settings.pipeline(name)
    if not home.is_first_version:
        return {}
    return load_definition(settings.definition_folder(home.serving_version)).deliver


def tables_behind(settings: Settings, name: str) -> frozenset[str]:
    """Return the tables of which a catalog may name removed files, because they are not registered now: `served`, `changelog`."""
    name = base_of(name)
    try:
        sinks = sinks_of(settings, name)
    except RivertwiceError:  # nothing is registered either, until the definition can be loaded
        return frozenset({"served", "changelog"})
    home = settings.pipeline(name)
    return frozenset(
        each.registered for sink, each in sinks.items() if each.registered and read_note(home, sink).failures
    )
