"""Look at the tables: the head's path, the batches after a position, publications, rows. Reads only.

A table that did not change is not read again: a look costs two calls of `stat` if there was no commit.
The sinks of a pipeline have what consumers read, so the tables are those of whichever version serves (`ServingSource`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from rivertwice.core import LedgerError, PipelineHome, Settings, base_of, to_iso
from rivertwice.definition import Window, load_bundle_definition
from rivertwice.deliver.model import Committed, DeliveredColumns, Line, Newest, Position, View
from rivertwice.deliver.plan import is_continued
from rivertwice.storage import Table, Where
from rivertwice.timeline import (
    Entry,
    LedgerRow,
    Publication,
    Timeline,
    check_corrections,
    folded_views,
    path_of,
    path_semantics,
    publications_of,
    read_ledger,
    read_sequence,
    select_head,
    select_on_path,
)

AGAIN_S = 2.0  # a stamp is a time of the file system: two commits may have one


@dataclass(frozen=True)
class _Known:
    """Batches on a path, read from `first` on."""

    head: str
    first: int | None
    batches: tuple[Committed, ...]


@dataclass(frozen=True)
class SinkState:
    """What a position means: its line, the watermark of its batch, and the publications of its version, oldest first."""

    line: Line
    closed_ms: int
    publications: tuple[Publication, ...]


def version_mark(home: PipelineHome) -> str:
    """Return how positions name a version: empty for the first one."""
    return "" if home.is_first_version else home.root.name


class StoredSource:
    """The tables of one version of a pipeline; not shared between threads."""

    def __init__(self, home: PipelineHome) -> None:
        self._home = home
        self._entries: list[Entry] = []
        self._sequence_stamp = self._changelog_stamp = -2
        self._read_at = float("-inf")
        self._lines: dict[str, Line] = {}
        self._known: _Known | None = None
        self._windows: dict[str, Window] = {}

    def look(self, position: Position | None) -> View | None:
        """Return the view of the tables for a sink at `position`; None before the first start.

        Raises:
            LedgerError: the position belongs to other tables.
        """
        again = time.monotonic() - self._read_at >= AGAIN_S
        self._read_sequence(again=again)
        head = select_head(self._entries)
        if head is None:
            return None
        line = self._line(head)
        publications = tuple(publications_of(self._entries))
        seq, seq_at = self._entries[-1].seq, self._entries[-1].created_at
        if position is None:
            return View(line, self._batches(line, None, again=again), publications, seq, seq_at=seq_at)
        held = self._held_line(position)
        is_on_path = is_continued(position, held, line, publications)
        batches = self._batches(line, position.batch if is_on_path else None, again=again)
        closed_ms = self._closed_ms(position, batches if is_on_path else self._all(held))
        return View(line, batches, publications, seq, held, closed_ms, seq_at=seq_at)

    def look_to(self, to: Position) -> View:
        """Return the view that led to a position on these tables; what came later is left out.

        Raises:
            LedgerError: the position belongs to other tables.
        """
        self._read_sequence(again=True)
        line = self._held_line(to)
        batches = tuple(batch for batch in self._all(line) if batch.batch <= to.batch)
        publications = tuple(entry for entry in publications_of(self._entries) if entry.seq <= to.seq)
        return View(line, batches, publications, to.seq)

    def held(self, position: Position) -> SinkState:
        """Return what a position on these tables means.

        Raises:
            LedgerError: the position belongs to other tables.
        """
        self._read_sequence(again=True)
        line = self._held_line(position)
        return SinkState(line, self._closed_ms(position, self._all(line)), tuple(publications_of(self._entries)))

    def of(self, line: Line) -> StoredSource:
        """Return the tables that have a line: these."""
        del line
        return self

    def _held_line(self, position: Position) -> Line:
        held = self._line(position.timeline)
        if held.born != position.born:
            message = (
                f"the position names timeline {position.timeline} created at {position.born}, here it was created at {held.born}: "
                "the sink was filled from another home; use another sink, or deliver all with --again"
            )
            raise LedgerError(message)
        return held

    def _closed_ms(self, position: Position, where: Sequence[Committed]) -> int:
        """Return the watermark of the position's batch, which is among some batches."""
        delivered_batch = next((batch for batch in where if batch.batch == position.batch), None)
        if delivered_batch is None:
            message = (
                f"batch {position.batch} on the path of {position.timeline} was delivered, but the ledger does not know it; "
                "nothing was delivered; restore the tables, or deliver all with --again"
            )
            raise LedgerError(message)
        return delivered_batch.closed_ms

    def shape(self, view: View, *, newest: bool = False) -> DeliveredColumns:
        """Return the result's columns by the definition that the head runs; with `newest`, those of a fold's newest rows."""
        return self.columns_of(view.head, newest=newest)

    def columns_of(self, line: Line, *, newest: bool) -> DeliveredColumns:
        """Return the result's columns by the definition that a line's timeline runs."""
        bundle = Timeline.load(self._home, line.timeline).bundle
        definition = load_bundle_definition(self._home.bundles, bundle)
        window = definition.window
        if newest:
            own = tuple(definition.keys)
            address = [name for name in definition.row_keys if name not in own]
            others = (*address, *definition.columns)
            newest_rows = Newest(folded_views(definition), definition.deleted)
            return DeliveredColumns(
                base_of(definition.name), window.start_column, window.end_column, own, others,
                newest=newest_rows, version=line.version,
            )  # fmt: skip
        return DeliveredColumns(
            base_of(definition.name),
            window.start_column,
            window.end_column,
            tuple(definition.row_keys),
            tuple(definition.columns),
            definition.session_keys is not None,
            updates_ms=window.length // timedelta(milliseconds=1) if definition.has_updates else None,
            version=line.version,
        )

    def schema(self) -> pa.Schema:
        """Return the types of the changelog's columns."""
        table = Table(self._home.tables.changelog).read(matching=Where("_batch").is_between(0, -1))
        assert table is not None, "there is a committed batch"
        return table.schema

    def changelog(self, first: int, last: int) -> pa.Table:
        """Return rows of the batches `first <= batch <= last` of all timelines."""
        rows = Table(self._home.tables.changelog).read(matching=Where("_batch").is_between(first, last))
        if rows is None:
            message = (
                f"the ledger of {self._home.root.name} has batch {last}, but there is no changelog; restore the table"
            )
            raise LedgerError(message)
        return rows

    def corrections(self, backfills: frozenset[str]) -> pa.Table | None:
        """Return the rows that these backfills computed; None if the table does not exist.

        Raises:
            TableDamageError: rows of a publication are lost; without them the delivery would withdraw its windows.
        """
        place = self._home.tables.corrections
        rows = Table(place).read(matching=Where("_backfill").is_among(sorted(backfills))) if backfills else None
        published = [publication for publication in publications_of(self._entries) if publication.backfill in backfills]
        check_corrections(self._home.root.name, published, rows)
        return rows

    def days(self) -> list[str]:
        """Return the days (UTC) on which windows of any timeline start, sorted."""
        tables = self._home.tables
        return sorted(Table(tables.changelog).distinct("_day") | Table(tables.corrections).distinct("_day"))

    def on_day(self, day: str, shape: DeliveredColumns) -> DayReader:
        """Return a reader of the rows of windows that start on a day."""
        return DayReader(self._home, day, shape)

    def _read_sequence(self, *, again: bool) -> None:
        stamp = Table(self._home.tables.sequence).log_stamp()
        if again or stamp != self._sequence_stamp:
            entries = read_sequence(self._home)
            if entries != self._entries:
                self._entries, self._known = entries, None
            self._sequence_stamp = stamp

    def _line(self, timeline: str) -> Line:
        if timeline not in self._lines:
            record = Timeline.load(self._home, timeline)
            path = tuple(path_of(self._home, timeline))
            semantics, version = path_semantics(self._home, path), version_mark(self._home)
            self._lines[timeline] = Line(timeline, to_iso(record.created_at), path, semantics, version)
        return self._lines[timeline]

    def _batches(self, line: Line, first: int | None, *, again: bool) -> tuple[Committed, ...]:
        """Return the batches of a path from `first` on; from the cache, if it has later ones."""
        known = self._known
        if known is not None and known.head == line.timeline and _covers(known.first, first):
            cached = known.batches
            if first is not None:
                cached = tuple(batch for batch in cached if batch.batch >= first)
            stamp = Table(self._home.tables.changelog).log_stamp()
            if (cached and (first is None or cached[-1].batch > first)) or (
                stamp == self._changelog_stamp and not again
            ):
                self._known = _Known(line.timeline, first, cached)
                return cached
        self._changelog_stamp = Table(self._home.tables.changelog).log_stamp()
        self._read_at = time.monotonic()
        rows = select_on_path(read_ledger(self._home, first), line.path)
        batches = tuple(self._committed(row) for row in rows)
        self._known = _Known(line.timeline, first, batches)
        return batches

    def _all(self, line: Line) -> list[Committed]:
        return [self._committed(row) for row in select_on_path(read_ledger(self._home), line.path)]

    def _committed(self, row: LedgerRow) -> Committed:
        if row.bundle not in self._windows:
            self._windows[row.bundle] = load_bundle_definition(self._home.bundles, row.bundle).window
        closed_ms = self._windows[row.bundle].closed_ms(row.batch_watermark_ms)
        return Committed(row.timeline, row.batch, closed_ms, row.emitted, row.committed_at)


