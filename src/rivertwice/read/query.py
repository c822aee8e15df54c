"""SQL over the tables of a project's pipelines, by DuckDB: read-only, offline, and only the files that the conditions leave."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rivertwice.core import RequestError, Settings, naming_extras
from rivertwice.read.find import open_rows
from rivertwice.timeline import KINDS, SERVED, Kind, Rows, Status

_BATCH_ROWS = 2_048
_OF_DUCKDB = ("duckdb_", "pg_", "sqlite_")
_SETTINGS: Mapping[str, str] = {
    "TimeZone": "UTC",
    "python_enable_replacements": "false",  # else SQL sees the variables of this process
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",  # no file, no network, no other database
    "lock_configuration": "true",
}
"""In this order: nothing can be set after the last."""


@dataclass(frozen=True)
class View:
    """A name in SQL.

    Attributes:
        name: `NAME` for what is served, `NAME__verdicts` and so on for the rest.
        pipeline, kind: the table that it shows.
    """

    name: str
    pipeline: str
    kind: Kind

    @property
    def sql(self) -> str:
        """The name as SQL takes it: quoted if it has other characters than letters, digits and underscores."""
        return self.name if self.name.isidentifier() else f'"{self.name}"'


@dataclass(frozen=True)
class Answer:
    """Rows that a query gave.

    Attributes:
        statuses: what each view that was read shows.
    """

    rows: pa.Table
    is_whole: bool
    statuses: Sequence[Status] = field(default_factory=tuple)


def views_of(settings: Settings) -> dict[str, View]:
    """Return the names in SQL of all tables that the project's pipelines may have, by name."""
    views = [View(f"{name}{kind.view}", name, kind) for name in settings.pipeline_names() for kind in KINDS]
    return {view.name: view for view in views}


def describe_views(settings: Settings) -> list[tuple[View, Rows]]:
    """Return the views whose tables exist, each with its rows, of which nothing is read."""
    opened = ((view, open_rows(settings, view.pipeline, view.kind)) for view in views_of(settings).values())
    return [(view, rows) for view, rows in opened if rows is not None]


def run_query(settings: Settings, sql: str, limit: int, *, require_current: bool = False) -> Answer:
    """Return the first rows of a query.

    1. The statement is parsed: it must be one SELECT (FROM, VALUES, DESCRIBE, SUMMARIZE). 2. The views that it names are opened,
    no others. 3. It runs; its rows are taken one batch after the other, until there are enough.

    Args:
        require_current: refuse if a view that says what it shows does not show all that is committed.

    Raises:
        RequestError: the text is not a query, names what is not there, or fails on the rows; with the place and the nearest names.
            Or a view is not current.
        ConfigError: DuckDB is not installed.
    """
    with naming_extras():
        import duckdb
    with tempfile.TemporaryDirectory(prefix="rivertwice-query-") as spill, duckdb.connect(":memory:") as connection:
        connection.execute(f"SET temp_directory = '{spill}'")
        opened = _open(settings, *_names_in(connection, sql))
        for rows in opened.values():
            if require_current and rows.status.is_current is not None:
                rows.status.require_current()
        for name, rows in opened.items():
            connection.register(name, rows.dataset())
        for option, value in _SETTINGS.items():
            connection.execute(f"SET {option} = '{value}'")
        with _explained(duckdb):
            try:
                reader = connection.sql(sql).to_arrow_reader(_BATCH_ROWS)
            except duckdb.BinderException:
                connection.execute(sql)  # fails in the same way before anything runs, and says where
                raise
            found, is_whole = _first(reader, limit)
        return Answer(found, is_whole, tuple(rows.status for rows in opened.values()))


