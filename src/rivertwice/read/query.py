"""SQL over the tables of a project's pipelines, by DuckDB: read-only, offline, and only the files that the conditions leave."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rivertwice.core import RequestError, Settings, naming_extras
from rivertwice.read.find import open_rows
from rivertwice.timeline import KINDS, SERVED, Kind, Rows, Status

if TYPE_CHECKING:
    from rivertwice.read.query_process import ProcessAnswer

_BATCH_ROWS = 2_048
_OF_DUCKDB = ("duckdb_", "pg_", "pragma_", "sqlite_")
"""Tables of DuckDB begin with these; they say how the process is set up."""
TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "unnest"})
"""All that may stand where a table may: others read files, memory, or SQL from a text."""
REFUSED_FUNCTIONS = frozenset(
    {
        "current_connection_id", "current_query", "current_query_id", "current_setting", "current_transaction_id", "currval", "getenv",
        "getvariable", "in_search_path", "nextval", "pg_sleep", "setseed", "setval", "sleep_ms", "stats", "txid_current", "vector_type",
        "write_log",
    }
)  # fmt: skip
"""Functions of values that read or change the process, or wait."""
_DEEP = "the statement is nested too deeply; name its parts: WITH part AS (SELECT ...) SELECT ... FROM part"
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
    """Rows that a query gave; names of columns that occur twice have a number.

    Attributes:
        types: of the columns, as DuckDB writes them.
        views: what was read, by the view's name.
    """

    rows: pa.Table
    is_whole: bool
    types: Sequence[str] = ()
    views: Mapping[str, Rows] = field(default_factory=dict)

    @property
    def statuses(self) -> list[Status]:
        """What each view that was read shows."""
        return [rows.status for rows in self.views.values()]


@dataclass(frozen=True)
class QueryBounds:
    """What a query may read, and what it may take.

    Attributes:
        pipelines: whose views it may read; None: of all. Others are as if they did not exist.
        raw: whose records it may read with their own values (`Kind.raw`); None: of all.
        seconds: how long it may run; only a separate process keeps to it.
        memory: bytes for DuckDB, which then has one thread and no temporary files; None: as DuckDB chooses.
        answer: bytes of the rows that are returned, if these are fewer than `limit`.
    """

    pipelines: Sequence[str] | None = None
    raw: Sequence[str] | None = None
    seconds: float | None = None
    memory: int | None = None
    answer: int | None = None

    @property
    def too_slow(self) -> str:
        """Why a query was ended that did not end in time."""
        return f"the query took more than {self.seconds:g} s and was ended; choose fewer windows, or run it where the agent is: `rivertwice query`"

    @property
    def too_large(self) -> str:
        """Why a query was ended that needed too much memory."""
        most = f"{(self.memory or 0) >> 20:,} MiB"
        return f"the query needs more than the {most} of memory that it may have; choose fewer windows or columns, or run it where the agent is: `rivertwice query`"

    def views_of(self, settings: Settings) -> dict[str, View]:
        """Return the names in SQL of all tables that the project's pipelines may have, by name."""
        names = (name for name in settings.pipeline_names() if self.pipelines is None or name in self.pipelines)
        views = [View(f"{name}{kind.view}", name, kind) for name in names for kind in KINDS]
        return {view.name: view for view in views}

    def describe_views(self, settings: Settings, pipeline: str | None = None) -> list[tuple[View, Rows]]:
        """Return the views whose tables exist, of one pipeline or of all, each with its rows, of which nothing is read."""
        views = [view for view in self.views_of(settings).values() if pipeline in (None, view.pipeline)]
        opened = ((view, self.open(settings, view)) for view in views)
        return [(view, rows) for view, rows in opened if rows is not None]

    def open(self, settings: Settings, view: View) -> Rows | None:
        """Return the rows of a view, or None if its table does not exist."""
        raw = self.raw is None or view.pipeline in self.raw
        return open_rows(settings, view.pipeline, view.kind, raw=raw)

    async def run_apart(self, settings: Settings, sql: str, limit: int, pipeline: str, form: str) -> ProcessAnswer:
        """Run a query in a separate process, which is killed when its time is over or the caller is cancelled.

        Args:
            pipeline: whose rows lead to their explanation.
            form: `json` for the page, or the ending of a file: `csv`, `parquet`, `jsonl`.

        Raises:
            RequestError: as for `run_query`, or the query took more than it may take.
            ServiceError: the store does not answer.
        """
        from rivertwice.read.query_process import run_apart

        return await run_apart(self, settings, sql, limit, pipeline, form)


def run_query(
    settings: Settings, sql: str, limit: int, *, require_current: bool = False, bounds: QueryBounds | None = None
) -> Answer:
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
    bounds = bounds or QueryBounds()
    bounded = {"threads": "1", "memory_limit": f"{bounds.memory}B"} if bounds.memory else {}
    spilled = nullcontext("") if bounds.memory else tempfile.TemporaryDirectory(prefix="rivertwice-query-")
    with spilled as spill, duckdb.connect(":memory:") as connection:
        connection.execute(f"SET temp_directory = '{spill}'")
        opened = _open(settings, bounds, *_names_in(connection, sql))
        for rows in opened.values():
            if require_current and rows.status.is_current is not None:
                rows.status.require_current()
        for name, rows in opened.items():
            connection.register(name, rows.dataset())
        for option, value in {**bounded, **_SETTINGS}.items():
            connection.execute(f"SET {option} = '{value}'")
        with _explained(duckdb, bounds, opened):
            try:
                relation = connection.sql(sql)
                reader = relation.to_arrow_reader(_BATCH_ROWS)
            except duckdb.BinderException:
                connection.execute(sql)  # fails in the same way before anything runs, and says where
                raise
            found, is_whole = _first(reader, limit, bounds.answer)
        found = found.rename_columns(_distinct(found.schema.names))
        return Answer(found, is_whole, [str(kind) for kind in relation.types], opened)


