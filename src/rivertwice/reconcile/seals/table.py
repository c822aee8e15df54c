"""The table `seals`: one row for each reconcile that passed."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rivertwice.config import PipelineHome
from rivertwice.errors import LostRaceError
from rivertwice.reconcile.seals.model import COLUMNS, FORMAT, Seal, seal_of
from rivertwice.retry import retry
from rivertwice.store import delta

_TRIES = 5
SCHEMA = pa.schema(
    [
        ("_format", pa.int32()),
        ("run", pa.string()),
        ("created_at", pa.timestamp("us", "UTC")),
        ("timeline", pa.string()),
        ("batch", pa.int64()),
        ("meaning", pa.string()),
        ("sequence", pa.int64()),
        ("amendments", pa.int64()),
        ("settled_ms", pa.int64()),
        ("state", pa.string()),
    ]
)


def store_seal(home: PipelineHome, seal: Seal) -> None:
    """Store a seal once; called again with the same run, nothing changes."""
    app = f"seal/{seal.run}"
    if delta.applied_version(home.tables.seals, app) is None:
        row = {"_format": FORMAT, **{name: getattr(seal, name) for name in COLUMNS}, "state": seal.state()}
        delta.append(home.tables.seals, pa.Table.from_pylist([row], schema=SCHEMA), transactions={app: 1})


def forget_seals(home: PipelineHome) -> None:
    """Remove all seals, so that the next reconcile judges everything: rows that were compared are about to be others."""
    table = delta.open_table(home.tables.seals)
    if table is not None:
        retry(LostRaceError, tries=_TRIES)(delta.replace_rows, home.tables.seals, SCHEMA.empty_table())


def read_seals(home: PipelineHome) -> Sequence[Seal]:
    """Return all seals that this version can use, oldest first."""
    table = delta.read(home.tables.seals)
    rows = [] if table is None else table.sort_by([("created_at", "ascending"), ("batch", "ascending")]).to_pylist()
    return [seal for row in rows if (seal := seal_of(row)) is not None]