def _names_in(connection: Any, sql: str) -> tuple[list[str], set[str]]:
    """Return the tables that a query names, and those that it defines itself (WITH)."""
    answer = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    tree = json.loads(answer[0][0])
    if tree["error"]:
        position = tree.get("position")
        if position is None:
            message = f"{_short(sql)!r} is not a query: only SELECT runs here, and nothing is written; `rivertwice show NAME --write FILE` writes files"
            raise RequestError(message)
        message = f"{tree['error_message']}\n{_pointer(sql, int(position))}"
        raise RequestError(message)
    if len(tree["statements"]) != 1:
        message = f"there are {len(tree['statements'])} statements; write one SELECT"
        raise RequestError(message)
    tables, own = set[str](), set[str]()
    _walk(tree["statements"][0], tables, own)
    return sorted(tables), own


def _walk(node: Any, tables: set[str], own: set[str]) -> None:
    if isinstance(node, dict):
        if node.get("type") in ("BASE_TABLE", "SHOW_REF") and node.get("table_name") and not node.get("schema_name"):
            tables.add(node["table_name"].strip('"'))
        if isinstance(node.get("cte_map"), dict):
            own.update(entry["key"] for entry in node["cte_map"]["map"])
        for child in node.values():
            _walk(child, tables, own)
    elif isinstance(node, list):
        for child in node:
            _walk(child, tables, own)


def _open(settings: Settings, names: Sequence[str], own: Container[str]) -> dict[str, Rows]:
    """Return the rows of the views that a query names; its own tables, and DuckDB's, are left to DuckDB."""
    views = {view.name.casefold(): view for view in views_of(settings).values()}
    opened = {}
    for name in names:
        view = views.get(name.casefold())
        if view is None and (name in own or name.startswith(_OF_DUCKDB)):
            continue
        if view is None:
            raise RequestError(_unknown(name, [view.sql for view in views.values()], settings))
        rows = open_rows(settings, view.pipeline, view.kind)
        if rows is None:
            message = f"the view {view.sql} has no rows: nothing was written to {view.kind.name} of {view.pipeline} yet; `rivertwice query --views` lists what there is"
            raise RequestError(message)
        opened[view.name] = rows
    return opened


def _unknown(name: str, known: Sequence[str], settings: Settings) -> str:
    close = difflib.get_close_matches(name, [text.strip('"') for text in known], n=2)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    served = [view.sql for view in views_of(settings).values() if view.kind.name == SERVED]
    suffixes = ", ".join(kind.view for kind in KINDS if kind.view)
    listed = f"there are {', '.join(served)}, each also with {suffixes}" if served else "the project has no pipeline"
    return f"there is no view {name!r}; {hint}{listed}; `rivertwice query --views` shows their columns"


def _first(reader: pa.RecordBatchReader, limit: int) -> tuple[pa.Table, bool]:
    taken, count = [], 0
    for batch in reader:
        taken.append(batch)
        count += batch.num_rows
        if count > limit:
            break
    return pa.Table.from_batches(taken, reader.schema).slice(0, limit), count <= limit


@contextmanager
def _explained(duckdb: Any) -> Iterator[None]:
    """Turn DuckDB's errors into one that says what is wrong and where; its candidates for a name are kept."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
        head = lines[0] if lines else type(error).__name__
        message = "\n".join([head.partition(" Error: ")[2] or head, *lines[1:]])
        if "file system operations are disabled" in message or "disabled through configuration" in message:
            message = f"{message}\na query reads the views of the project and nothing else; `rivertwice query --views` lists them"
        raise RequestError(message) from error


def _pointer(sql: str, position: int) -> str:
    """Return the line of a text that holds a position, and a mark below it. Pure."""
    before = sql[:position]
    number, start = before.count("\n") + 1, before.rfind("\n") + 1
    line = sql[start:].partition("\n")[0]
    head = f"LINE {number}: "
    return f"{head}{line}\n{' ' * (len(head) + position - start)}^"


def _short(sql: str) -> str:
    words = " ".join(sql.split())
    return words if len(words) <= 60 else f"{words[:57]}..."
