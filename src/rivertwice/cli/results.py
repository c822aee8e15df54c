"""show, query, explain: the rows that are served and stored, and why one is what it is."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli import options as candidates
from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import Frame, as_table, example, pass_frame
from rivertwice.cli.options import INSTANT, INSTANT_FORM, name_argument, range_of, range_options, refuse_beside
from rivertwice.cli.warm import on_engine
from rivertwice.core import Measured, RequestError, Row, to_iso, to_plain

if TYPE_CHECKING:
    import pyarrow as pa

    from rivertwice.timeline import Rows, Status


# Rows as text for people, and as JSON for programs. Pure.

NULL = "null"


def rows_table(rows: pa.Table) -> str:
    """Return rows as an aligned table: numbers at the right, instants in UTC, and nulls that no text can be taken for."""
    import pyarrow.types as types

    def is_number(kind: pa.DataType) -> bool:
        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))

    right = {place for place, field in enumerate(rows.schema) if is_number(field.type)}
    columns = [rows.column(place).to_pylist() for place in range(rows.num_columns)]
    cells = [[cell_text(value) for value in row] for row in zip(*columns, strict=True)]
    return as_table(rows.schema.names, cells, right=right)


def cell_text(value: Any) -> str:
    """Return a value as people read it; a text that is empty, or that reads `null`, is quoted."""
    from rivertwice.timeline import json_value

    if value is None:
        return NULL
    if isinstance(value, str):
        return json.dumps(value) if value in ("", NULL) else value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return to_iso(value) if value.tzinfo else value.isoformat()
    if isinstance(value, Decimal | int | float):
        return str(value)
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def plain_rows(rows: pa.Table) -> list[Row]:
    """Return rows as JSON can hold them; whole decimals are numbers."""
    from rivertwice.timeline import json_value

    def plain(value: Any) -> Any:
        if isinstance(value, Decimal) and value.is_finite() and int(str(value.as_tuple().exponent)) >= 0:
            return int(value)
        return json_value(value)

    columns = [rows.column(place).to_pylist() for place in range(rows.num_columns)]
    names = rows.schema.names
    return [{name: plain(value) for name, value in zip(names, row, strict=True)} for row in zip(*columns, strict=True)]


def parse_key(text: str | None) -> Row | None:
    """Return the key that --key gives; None if it is not given. Pure.

    Raises:
        RequestError: it is not a JSON object.
    """
    if text is None:
        return None
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        message = f"--key {text[:80]!r} is not a JSON object; write it as '{{\"account_id\": 42}}'"
        raise RequestError(message)
    return values


_FEW, _MOST, _OF_KEYS = 20, 10_000, 200
_MORE = 10  # the command that shows more multiplies the number by this
_PROGRESS_ROWS = 250_000


def table_option(command: Any) -> Any:
    """Add --table."""
    text = (
        "served (default), provisional, verdicts, causes, reconciles, ledger, changelog, dead-letters, late-rows, sequence "
        "or amendments."
    )
    return click.option(
        "--table", default="served", metavar="TABLE", shell_complete=candidates.tables, help=f"Which rows: {text}"
    )(command)


def current_option(command: Any) -> Any:
    """Add --require-current."""
    return click.option(
        "--require-current", is_flag=True, help="Refuse rows that do not show all that is committed; exit 1."
    )(command)


def _rows(
    frame: Frame,
    name: str,
    table: str,
    start: datetime | None,
    end: datetime | None,
    key: str | None,
    columns: str | None,
    *,
    require_current: bool,
) -> Rows:
    from rivertwice.read import find_rows

    asked = range_of(start, end)
    named = [] if columns is None else [text.strip() for text in columns.split(",") if text.strip()]
    rows = find_rows(frame.settings, frame.known_pipeline(name), table, require_current=require_current)
    begin, before = (None, None) if asked is None else (asked.start, asked.end)
    return rows.choose(begin, before, parse_key(key), named)


@click.command(
    epilog=example(
        "rivertwice show flight_delays",
        'rivertwice show flight_delays --from 2013-06-30 --to 2013-07-01 --key \'{"origin": "JFK"}\'',
        "rivertwice show flight_delays --table verdicts --limit 50",
        "rivertwice show account_ledger --by-key",
        "rivertwice show account_ledger --key '{\"account_id\": 42}' --at 2024-01-02T10:00:00Z",
        "rivertwice show account_ledger --key '{\"account_id\": 42}' --history",
        "rivertwice show order_totals --late",
        "rivertwice show flight_delays --write delays.parquet --overwrite",
        "rivertwice show flight_delays --write day.csv --from 2013-06-30 --to 2013-07-01",
    )
)
@name_argument()
@range_options
@click.option("--key", "key", metavar="JSON", help='Only rows with these values: \'{"origin": "JFK"}\'.')
@click.option("--columns", metavar="A,B", help="The columns to show, or to write.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"Maximum number of rows: {_FEW} unless given, {_MOST} at most; with --by-key or --late {_OF_KEYS} unless given, and any number.",
)
@click.option(
    "--order", type=click.Choice(["newest", "oldest"]), default="newest", show_default=True, help="What comes first."
)
@table_option
@current_option
@click.option(
    "--by-key",
    is_flag=True,
    help="Of a fold: the newest row of every key. Of a pipeline that emits updates: that of every open window.",
)
@click.option(
    "--at",
    type=INSTANT,
    metavar="INSTANT",
    help=f"Of a fold: --by-key as of this event time; an event exactly at it counts. {INSTANT_FORM}.",
)
@click.option("--history", is_flag=True, help="Of a fold: every row of every key, in the order of the log.")
@click.option("--late", is_flag=True, help="The newest late records by address, if late.policy keeps them.")
@click.option(
    "--write",
    "target",
    type=click.Path(path_type=Path),
    metavar="TARGET",
    help="Write all the rows to FILE.jsonl, FILE.csv, FILE.parquet, or a folder, which gets a Parquet file for each day.",
)
@click.option("--overwrite", is_flag=True, help="With --write: replace TARGET if it exists.")
@changes_unasked("with --write a file", because="one that exists is replaced with --overwrite alone")
@pass_frame
def show(
    frame: Frame,
    name: str,
    start: datetime | None,
    end: datetime | None,
    key: str | None,
    columns: str | None,
    limit: int | None,
    order: str,
    table: str,
    require_current: bool,
    by_key: bool,
    at: datetime | None,
    history: bool,
    late: bool,
    target: Path | None,
    overwrite: bool,
) -> None:
    """Show rows of NAME: served ones, or another table's.

    Which batch the rows are of is shown too. NAME@v2 means the rows of a version that does not serve. A range is one of the windows' starts, or of the time that the table
    is ordered by. Only the files that can have such rows are read.

    --by-key, --at and --history show a fold by its keys instead. --key, which may name some of the key columns, and --limit belong to them too.

    --late lists the records that came after their window had closed: which window each missed, and by which watermark.

    --write writes all rows of the range to a file or a folder instead. They are ordered by time and then by the other columns, so the same rows give the same CSV or JSON Lines, byte for byte.
    TARGET appears when it is complete. The table may be larger than memory; sorting needs room for it beside TARGET.
    """
    if target is not None:
        refuse_beside(("limit", "order", "by_key", "at", "history", "late"), "does not go with --write")
        rows = _rows(frame, name, table, start, end, key, columns, require_current=require_current)
        _write_rows(frame, name, rows, target, overwrite=overwrite)
        return
    refuse_beside(("overwrite",), "needs --write TARGET")
    if late:
        beside = ("start", "end", "key", "columns", "order", "table", "require_current", "by_key", "at", "history")
        refuse_beside(beside, "does not go with --late")
        _show_late(frame, name, limit or _OF_KEYS)
        return
    if by_key or at is not None or history:
        refuse_beside(
            ("start", "end", "columns", "order", "table", "require_current"),
            "does not go with --by-key, --at or --history",
        )
        _show_by_key(frame, name, parse_key(key), at, limit or _OF_KEYS, history=history)
        return
    from rivertwice.read import newest_rows

    limit = limit or _FEW
    if limit > _MOST:
        message = f"--limit {limit} is more than {_MOST} rows; `rivertwice show {name} --write FILE` writes any number to a file"
        raise click.UsageError(message)
    rows = _rows(frame, name, table, start, end, key, columns, require_current=require_current)
    shown = newest_rows(rows, limit, oldest=order == "oldest")
    total = shown.num_rows if shown.num_rows < limit else rows.count()

    def text() -> str:
        hidden = () if columns else rows.table.kind.hidden
        visible = shown.select([column for column in shown.schema.names if column not in hidden])
        again = ["rivertwice", "show", name]
        ends = [None if each is None else to_iso(each) for each in (start, end)]
        options = {"--from": ends[0], "--to": ends[1], "--key": key, "--columns": columns}
        again += ["--require-current"] if require_current else []
        options |= {"--order": None if order == "newest" else order, "--table": None if table == "served" else table}
        for option, value in options.items():
            again += [] if value is None else [option, value]
        body = rows_table(visible) if shown.num_rows else "(no rows)"
        return f"{rows.status.describe()}\n{body}\n{_count_line(shown.num_rows, total, limit, order, again)}"

    frame.emit(
        {
            "pipeline": name,
            "table": rows.table.kind.name,
            "status": _plain_status(rows.status),
            "rows": plain_rows(shown) if frame.output == "json" else [],
            "total": total,
        },
        text,
    )


def _show_by_key(frame: Frame, name: str, key: Row | None, at: datetime | None, limit: int, *, history: bool) -> None:
    """Show the newest row of every key of a fold, or of every open window; or a fold's history."""
    from rivertwice.timeline import read_view

    result = read_view(frame.settings.pipeline(frame.known_pipeline(name)), key=key, at=at, history=history)
    shown = [to_plain(row) for row in result.rows[-limit:]]
    value = {"pipeline": name, "at": at, "shows": result.stamp, "rows": shown, "total": len(result.rows)}
    frame.emit(
        value,
        lambda: (
            f"{as_table(result.columns, [[row[column] for column in result.columns] for row in shown])}\n"
            f"{len(shown)} of {len(result.rows)} rows, up to batch {result.stamp.timeline}/{result.stamp.batch}"
        ),
    )