def _names_in(connection: Any, sql: str) -> tuple[list[str], set[str]]:
    """Return the tables that a query names, and those that it defines itself (WITH), in small letters.

    Raises:
        RequestError: it is not one SELECT, or it calls a function that reads something else than values and the project's views.
    """
    try:
        sql.encode()
        answer = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
        tree = json.loads(answer[0][0])
    except UnicodeError:
        message = "the statement has characters that are not text; write it again"
        raise RequestError(message) from None
    except RecursionError:
        raise RequestError(_DEEP) from None
    if tree["error"]:
        position = tree.get("position")
        if "expression depth" in tree["error_message"]:
            raise RequestError(_DEEP)
        if position is None:
            message = f"{_short(sql)!r} is not a query: only SELECT runs here, and nothing is written; `rivertwice show NAME --write FILE` writes files"
            raise RequestError(message)
        message = f"{tree['error_message']}\n{_pointer(sql, int(position))}"
        raise RequestError(message)
    if len(tree["statements"]) != 1:
        message = f"there are {len(tree['statements'])} statements; write one SELECT"
        raise RequestError(message)
    tables, own = set[str](), set[str]()
    nodes: list[Any] = [tree["statements"]]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            _check_functions(node)
            if node.get("type") in ("BASE_TABLE", "SHOW_REF") and node.get("table_name"):
                tables.add(_table_of(node))
            if isinstance(node.get("cte_map"), dict):
                own.update(entry["key"].casefold() for entry in node["cte_map"]["map"])
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
    return sorted(tables), own


def _check_functions(node: Mapping[str, Any]) -> None:
    if node.get("type") == "TABLE_FUNCTION":
        name = str((node.get("function") or {}).get("function_name", "")).casefold()
        if name not in TABLE_FUNCTIONS:
            message = (
                f"{name}() does not run here: a query reads the views of the project, and as functions in FROM there are "
                f"{', '.join(sorted(TABLE_FUNCTIONS))}; `rivertwice query --views` lists the views"
            )
            raise RequestError(message)
    elif str(node.get("function_name", "")).casefold() in REFUSED_FUNCTIONS:
        message = f"{node['function_name']}() does not run here: a query computes with the rows of the project's views; take it away"
        raise RequestError(message)


def _table_of(node: Mapping[str, Any]) -> str:
    schema = ".".join(node[part] for part in ("catalog_name", "schema_name") if node.get(part))
    if schema:
        message = f"there is no schema {schema!r}: a view is named alone; write {node['table_name']} without {schema}"
        raise RequestError(message)
    return str(node["table_name"]).strip('"')


def _open(settings: Settings, bounds: QueryBounds, names: Sequence[str], own: Container[str]) -> dict[str, Rows]:
    """Return the rows of the views that a query names; its own tables are left to DuckDB."""
    views = {view.name.casefold(): view for view in bounds.views_of(settings).values()}
    opened = {}
    for name in names:
        view = views.get(name.casefold())
        if view is None and name.casefold() in own and not name.casefold().startswith(_OF_DUCKDB):
            continue
        if view is None:
            raise RequestError(_unknown(name, list(views.values())))
        rows = bounds.open(settings, view)
        if rows is None:
            message = f"the view {view.sql} has no rows: nothing was written to {view.kind.name} of {view.pipeline} yet; `rivertwice query --views` lists what there is"
            raise RequestError(message)
        opened[view.name] = rows
    return opened


def _unknown(name: str, views: Sequence[View]) -> str:
    close = difflib.get_close_matches(name, [view.name for view in views], n=2)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    served = [view.sql for view in views if view.kind.name == SERVED]
    suffixes = ", ".join(kind.view for kind in KINDS if kind.view)
    listed = f"there are {', '.join(served)}, each also with {suffixes}" if served else "the project has no pipeline"
    return f"there is no view {name!r}; {hint}{listed}; `rivertwice query --views` shows their columns"


def _first(reader: pa.RecordBatchReader, limit: int, most_bytes: int | None) -> tuple[pa.Table, bool]:
    """Return the first rows, of a number and of a size at most, and whether these are all."""
    taken, count, size = [], 0, 0
    for batch in reader:
        taken.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if count > limit or (most_bytes is not None and size > most_bytes):
            break
    rows = pa.Table.from_batches(taken, reader.schema)
    wanted = min(limit, count)
    while most_bytes is not None and wanted and rows.slice(0, wanted).nbytes > most_bytes:
        wanted //= 2
    if count and not wanted:
        message = f"one row has more than the {most_bytes:,} bytes that an answer may have; choose fewer columns, or shorten a text: left(text, 100)"
        raise RequestError(message)
    return rows.slice(0, wanted), wanted == count


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names of which each occurs once: the second `n` becomes `n_2`."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return made


@contextmanager
def _explained(duckdb: Any, bounds: QueryBounds, opened: Mapping[str, Rows]) -> Iterator[None]:
    """Turn DuckDB's errors into one that says what is wrong and where; its candidates for a name are kept."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if bounds.memory and isinstance(error, (duckdb.OutOfMemoryException, pa.ArrowMemoryError)):
            raise RequestError(bounds.too_large) from error
        lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
        head = lines[0] if lines else type(error).__name__
        message = "\n".join([head.partition(" Error: ")[2] or head, *lines[1:]])
        if "file system operations are disabled" in message or "disabled through configuration" in message:
            message = f"{message}\na query reads the views of the project and nothing else; `rivertwice query --views` lists them"
        raise RequestError(
            "\n".join([message, *(rows.table.withheld for rows in opened.values() if rows.table.withheld)])
        ) from error


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
