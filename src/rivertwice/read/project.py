"""A project's results for Python: `rivertwice.open()`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivertwice.core import Settings, parse_instant

if TYPE_CHECKING:
    import pyarrow as pa

    from rivertwice.timeline import Rows

Instant = str | date | datetime
"""ISO 8601 with a zone, a day (midnight UTC), or an aware datetime."""


class Project:
    """A project whose results are read: its pipelines, and the rows of their tables.

    Attributes:
        require_current: whether `served`, `provisional` and queries refuse rows that do not show all that is committed.
    """

    def __init__(self, settings: Settings, *, require_current: bool = False) -> None:
        """Read nothing yet."""
        self.settings = settings
        self.require_current = require_current

    @property
    def pipelines(self) -> list[str]:
        """The names of all pipelines that are defined or have state here, sorted."""
        return self.settings.pipeline_names()

    def rows(
        self,
        pipeline: str,
        table: str = "served",
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        key: Mapping[str, Any] | None = None,
        columns: Sequence[str] = (),
        require_current: bool | None = None,
    ) -> Rows:
        """Return rows of one of a pipeline's tables; nothing is read yet.

        Args:
            pipeline: its name: the version that serves; or `NAME@v2`.
            table: `served`, `provisional`, `verdicts`, `causes`, `reconciles`, `quality`, `ledger`, `changelog`, `dead-letters`,
                `late-rows`, `sequence` or `amendments`.
            start: only rows whose time is at or after it; the time of a result is the start of its window.
            end: only rows whose time is before it.
            key: column to value; only rows with these values.
            columns: the columns to read; none: all that are not the storage's own.
            require_current: refuse rows that do not show all that is committed; None: as the project was opened, for the tables
                that say what they show (`served`, `provisional`).

        Raises:
            RequestError: there is no such pipeline, table or column, the table has not been written yet, or it is not current.
        """
        from rivertwice.read.find import find_rows
        from rivertwice.timeline import PROVISIONAL, SERVED

        must = self.require_current and table in (SERVED, PROVISIONAL) if require_current is None else require_current
        rows = find_rows(self.settings, pipeline, table, require_current=must)
        return rows.choose(_instant(start), _instant(end), key, columns)

    def served(self, pipeline: str, start: Instant | None = None, end: Instant | None = None, **chosen: Any) -> Rows:
        """Return what closed windows serve; arguments as for `rows`."""
        return self.rows(pipeline, "served", start, end, **chosen)

    def provisional(
        self, pipeline: str, start: Instant | None = None, end: Instant | None = None, **chosen: Any
    ) -> Rows:
        """Return the newest rows of open windows (emit: updates); arguments as for `rows`."""
        return self.rows(pipeline, "provisional", start, end, **chosen)

    def verdicts(self, pipeline: str, start: Instant | None = None, end: Instant | None = None, **chosen: Any) -> Rows:
        """Return the verdicts that hold for the newest reconcile; arguments as for `rows`."""
        return self.rows(pipeline, "verdicts", start, end, **chosen)

    def causes(self, pipeline: str, start: Instant | None = None, end: Instant | None = None, **chosen: Any) -> Rows:
        """Return the causes that hold for the newest reconcile; arguments as for `rows`."""
        return self.rows(pipeline, "causes", start, end, **chosen)

    def ledger(self, pipeline: str, start: Instant | None = None, end: Instant | None = None, **chosen: Any) -> Rows:
        """Return the committed batches of the head's path, by the instant of their commit; arguments as for `rows`."""
        return self.rows(pipeline, "ledger", start, end, **chosen)

    def query(self, sql: str, limit: int = 100_000, *, require_current: bool | None = None) -> pa.Table:
        """Return the first rows of a query over the views `NAME`, `NAME__verdicts` and so on (`rivertwice query`).

        Args:
            require_current: refuse if a view of `served` or `provisional` does not show all that is committed; None: as the
                project was opened.

        Raises:
            RequestError: the query is wrong, with the place and the nearest names; or a view is not current.
            ServiceError: DuckDB is not installed.
        """
        from rivertwice.read.query import run_query

        must = self.require_current if require_current is None else require_current
        return run_query(self.settings, sql, limit, require_current=must).rows

    def __repr__(self) -> str:
        """Return where the project is, for a notebook."""
        return f"rivertwice.open({str(self.settings.project)!r})"


def open_project(
    project: str | Path | None = None, *, home: str | Path | None = None, require_current: bool = False
) -> Project:
    """Return a project whose results are to be read; it need not run.

    Args:
        project: folder with `pipelines/`; None: `RIVERTWICE_PROJECT`, else the current folder.
        home: folder of its state; None: `RIVERTWICE_HOME`, else `PROJECT/.rivertwice`. S3 and all else come from the environment,
            as for the command line.
        require_current: refuse rows of `served` and `provisional` that do not show all that is committed.

    Raises:
        ConfigError: a setting cannot be read.
    """
    env = dict(os.environ)
    if project is not None:
        env["RIVERTWICE_PROJECT"] = str(project)
    if home is not None:
        env["RIVERTWICE_HOME"] = str(home)
    return Project(Settings.from_env(env), require_current=require_current)


def _instant(value: Instant | None) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_instant(value)
    return value if isinstance(value, datetime) else datetime.combine(value, time(), UTC)
