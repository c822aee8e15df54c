"""Notice cheaply that a table may have changed."""

from __future__ import annotations

from pathlib import Path

from rivertwice.config import Place
from rivertwice.store.delta import open_table


def log_stamp(table: Place) -> int:
    """Return a number that changes with every commit to a table; -1 if it does not exist.

    In a folder it is the time of the log's last change, as fine as the file system's clock: two commits within one of its
    ticks look like one, so whoever waits by it also looks now and then without it. On S3 it is the table's version.
    """
    if isinstance(table, Path):
        try:
            return (table / "_delta_log").stat().st_mtime_ns
        except FileNotFoundError:
            return -1
    opened = open_table(table)
    return -1 if opened is None else int(opened.version())
