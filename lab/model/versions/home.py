"""What one version has stored: a world of its own, with the log, the clocks and the table of consumers of its pipeline."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from lab.model.durable import Served
from lab.model.judge_log import LogJudge
from lab.model.process import Process
from lab.model.rules import Rule
from lab.model.stream import Record
from lab.model.tables import Tables
from lab.model.versions.pipeline import FIRST, Pipeline, ServedTable, home_of
from lab.model.world import World
from rivertwice.core.errors import RequestError
from rivertwice.core.homes import PipelineHome, Place
from rivertwice.timeline.served_stamp import ServedStamp

SHARED_LOCKS = ("archive", "versions 1", "versions 2")


def _of_pipeline(name: str) -> Any:
    """Return a property for what the pipeline has."""

    def read(world: VersionWorld) -> Any:
        return getattr(world.pipeline, name)

    def write(world: VersionWorld, value: Any) -> None:
        setattr(world.pipeline, name, value)

    return property(read, write)


@cache
def _decided(rule: Rule, home: PipelineHome, given: Any) -> Any:
    """Return what a rule says of a home, which is the same each time."""
    return rule(home, given)


class HomeTables(Tables):
    """The tables of a version; `served` is the one that it writes, as far as its host knows."""

    def __init__(self, world: VersionWorld) -> None:
        """Begin without tables."""
        super().__init__()
        self.world = world

    def version(self, table: str) -> int:
        """Return a table's newest version, -1 if it does not exist."""
        self._turn()
        return super().version(table)

    def changes(self, versions: Any) -> Any:
        """Return what `read_changes` of the product returns."""
        self._turn()
        return super().changes(versions)

    def _turn(self) -> None:
        self.commits["served"] = self.world.table().commits


class VersionWorld(World):
    """All that outlives a process of one version."""

    patience = 400
    now = _of_pipeline("now")
    forward_s = _of_pipeline("forward_s")
    topic_id = _of_pipeline("topic_id")
    produced = _of_pipeline("produced")
    begin = _of_pipeline("begin")
    archive = _of_pipeline("archive")
    archived = _of_pipeline("archived")
    pids = _of_pipeline("pids")
    log_judge: LogJudge = _of_pipeline("log_judge")

    def __init__(self, pipeline: Pipeline, name: str, definition: int) -> None:
        """Create the home of a version in which nothing has happened yet."""
        self.pipeline = pipeline
        self.name = name
        self.home = home_of(name)
        self.public = self.home.public_served
        self.suffix = "" if name == FIRST else name.removeprefix(FIRST)
        self.logs = pipeline.reading(definition)
        self.own = ServedTable()
        self.built: Served | None = None
        self.is_removed = False
        super().__init__([], pipeline.rules, pipeline.actors, pipeline.broken)
        self.tables = HomeTables(self)

    def _begin_outside(self, records: list[list[Record]]) -> None:
        """Take the log and the clocks of the pipeline."""

    # served

    def place(self, host: int = 1) -> Place:
        """Return the place of the table that this version writes, as far as a host knows."""
        place: Place = _decided(self.rules.served_while, self.home, self.pipeline.known(host))
        return place

    def table_at(self, place: Place) -> ServedTable:
        """Return the table at a place."""
        return self.pipeline.public if place == self.public else self.own

    def table(self) -> ServedTable:
        """Return the table that this version writes, as far as the first host knows."""
        return self.table_at(self.place())

    @property
    def served(self) -> Served | None:
        """What the table that this version writes shows."""
        return self.table().shown

    @served.setter
    def served(self, look: Served | None) -> None:
        """Take no table: builds go through `build`."""
        assert look is None, "tables are written by `build`"

    def mark(self) -> str:
        """Return the mark of the stamps in the table that this version writes."""
        mark: str = _decided(self.rules.mark_of, self.home, self.place())
        return mark

    def own_stamp(self) -> ServedStamp | None:
        """Do what `served_stamp` does: a host that has not seen a switch learns of it."""
        for _ in range(2):
            shown = self.table().stamp
            if self.broken == "a reconcile follows no stamp" or self.rules.is_own(shown, self.mark()):
                return shown
            self.pipeline.follow()
        return None

    def served_place(self) -> Place:
        """Return the place of the table that this version writes, as far as the first host knows."""
        return self.place()

    def shown_before(self) -> Served | None:
        """Return the last build of this version, in whichever table."""
        return self.built

    def build(self, look: Served, place: Place, handle: int) -> None:
        """Commit a build to the table at a place.

        Consumers do not read a table that a version has for itself while it serves, so nothing goes back there. It can get one: a
        build of another host that found no table, and slept while it was made and, by a switch, removed, makes it again.
        """
        table = self.table_at(place)
        before = table.shown
        table.commit(look, handle)
        self.seal_judge.serves(look)
        if table is self.pipeline.public:
            self.pipeline.judge.is_built(self, before, look)
        elif self.pipeline.judge.serving == self.name:
            return
        self.judge.serves(look)
        self.built = look

    def remove_own(self) -> None:
        """Remove the version's own table."""
        self.own.is_removed = True
        self.own = ServedTable()

    # processes

    def lock(self, name: str, process: Process) -> bool:
        """Take a lock that dies with its process; that of the archive is the pipeline's."""
        locks = self.pipeline.locks if name in SHARED_LOCKS else self.locks
        return locks.setdefault(name, process.pid) == process.pid

    def unlock(self, name: str, process: Process) -> None:
        """Give a lock up."""
        locks = self.pipeline.locks if name in SHARED_LOCKS else self.locks
        if locks.get(name) == process.pid:
            del locks[name]

    def end(self, process: Process) -> None:
        """Let a process be gone: what it held is free, in every home."""
        super().end(process)
        self.pipeline.where.pop(process.pid, None)
        for locks in (self.pipeline.locks, *(home.locks for home in self.pipeline.homes.values())):
            for name in [name for name, pid in locks.items() if pid == process.pid]:
                del locks[name]

    def lives(self, pid: int | None) -> bool:
        """Say whether a process is there, of whichever version; a stopped one is."""
        return pid in self.pipeline.where

    def spawn(self, kind: str, parent: int | None = None, host: int = 1) -> int:
        """Start a process."""
        pid = super().spawn(kind, parent, 2 if kind.startswith("far") else host)
        self.pipeline.where[pid] = self
        return pid

    def fingerprint(self) -> dict[str, str]:
        """Return the hashes of the definition that a start of this version reads: the frozen one, or the project's.

        Raises:
            RequestError: there is none.
        """
        definition = self.pipeline.frozen.get(self.name)
        if definition is None and self.name != FIRST:
            message = f"there is no definition of {self.name}"
            raise RequestError(message)
        return {**super().fingerprint(), "semantics": f"m{definition or self.pipeline.project}"}

    def start_epoch(self, process: Process) -> None:
        """Put the file of an epoch."""
        self.pipeline.judge.is_started(self)
        super().start_epoch(process)

    def meaning(self) -> str | None:
        """Return the semantics that the stream runs; None before its first start."""
        head = self.head()
        return None if head is None else self.timelines[head].fingerprint["semantics"]


def renamed(look: Served, mark: str) -> Served:
    """Return a look with the mark of a version."""
    return look if look.version == mark else replace(look, version=mark)
