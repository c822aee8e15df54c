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
_FORGOTTEN = "seals/forgotten"
"""Application id of the table's transactions that count how often all seals were removed."""
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


def store_seal(home: PipelineHome, seal: Seal, forgotten: int = 0) -> bool:
    """Store a seal once, and say whether it is there; called again with the same run, nothing changes.

    Args:
        home: of the pipeline.
        seal: of a run that passed.
        forgotten: how often all seals had been removed before the run read anything. If they were removed since, the rows that
            it compared are others now, so nothing is stored; the commit itself compares the two.

    Raises:
        LostRaceError: other reconciles stored theirs at the same moment, each time.
    """
    app = f"seal/{seal.run}"
    row = {"_format": FORMAT, **{name: getattr(seal, name) for name in COLUMNS}, "state": seal.state()}
    rows = pa.Table.from_pylist([row], schema=SCHEMA)

    def store() -> bool:
        if delta.applied_version(home.tables.seals, app) is not None:
            return True
        if times_forgotten(home) != forgotten:
            return False
        delta.append(home.tables.seals, rows, transactions={app: 1, _FORGOTTEN: forgotten})
        return True

    return retry(LostRaceError, tries=_TRIES)(store)


def times_forgotten(home: PipelineHome) -> int:
    """Return how often all seals were removed."""
    return delta.applied_version(home.tables.seals, _FORGOTTEN) or 0


def forget_seals(home: PipelineHome) -> None:
    """Remove all seals, so that the next reconcile judges everything: rows that were compared are about to be others.

    First a commit forbids the seals of runs that began before; then the seals go. Killed between the two, it is repeated.

    Raises:
        LostRaceError: others wrote to the table, each time.
    """

    def forget() -> None:
        delta.append(home.tables.seals, SCHEMA.empty_table(), transactions={_FORGOTTEN: times_forgotten(home) + 1})
        delta.replace_rows(home.tables.seals, SCHEMA.empty_table())

    retry(LostRaceError, tries=_TRIES)(forget)


def read_seals(home: PipelineHome) -> Sequence[Seal]:
    """Return all seals that this version can use, oldest first."""
    table = delta.read(home.tables.seals)
    rows = [] if table is None else table.sort_by([("created_at", "ascending"), ("batch", "ascending")]).to_pylist()
    return [seal for row in rows if (seal := seal_of(row)) is not None]
