"""A table's handle that is kept between commits and brought up to date, not opened again.

Opening reads all log entries since the last checkpoint of the log, each time. A writer that commits every second would spend more on
that than on its rows. But a handle that is brought up to date again and again holds what it learned in ever more pieces, and each commit
reads all of them. So it is renewed where the log has a new checkpoint, from which it is whole again (delta-rs 1.6: `bench/commits.py`).
"""

from __future__ import annotations

from pathlib import Path

from deltalake.exceptions import DeltaError

from rivertwice.config import Place
from rivertwice.store.delta_handle import Table, open_table
from rivertwice.store.delta_log import entry_path

CHECKPOINT_EVERY = 20
"""Commits between two checkpoints of a table's log, and between two renewals of a kept handle."""


class KeptTable:
    """A table to which one thread appends again and again; `delta.append` takes it as `kept`.

    On S3 nothing is kept: a handle has the credentials with which it was opened, and they may be renewed.

    Attributes:
        place: the table's place.
    """

    def __init__(self, place: Place) -> None:
        """Keep no handle yet; the table need not exist."""
        self.place = place
        self._table: Table | None = None
        self._opened_at = -1  # version

    def current(self) -> Table | None:
        """Return a handle of the table's newest version, None if the table does not exist."""
        if self._table is None or self._is_due(self._table) or not is_brought_up_to_date(self.place, self._table):
            self._table = open_table(self.place)
            self._opened_at = -1 if self._table is None else int(self._table.version())
        table = self._table
        if not isinstance(self.place, Path):
            self.forget()
        return table

    def _is_due(self, table: Table) -> bool:
        """Say whether a checkpoint was made since the handle was opened; the checkpoint is of the last commit of each twenty."""
        return (int(table.version()) + 1) // CHECKPOINT_EVERY > (self._opened_at + 1) // CHECKPOINT_EVERY

    def keep(self, table: Table) -> None:
        """Keep the handle with which a commit was made: it is at the commit's version."""
        if isinstance(self.place, Path):
            self._table = table

    def forget(self) -> None:
        """Open the table again at its next use; after a commit that failed, its handle may know a part of it."""
        self._table = None

    def applied_version(self, app: str) -> int | None:
        """Return the newest version `app` committed to the table, or None."""
        table = self.current()
        return None if table is None else table.transaction_version(app)


def is_brought_up_to_date(place: Place, table: Table) -> bool:
    """Bring a handle to its table's newest version; return whether that could be done, else the table is to be opened."""
    # Without its own entry the handle may be of a table that was put back from a backup, or of one that upkeep shortened.
    if not entry_path(Path(str(place)), int(table.version())).exists():
        return False
    try:
        table.update_incremental()
    except (DeltaError, OSError):
        return False  # opening it says what is wrong, with the remedy
    return True
