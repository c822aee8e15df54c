"""Find the rows that a person names by pipeline and table, as they are at this moment."""

from __future__ import annotations

import dataclasses

import pyarrow.compute as pc

from rivertwice.config import PipelineHome, Settings
from rivertwice.config.versions import base_of
from rivertwice.errors import RequestError
from rivertwice.results.judged import newest_chain, rows_that_hold
from rivertwice.results.kinds import PROVISIONAL, SERVED, Kind, Scope, kind_named
from rivertwice.results.rows import Rows, Table
from rivertwice.results.status import Status, status_of
from rivertwice.store import delta
from rivertwice.store.delta_dataset import TableFiles
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.lineage import head_definition, head_path, path_until
from rivertwice.timeline.served_stamp import serving_by_stamp

WINDOW_START = "window_start"
_ABSENT = {
    SERVED: "nothing is served yet: the agent builds the table after the first batch; `rivertwice status` shows how far the stream is",
    PROVISIONAL: "it has rows only if its definition says `emit: updates`",
    "verdicts": "it was never reconciled; run `rivertwice reconcile {name}`",
    "causes": "it was never reconciled; run `rivertwice reconcile {name}`",
    "reconciles": "it was never reconciled; run `rivertwice reconcile {name}`",
    "quality": "none of its suites has run: `expectations/{name}/windows.json` runs with each reconcile (docs/howto-quality.md)",
    "dead-letters": "no record was refused so far",
    "late-rows": "its late policy keeps none, or no record was late so far",
    "amendments": "nothing was decided about a dead letter so far",
}


def find_rows(settings: Settings, name: str, table: str = SERVED, *, require_current: bool = False) -> Rows:
    """Return the rows of a pipeline's table, of which nothing is read yet.

    A pipeline's own name means the version that serves; `NAME@v2` means that version, also while another one serves.

    Args:
        settings: of the project.
        name: of the pipeline.
        table: which one.
        require_current: refuse rows that do not show all that is committed.

    Raises:
        RequestError: there is no such pipeline or table, the table has not been written yet, or it is not current.
    """
    settings.known_pipeline(name)
    kind = kind_named(table)
    rows = open_rows(settings, name, kind)
    if rows is None:
        why = _ABSENT.get(kind.name, "nothing was written to it yet").format(name=name)
        message = f"{name} has no {kind.name.replace('-', ' ')}: {why}"
        raise RequestError(message)
    if require_current:
        rows.status.require_current()
    return rows


def open_rows(settings: Settings, name: str, kind: Kind) -> Rows | None:
    """Return the rows of a table, or None if it does not exist."""
    home = settings.pipeline(name)
    serving = serving_by_stamp(home)
    if name == base_of(name):
        home = settings.pipeline(serving)
    place = home.served_while(serving) if kind.name == SERVED else kind.place(home)
    handle = delta.open_table(place)
    if handle is None:
        return None
    has_stamp = kind.name in (SERVED, PROVISIONAL)
    status = status_of(home, kind.name, place, handle, has_stamp=has_stamp)
    files = TableFiles(place, handle)
    scope, status = _scope(home, kind, files, status)
    definition = head_definition(home)
    start = WINDOW_START if definition is None else definition.window.start_column
    keys = () if definition is None else tuple(definition.row_keys)
    return Rows(Table(name, kind, handle, files, kind.time or start, keys, status, scope))


def _scope(home: PipelineHome, kind: Kind, files: TableFiles, status: Status) -> tuple[pc.Expression | None, Status]:
    """Return which rows of a table count, None for all, and its status with the reconcile for which they hold."""
    if kind.scope is Scope.PATH:
        return _on_path(home, *kind.batch), status
    if kind.scope is Scope.NEWEST_RUN:
        newest = newest_chain(home)
        if newest is None:
            return pc.scalar(False), status
        chain, run = newest
        return rows_that_hold(chain, files.dataset()), dataclasses.replace(status, run=run["run"])
    return None, status


def _on_path(home: PipelineHome, timeline: str, batch: str) -> pc.Expression:
    """Return the condition that a row is of a committed batch of the head's path."""
    path = head_path(home)
    last = newest_batch(home, path)
    keep = pc.scalar(False)
    for part in [] if last is None else path_until(path, last.batch):
        inside = (pc.field(timeline) == part.timeline) & (pc.field(batch) >= part.first)
        keep = keep | (inside if part.last is None else inside & (pc.field(batch) <= part.last))
    return keep
