"""By which columns readers skip files of the tables that grow by a commit a batch: only these columns have statistics in their logs.

Every commit reads the statistics of all live files again (`store.delta.properties_of`). A reader that skips by another column is
right all the same: it reads more files. Then the column belongs here.
"""

from __future__ import annotations

from rivertwice.config import PipelineHome, Place
from rivertwice.pipeline.definition import Definition

LEDGER = ("timeline", "batch", "min_event_ms", "max_event_ms", "committed_at")
SIDE = ("_timeline", "_batch", "offset", "record_time", "window_start")
"""Of dead letters, late rows and versions of tables, as far as each has the column."""


def of_changelog(definition: Definition) -> tuple[str, ...]:
    """Return the columns of the changelog. Pure."""
    return "_timeline", "_batch", definition.window.start_column, definition.window.end_column


def by_table(home: PipelineHome, definition: Definition) -> dict[Place, tuple[str, ...]]:
    """Return the columns of each table to which the stream of a definition commits. Pure."""
    tables = home.tables
    side = (tables.dead_letters, tables.late_rows, *(tables.versions(view) for view in definition.tables))
    return {tables.changelog: of_changelog(definition), tables.ledger: LEDGER, **dict.fromkeys(side, SIDE)}
