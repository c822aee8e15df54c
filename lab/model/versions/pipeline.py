"""A pipeline and its versions: what they share, which is the log, the clocks, the records of versions and the table that consumers read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.model.durable import Served
from lab.model.outside import Outside
from lab.model.rules import Rules
from lab.model.stream import Address, Record
from lab.model.tables import SERVED_BUILD
from lab.model.versions.judge import VersionJudge
from rivertwice.core.errors import LostRaceError
from rivertwice.core.homes import PipelineHome
from rivertwice.storage.table import TableChange
from rivertwice.timeline.served_stamp import ServedStamp
from rivertwice.timeline.version_records import Version

if TYPE_CHECKING:
    from lab.model.versions.home import VersionWorld

FIRST = "model"


@cache
def home_of(name: str) -> PipelineHome:
    """Return the places of a version; nothing is there."""
    return PipelineHome(Path("/home/pipelines") / name)


@dataclass
class ServedTable:
    """A table `served`: its commits, and what the newest one shows."""

    commits: list[TableChange] = field(default_factory=list)
    shown: Served | None = None
    is_removed: bool = False

    @property
    def version(self) -> int:
        """The newest version, -1 before the first."""
        return len(self.commits) - 1

    @property
    def stamp(self) -> ServedStamp | None:
        """The newest stamp."""
        return None if self.shown is None else self.shown.stamp

    def commit(self, look: Served, handle: int, *, whole: bool = False) -> None:
        """Show something else, in a commit that directly follows a handle's version; -1: in one that creates the table.

        Raises:
            LostRaceError: another commit came in between, or the table was removed.
        """
        if self.version != handle or self.is_removed:
            message = f"another process committed version {self.version} after {handle}"
            raise LostRaceError(message)
        shown = self.shown
        if shown is None or whole or handle < 0:
            change = TableChange(self.version + 1, "WRITE", "Overwrite", False, SERVED_BUILD)
        elif all(look.rows.get(end) == held for end, held in shown.rows.items()):
            change = TableChange(self.version + 1, "WRITE", "Append", False, SERVED_BUILD)
        else:
            change = TableChange(self.version + 1, "WRITE", "Overwrite", True, SERVED_BUILD)
        self.commits.append(change)
        self.shown = look


class Pipeline(Outside):
    """What the versions of a pipeline share.

    Attributes:
        project: number of the definition in the project; 1 is what the pipeline began with.
        homes: name to what a version has stored; those that were dropped are not among them.
        versions: name to the record of a version. frozen: name to number of the definition that is frozen for it.
        public: the table that consumers read. switches: in its log. notes: host to the name of the version that serves, as it knows.
        repeats: whoever lets a version serve does it once more, in the end.
        planted: a record that a new definition leaves out, and that nobody declared.
    """

    def __init__(
        self, records: list[list[Record]], rules: Rules, actors: Mapping[str, Callable[..., Any]], broken: str
    ) -> None:
        """Begin without any version."""
        self._begin_outside(records)
        self.rules = rules
        self.actors = actors
        self.broken = broken
        self.project = 1
        self.homes: dict[str, VersionWorld] = {}
        self.versions: dict[str, Version] = {}
        self.frozen: dict[str, int] = {}
        self.public = ServedTable()
        self.switches: list[dict[str, Any]] = []
        self.notes: dict[int, str] = {}
        self.planted: Address | None = None
        self.repeats = True
        self.locks: dict[str, int] = {}
        self.where: dict[int, VersionWorld] = {}
        self.judge = VersionJudge(self)

    @property
    def first(self) -> VersionWorld:
        """The version that has the pipeline's own name."""
        return self.homes[FIRST]

    @property
    def newest(self) -> str:
        """Name of the version that was recorded last; the first one before that."""
        return next(reversed(self.versions), FIRST)

    def serving(self) -> str:
        """Return the version that serves, by the product's rule."""
        name: str = self.rules.serving_version_of(self.public.stamp, FIRST)
        return name

    def follow(self, host: int = 1) -> str:
        """Let a host know which version serves."""
        serving = self.serving()
        if self.notes.get(host, FIRST) != serving:
            self.notes[host] = serving
        return serving

    def known(self, host: int = 1) -> str:
        """Return the version that serves as far as a host has seen."""
        return self.notes.get(host, FIRST)

    def record(self, version: Version) -> bool:
        """Record a version; return False if its number is taken."""
        if version.name in self.versions:
            return False
        self.versions[version.name] = version
        return True

    def record_dropped(self, name: str) -> None:
        """Record that a version was given up."""
        version = self.versions[name]
        if version.is_open:
            self.versions[name] = replace(version, dropped_at=self.now)

    def reading(self, definition: int) -> dict[str, list[list[Record]]]:
        """Return the log as a definition reads it: a new one counts what the first one leaves out, but for what was planted."""
        if definition == 1:
            return self.logs
        return {
            topic: [
                [self._read(record, (partition, offset)) for offset, record in enumerate(log)]
                for partition, log in enumerate(logs)
            ]
            for topic, logs in self.logs.items()
        }

    def _read(self, record: Record, address: Address) -> Record:
        if address == self.planted:
            return Record("skip", record.event_ms)
        return Record("ok", record.event_ms) if record.kind == "skip" else record