def _show_late(frame: Frame, name: str, limit: int) -> None:
    """Show the late records by address, with the window that each missed, and by which watermark."""
    from rivertwice.timeline import path_ledger, read_late_rows

    home = frame.settings.pipeline(frame.known_pipeline(name))
    rows = read_late_rows(home, path_ledger(home))
    shown = [
        {
            "place": f"{row['topic']}/{row['partition']}@{row['offset']}",
            "batch": row["batch"].batch,
            **{key: to_plain(row[key]) for key in ("event_time", "window_start", "window_end", "late_watermark")},
            "fields": row["fields"],
        }
        for row in rows[-limit:]
    ]
    columns = ("place", "batch", "event_time", "window_start", "window_end", "late_watermark", "fields")
    frame.emit(
        {"pipeline": name, "rows": shown, "total": len(rows)},
        lambda: (
            f"{as_table(columns, [[row[key] for key in columns] for row in shown])}\n{len(shown)} of {len(rows)} late rows"
        ),
    )


def _write_rows(frame: Frame, name: str, rows: Rows, target: Path, *, overwrite: bool) -> None:
    """Write rows to a file or a folder."""
    from rivertwice.read import export_rows

    total = rows.count()
    said = 0

    def progress(read: int) -> None:
        nonlocal said
        if read - said >= _PROGRESS_ROWS or (said and read == total):
            said = read
            line = f"{read:,} rows read"
            frame.progress(line if not total else Measured(f"{line} of {total:,}", f"export {name}", read, total))

    report = export_rows(rows, target, overwrite=overwrite, progress=progress)
    frame.emit(
        {**to_plain(report), "status": _plain_status(report.status)},
        lambda: (
            f"{report.status.describe()}\n{report.target}: {report.rows} rows, {report.bytes} bytes"
            f"{'' if report.files == 1 else f' in {report.files} files'}, SHA-256 {report.sha256}"
        ),
    )


