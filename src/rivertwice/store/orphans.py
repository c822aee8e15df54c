"""Files in a table's folder that its newest version does not name: from killed writers, or from commits in progress."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from rivertwice.config import Place
from rivertwice.errors import RequestError
from rivertwice.store.delta import Table
from rivertwice.store.places import open_store
from rivertwice.store.trees import files_below

LOG = "_delta_log"
_OF_THE_LOG = re.compile(r"^(_last_checkpoint|\.?\d{20}\.(json|crc|checkpoint\.(\d+\.\d+\.)?parquet)(\.crc)?)\Z")


def live_files(table: Table) -> set[str]:
    """Return the data files of a handle's version, relative to the table, with their names in the log and on disk."""
    paths = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    return {name for path in paths for name in (str(path), unquote(str(path)))}


def unnamed_files(place: Place, live: Collection[str]) -> list[str]:
    """Return the files in a table's folder that are neither live nor entries of the log, relative to it, sorted.

    They include parts of a write in progress, which delta-rs' vacuum does not see: `FILE#1`, `_delta_log/_commit_*.json.tmp`.
    """
    if isinstance(place, Path):
        names: Iterable[str] = (path.relative_to(place).as_posix() for path in files_below(place))
    else:
        names = open_store(place).list()
    return sorted(name for name in names if name not in live and not _belongs_to_log(name))


def _belongs_to_log(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return folder == LOG and bool(_OF_THE_LOG.match(file))


def remove_files(place: Place, names: Iterable[str]) -> int:
    """Delete files of a table's folder, and return how many existed; a file that is already deleted is no error."""
    removed = 0
    for name in names:
        if isinstance(place, Path):
            path = place / name
            removed += path.exists()
            path.unlink(missing_ok=True)
            continue
        try:
            open_store(place).delete(name)
        except RequestError:  # not a name of ours: another program wrote it
            continue
        removed += 1
    return removed
