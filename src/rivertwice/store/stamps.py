"""Detect at low cost that a table may have changed."""

from __future__ import annotations

from pathlib import Path

from rivertwice.config import Place
from rivertwice.store.delta import open_table


def log_stamp(table: Place) -> int:
    """Return a number that changes with every commit to a table; -1 if it does not exist.

    In a folder it is the time of the log's last change, with the precision of the file system's clock. Two commits within
    one tick look like one, so a caller that waits for a change must also check at times without it. On S3 it is the table's version.
    """
    if isinstance(table, Path):
        try:
            return (table / "_delta_log").stat().st_mtime_ns
        except FileNotFoundError:
            return -1
    opened = open_table(table)
    return -1 if opened is None else int(opened.version())