def _plain_status(status: Status) -> dict[str, Any]:
    return {**to_plain(status), "is_current": status.is_current}


def _count_line(shown: int, total: int | None, limit: int, order: str, again: list[str]) -> str:
    """Return how many rows were shown of how many, and the command that shows more. Pure."""
    if total is not None and total <= shown:
        return f"{shown} of {total} rows"
    more = limit * _MORE if total is None else min(limit * _MORE, total)
    head = f"{shown} rows" if total is None else f"{shown} of {total} rows"
    what = "there may be more" if total is None else "more"
    return f"{head}, {order} first; {what}: {shlex.join([*again, '--limit', str(min(more, _MOST))])}"


@click.command(
    epilog=example(
        "rivertwice query --views",
        "rivertwice query \"SELECT origin, sum(flights) FROM flight_delays WHERE window_start >= '2013-06-30' GROUP BY ALL\"",
    )
)
@click.argument("sql", required=False)
@click.option("--views", is_flag=True, help="List the views with their columns and numbers of rows.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of rows.")
@current_option
@pass_frame
def query(frame: Frame, sql: str | None, views: bool, limit: int, require_current: bool) -> None:
    """Run SQL over the tables of all pipelines.

    NAME is what is served, beside it are NAME__verdicts, NAME__ledger and so on. It reads and writes nothing else. Times are in UTC. A condition that compares the windows' start with instants reads only
    the files of these: `window_start >= '2013-06-30' AND window_start < '2013-07-01'`. Needs the extra `query` (DuckDB).
    """
    if views == (sql is not None):
        message = "write a query, or --views to see what there is to query: rivertwice query --views"
        raise RequestError(message)
    if sql is None:
        _list_views(frame)
        return
    from rivertwice.read import run_query

    answer = run_query(frame.settings, sql, limit, require_current=require_current)

    def text() -> str:
        again = shlex.join(
            [
                "rivertwice",
                "query",
                sql,
                "--limit",
                str(limit * _MORE),
                *(["--require-current"] if require_current else []),
            ]
        )
        count = answer.rows.num_rows
        last = f"{count} rows" if answer.is_whole else f"the first {count} rows; more: {again}"
        old = [status.describe() for status in answer.statuses if status.is_current is False]
        body = rows_table(answer.rows) if count else "(no rows)"
        return "\n".join([body, last, *old])

    frame.emit(
        {
            "rows": plain_rows(answer.rows) if frame.output == "json" else [],
            "is_whole": answer.is_whole,
            "statuses": [_plain_status(status) for status in answer.statuses],
        },
        text,
    )