class DayReader:
    """Reads rows of windows that start on one day; of sessions all corrections, which may replace those of another day."""

    def __init__(self, home: PipelineHome, day: str, shape: DeliveredColumns) -> None:
        self._tables = home.tables
        self._day = Where("_day").equals(day)
        self._is_of_sessions = shape.sessions

    def changelog(self, first: int, last: int) -> pa.Table:
        """Return rows of the batches `first <= batch <= last` of all timelines."""
        rows = Table(self._tables.changelog).read(
            matching=Where.all([Where("_batch").is_between(first, last), self._day])
        )
        assert rows is not None, "it has a day"
        return rows

    def corrections(self, backfills: frozenset[str]) -> pa.Table | None:
        """Return the rows that these backfills computed; None if the table does not exist."""
        if not backfills:
            return None
        ours = Where("_backfill").is_among(sorted(backfills))
        return Table(self._tables.corrections).read(
            matching=ours if self._is_of_sessions else Where.all([ours, self._day])
        )


class ServingSource:
    """The tables of the version that serves, and of the one that a position belongs to; not shared between threads."""

    def __init__(self, settings: Settings, pipeline: str) -> None:
        """Take the pipeline's name; nothing is read until `look`."""
        self._settings, self._pipeline = settings, pipeline
        self._sources: dict[str, StoredSource] = {}
        self._serving = self._of("")

    def look(self, position: Position | None) -> View | None:
        """Return the view of the tables for a sink at `position`; None before the first start.

        Raises:
            LedgerError: the position belongs to other tables.
        """
        serving = self._settings.pipeline(self._settings.pipeline(self._pipeline).serving_version)
        self._serving = self._of(version_mark(serving))
        if position is None or position.version == version_mark(serving):
            return self._serving.look(position)
        view = self._serving.look(None)
        if view is None:
            return None
        return self._from(position, view)

    def look_to(self, before: Position | None, to: Position) -> View:
        """Return the view from which the step between two positions was planned, whatever the head is now.

        Raises:
            LedgerError: a position belongs to other tables.
        """
        self._serving = self._of(to.version)
        view = self._serving.look_to(to)
        if before is None:
            return view
        view = self._from(before, view)
        return replace(view, held_publications=None) if before.version == to.version else view

    def _from(self, position: Position, view: View) -> View:
        """Return the view for a sink at a position, which may be of another version."""
        held = self._of(position.version).held(position)
        return replace(view, held=held.line, held_closed_ms=held.closed_ms, held_publications=held.publications)

    def shape(self, view: View, *, newest: bool = False) -> DeliveredColumns:
        """Return the result's columns by the definition that serves."""
        return self._serving.shape(view, newest=newest)

    def schema(self) -> pa.Schema:
        """Return the types of the changelog's columns, of the version that serves."""
        return self._serving.schema()

    def of(self, line: Line) -> StoredSource:
        """Return the tables that have a line."""
        return self._of(line.version)

    def _of(self, version: str) -> StoredSource:
        if version not in self._sources:
            self._sources[version] = StoredSource(self._settings.pipeline(version or self._pipeline))
        return self._sources[version]


def _covers(known: int | None, wanted: int | None) -> bool:
    return known is None or (wanted is not None and known <= wanted)
