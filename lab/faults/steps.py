"""What a killed stream left, read from its files alone: which batch is planned, in state, committed, finished.

The checks are cheap enough to be asked every millisecond; they are what "kill right after step N" means.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def numbers(folder: Path) -> set[int]:
    """Return the numeric file names of a folder of the checkpoint."""
    try:
        return {int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()}
    except FileNotFoundError:
        return set()


class DeltaLog:
    """The commits of a Delta table as its log files contain them; each file is read once."""

    def __init__(self, table: Path) -> None:
        """Watch a table, which need not exist yet."""
        self._table = table
        self._read: dict[str, dict[str, int]] = {}
        self._old = self._data_files()

    def versions(self) -> int:
        """Return how many commits the log holds."""
        self._refresh()
        return len(self._read)

    def transaction(self, app: str) -> int | None:
        """Return the newest version that an application committed, or None."""
        self._refresh()
        return max((commit[app] for commit in self._read.values() if app in commit), default=None)

    def loose_files(self) -> bool:
        """Say whether there is a new data file that no commit names: written, not committed."""
        new = self._data_files() - self._old
        if not new:
            return False
        self._refresh()
        committed = {path for commit in self._read.values() for path in commit if path in new}
        self._old |= committed  # looked at once: the next question costs no more than a listing
        return bool(new - committed)

    def _data_files(self) -> set[str]:
        files: set[str] = set()
        try:
            for entry in os.scandir(self._table):
                if entry.is_dir() and entry.name != "_delta_log":
                    files |= {f"{entry.name}/{name}" for name in os.listdir(entry) if name.endswith(".parquet")}
                elif entry.name.endswith(".parquet"):
                    files.add(entry.name)
        except FileNotFoundError:
            return files
        return files

    def _refresh(self) -> None:
        try:
            names = [entry.name for entry in (self._table / "_delta_log").iterdir()]
        except FileNotFoundError:
            return
        for name in names:
            if name.endswith(".json") and not name.startswith((".", "_")) and name not in self._read:
                entries = _read_commit(self._table / "_delta_log" / name)
                if entries is not None:
                    self._read[name] = entries


def _read_commit(path: Path) -> dict[str, int] | None:
    """Return application to version, and data file to 1, of a commit; None while it cannot be read."""
    entries: dict[str, int] = {}
    try:
        for line in path.read_text().splitlines():
            action = json.loads(line)
            if "txn" in action:
                entries[action["txn"]["appId"]] = int(action["txn"]["version"])
            if "add" in action:
                entries[action["add"]["path"]] = 1
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return entries


class Steps:
    """The steps of one stream's batches, from outside."""

    def __init__(self, checkpoint: Path, table: Path, app: str | None = None) -> None:
        """Watch a checkpoint and the table its sink writes.

        Args:
            checkpoint: checkpoint of the query.
            table: the sink's Delta table.
            app: application id under which the sink commits batch numbers; None if it does not.
        """
        self._checkpoint = checkpoint
        self._log = DeltaLog(table)
        self._app = app
        self._seen_at: dict[int, int] = {}

    def versions(self) -> int:
        """Return how many commits the sink's table has."""
        return self._log.versions()

    def planned(self, batch: int) -> bool:
        """`offsets/N` exists."""
        exists = (self._checkpoint / "offsets" / str(batch)).exists()
        if exists and batch not in self._seen_at:
            self._seen_at[batch] = self._log.versions()
        return exists

    def in_state(self, batch: int) -> bool:
        """A state file of the batch exists (version N + 1 of some partition)."""
        state = self._checkpoint / "state" / "0"
        marks = (f"{batch + 1}_", f"{batch + 1}.")
        for partition in ("0", "1"):
            try:
                if any(entry.name.startswith(marks) for entry in (state / partition).iterdir()):
                    return True
            except FileNotFoundError:
                continue
        return False

    def files_written(self, batch: int) -> bool:
        """This batch or a later one is planned, and there are result files that no commit names."""
        if not self._log.loose_files():
            return False
        last = self.last_planned()
        return last >= batch and not self.finished(last)

    def published(self, batch: int) -> bool:
        """The sink's commit of the batch is made."""
        if self._app is not None:
            done = self._log.transaction(self._app)
            return done is not None and done >= batch
        return self.planned(batch) and self._log.versions() > self._seen_at[batch]

    def finished(self, batch: int) -> bool:
        """`commits/N` exists."""
        return (self._checkpoint / "commits" / str(batch)).exists()

    def last_planned(self) -> int:
        """Return the last planned batch, -1 if there is none."""
        return max(numbers(self._checkpoint / "offsets"), default=-1)

    def last_finished(self) -> int:
        """Return the last finished batch, -1 if there is none."""
        return max(numbers(self._checkpoint / "commits"), default=-1)

    def idle(self, records: int) -> bool:
        """Every planned batch is finished, and so many records of the log are read."""
        last = self.last_planned()
        if last < 0 or not self.finished(last):
            return False
        offsets = json.loads((self._checkpoint / "offsets" / str(last)).read_text().splitlines()[2])
        return sum(sum(places.values()) for places in offsets.values()) >= records