def _list_views(frame: Frame) -> None:
    from rivertwice.read import QueryBounds

    listed = [
        {
            "view": view.sql,
            "stored_rows": rows.table.files.rows,
            "what": view.kind.what,
            "columns": {field.name: str(field.type) for field in rows.table.files.schema},
        }
        for view, rows in QueryBounds().describe_views(frame.settings)
    ]

    def text() -> str:
        if not listed:
            return "no pipeline of the project has stored anything yet; `rivertwice pipelines` lists the definitions"
        cells = [(one["view"], one["stored_rows"], ", ".join(one["columns"]), one["what"]) for one in listed]  # type: ignore[arg-type]
        return as_table(("view", "stored rows", "columns", "a row is"), cells, right={1})

    frame.emit({"views": listed}, text)


# explain: one number, with who made it, what it is made of, why it changed and what to do next.


@click.command(
    epilog=example(
        "rivertwice explain flight_delays 2013-06-30T16:00:00Z JFK",
        'rivertwice explain flight_delays 2013-06-30T16:00:00Z \'{"origin": "JFK"}\' --with-truth',
    )
)
@name_argument()
@click.argument("window", type=INSTANT, metavar="WINDOW")
@click.argument("key", required=False)
@click.option("--with-truth", is_flag=True, help="Compute the truth of the row from the log too, by Spark.")
@on_engine(lambda values: values["with_truth"])
@pass_frame
def explain(frame: Frame, name: str, window: datetime, key: str | None, with_truth: bool) -> None:
    """Explain one number of NAME.

    WINDOW is the start of its window. KEY is a JSON object with the key columns, or the value alone if there is one; none if rows have no key. It shows the row as
    it is served and as the stream emitted it, who made it, from which offsets, what came late or was refused, how it changed, the newest verdict, and the command that
    cures what is wrong. It reads the tables of that window alone, and changes nothing.
    """
    from rivertwice.core import utc_now
    from rivertwice.read import describe, explain_row

    pipeline = frame.known_pipeline(name)
    if not with_truth:
        explanation = explain_row(frame.settings, pipeline, window, key, now=utc_now())
    else:
        from rivertwice.engine import FEW_RECORDS, spark_on_demand

        settings = frame.settings.with_local_spark()
        with spark_on_demand(settings, f"rivertwice-explain-{name}", extra=FEW_RECORDS, quick=True) as spark:
            explanation = explain_row(settings, pipeline, window, key, now=utc_now(), spark=spark)
    frame.emit(explanation.to_json(), lambda: describe(explanation))
