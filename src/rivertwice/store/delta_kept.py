"""A table's handle that is kept between commits and brought up to date, not opened again.

Opening reads all log entries since the last checkpoint of the log: up to a hundred, each time. A writer that commits every second
would spend more on that than on its rows.
"""

from __future__ import annotations

from pathlib import Path

from deltalake.exceptions import DeltaError

from rivertwice.config import Place
from rivertwice.store.delta_handle import Table, open_table
from rivertwice.store.delta_log import entry_path


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

    def current(self) -> Table | None:
        """Return a handle of the table's newest version, None if the table does not exist."""
        if self._table is None or not is_brought_up_to_date(self.place, self._table):
            self._table = open_table(self.place)
        table = self._table
        if not isinstance(self.place, Path):
            self.forget()
        return table

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
