"""Rows of a Delta table changed by hand: in a commit of another program, or in a file and its log entry, unseen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lab.faults.errors import require
from rivertwice.core.instants import to_ms, utc_now
from rivertwice.storage.table import statistics
from rivertwice.storage.table_log import entry_path, parse_entry

Change = Callable[[pa.Table], pa.Table]


def first_value_changed(column: str) -> Change:
    """Return a change that adds one to a column's first value."""

    def change(rows: pa.Table) -> pa.Table:
        values = rows.column(column).to_pylist()
        field = rows.schema.field(column)
        return rows.set_column(
            rows.schema.get_field_index(column), field, pa.array([values[0] + 1, *values[1:]], field.type)
        )

    return change


def first_row_gone(rows: pa.Table) -> pa.Table:
    """Return the rows without the first."""
    return rows.slice(1)


def nothing_changed(rows: pa.Table) -> pa.Table:
    """Return the rows."""
    return rows


def rows_of(table: Path, name: str) -> pa.Table:
    """Return the rows of a table's file."""
    return pq.ParquetFile(table / name).read()


def oldest_file(table: Path, least: int = 1) -> tuple[int, dict[str, Any]]:
    """Return the oldest live data file that has so many rows: the version of its commit, and its entry in the log."""
    removed, added = set(), []
    for path in sorted((table / "_delta_log").glob("*.json")):
        for action in parse_entry(path.read_bytes()) or []:
            if "remove" in action:
                removed.add(action["remove"]["path"])
            if "add" in action:
                added.append((int(path.stem), action["add"]))
    live = [
        each for each in added if each[1]["path"] not in removed and rows_of(table, each[1]["path"]).num_rows >= least
    ]
    require(bool(live), f"no live file of {table.name} has {least} rows")
    return live[0]


def commit_by_another(table: Path, change: Change) -> str:
    """Replace the table's oldest file in a commit such as another program makes, and return what was done."""
    _, entry = oldest_file(table)
    changed = change(rows_of(table, entry["path"]))
    name = f"{entry['path'].rpartition('.parquet')[0]}-other.parquet"
    pq.write_table(changed, table / name)
    at = to_ms(utc_now())
    removed = {"path": entry["path"], "deletionTimestamp": at, "dataChange": True, "extendedFileMetadata": True}
    removed |= {"partitionValues": entry["partitionValues"], "size": entry["size"]}
    added = {**entry, **_described(table, name, changed), "path": name, "modificationTime": at}
    actions = [{"commitInfo": {"timestamp": at, "operation": "UPDATE", "engineInfo": "another program"}}]
    version = max(int(path.stem) for path in (table / "_delta_log").glob("*.json")) + 1
    entry_path(table, version).write_text(
        "".join(f"{json.dumps(action)}\n" for action in [*actions, {"remove": removed}, {"add": added}])
    )
    return f"{table.name}: version {version} replaces {entry['path']}"


def rewrite_unseen(table: Path, change: Change) -> str:
    """Rewrite the table's oldest file with two rows, and its entry in the log so that it fits; return what was done."""
    version, entry = oldest_file(table, 2)
    changed = change(rows_of(table, entry["path"]))
    pq.write_table(changed, table / entry["path"])
    path = entry_path(table, version)
    actions = parse_entry(path.read_bytes()) or []
    for action in actions:
        if action.get("add", {}).get("path") == entry["path"]:
            action["add"] |= _described(table, entry["path"], changed)
    path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return f"{table.name}: {entry['path']} and its entry in version {version}"


def _described(table: Path, name: str, rows: pa.Table) -> dict[str, Any]:
    return {"size": (table / name).stat().st_size, "stats": statistics(rows)}
