"""What must hold of versions: what consumers read is one version's, and changes hands only by a switch that was let through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.model.stream import TOPIC, WINDOW_MS, Address
from lab.model.violations import fail
from rivertwice.timeline.sequence import EntryKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.model.durable import Served
    from lab.model.process import Process
    from lab.model.versions.gate import Sides
    from lab.model.versions.home import VersionWorld
    from lab.model.versions.pipeline import Pipeline
    from rivertwice.reconcile.seals.look import ChangesSinceSeal
    from rivertwice.timeline.version_records import Version

ONE_VERSION = "what consumers read is one version's rows, as its own sequence says"
SWITCH_ONLY = "what consumers read changes its version only by a switch"
LET_THROUGH = "a version serves that the gate let through, or that served before"
SAYS = "a switch says whose rows it replaced"
ONE_BEGUN = "one version at a time is begun"
EXISTS = "the version that serves exists"
NOT_BACK = "consumers read each version only forward"
UP_TO_DATE = "a switch shows all that the version had committed"
CAUSE = "the gate passes only if every difference has a cause"
BOTH_PROVED = "the gate passes only over what reconciles of both versions proved"
FROZEN = "both definitions are frozen before a version starts"
APART = "a version does not touch another one's stream"
GONE = "nothing of a dropped version is left"


class VersionJudge:
    """Every check that is made when the table that consumers read changes, a gate passes or a version goes."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Watch a pipeline from its beginning."""
        self.pipeline = pipeline
        self.serving = ""  # name of the version whose rows consumers read
        self.let_through: set[str] = set()
        self.had_served: set[str] = set()
        self.newest: dict[str, tuple[int, int]] = {}
        self.begun: dict[str, tuple[int, int]] = {}

    # what consumers read

    def is_built(self, world: VersionWorld, before: Served | None, look: Served) -> None:
        """Check a build that was committed to the table that consumers read."""
        if before is not None and self.serving != world.name:
            fail(SWITCH_ONLY, f"{world.name} wrote over the rows of {self.serving}")
        self.serving = world.name
        self.had_served.add(world.name)
        self._check_rows(world, look)

    def is_switched(self, target: VersionWorld, look: Served, before: str, shown: Served | None) -> None:
        """Check the commit of a switch, which says that it replaced rows of `before`; `shown` is what it replaced."""
        if shown is not None and self.serving != before:
            fail(SAYS, f"{target.name} replaced rows of {self.serving}, and says {before}")
        if self.pipeline.homes.get(target.name) is not target or not self._is_open(target.name):
            fail(EXISTS, f"{target.name} is dropped")
        if target.name not in self.had_served | self.let_through:
            fail(LET_THROUGH, f"{target.name} serves in place of {before}")
        self.serving = target.name
        self.had_served.add(target.name)
        self._check_rows(target, look)
        begun = self.begun.get(target.name)
        if begun is not None and self._place(target, look) < begun:
            fail(UP_TO_DATE, f"{target.name} shows {look.stamp}, and had {begun} when it was asked for")

    def _is_open(self, name: str) -> bool:
        version = self.pipeline.versions.get(name)
        return version is None or version.is_open

    def begins_to_switch(self, me: Process, target: VersionWorld) -> None:
        """Note what a version has when a switch to it begins."""
        head = target.head()
        rows = [] if head is None else target.path_rows(head)
        if rows:
            self.begun[target.name] = (target.last_seq(), rows[-1].batch_watermark_ms)

    def _place(self, world: VersionWorld, look: Served) -> tuple[int, int]:
        return look.sequence, world.judge.rows[look.timeline, look.batch].batch_watermark_ms

    def _check_rows(self, world: VersionWorld, look: Served) -> None:
        if (look.timeline, look.batch) not in world.judge.rows:
            fail(ONE_VERSION, f"{world.name} shows {look.stamp}, which it never committed")
        truth = true_rows(world, look)
        if dict(look.rows) != truth:
            wrong = sorted({*truth, *look.rows}, key=lambda end: (truth.get(end) == look.rows.get(end), end))[:1]
            fail(
                ONE_VERSION,
                f"{world.name} at {look.stamp}: the window that ends at {wrong[0]} has {look.rows.get(wrong[0])}, not {truth.get(wrong[0])}",
            )
        place = self._place(world, look)
        if place < self.newest.get(world.name, place):
            fail(NOT_BACK, f"{world.name}: {place} after {self.newest[world.name]}")
        self.newest[world.name] = place

    # the gate

    def gate_passes(
        self, homes: tuple[VersionWorld, VersionWorld], looks: Sequence[ChangesSinceSeal], sides: Sides
    ) -> None:
        """Check a gate that let a version through, from the log alone; `looks` are those by which both are proved."""
        _, new = homes
        if any(home.is_removed for home in homes):
            return  # a drop came in between, so no switch follows
        for home, look in zip(homes, looks, strict=True):
            proved = max((seal.sequence for seal in home.reconciles.seals), default=0)
            if any(entry.kind != EntryKind.HEAD and entry.seq > proved for entry in look.entries):
                fail(BOTH_PROVED, f"{home.name} published backfills after entry {proved}")
            if max((seal.settled_ms for seal in home.reconciles.seals), default=-1) < sides.until_ms:
                fail(BOTH_PROVED, f"{home.name} is not proved up to {sides.until_ms}")
        if new.load is not None:
            new.load_judge.is_done(new.load)
        planted = self.pipeline.planted
        for end in sorted({*sides.old, *sides.new}):
            row, new_row = sides.old.get(end, frozenset()), sides.new.get(end, frozenset())
            if planted is not None and planted in row and planted not in new_row:
                fail(CAUSE, f"the window that ends at {end} lacks {planted}, and nobody declared that")
            for address in row - new_row:
                if not _reads(new, address):
                    fail(CAUSE, f"the stream of {new.name} never reads {address} of the window that ends at {end}")
        self.let_through.add(new.name)

    # homes

    def is_begun(self, version: Version) -> None:
        """Check that no other version is under way when one is begun."""
        others = [each.name for each in self.pipeline.versions.values() if each.is_open and each.name != version.name]
        if any(name != self.serving for name in others):
            fail(ONE_BEGUN, f"{version.name} beside {others}, {self.serving} serves")

    def is_started(self, world: VersionWorld) -> None:
        """Check that a version's stream starts only once both definitions are frozen."""
        version = self.pipeline.versions.get(world.name)
        if version is not None and not {version.beside, version.name} <= self.pipeline.frozen.keys():
            fail(FROZEN, f"{sorted(self.pipeline.frozen)} are")

    def is_removed(self, home: VersionWorld) -> None:
        """Check that what is removed does not serve."""
        if self.serving == home.name:
            fail(EXISTS, f"{home.name} serves, and its tables are removed")

    def is_apart(self, world: VersionWorld, before: object, after: object) -> None:
        """Check that a process of one version left another one's stream as it was."""
        if before != after:
            fail(APART, f"{world.name}: {before}, then {after}")

    def check_dropped(self) -> None:
        """Check that what was given up is gone, and that the first definition is frozen only beside another one."""
        pipeline = self.pipeline
        dropped = {name for name, version in pipeline.versions.items() if not version.is_open}
        left = sorted(dropped & (pipeline.homes.keys() | pipeline.frozen.keys()))
        if left:
            fail(GONE, f"{left}: homes {sorted(pipeline.homes)}, frozen {sorted(pipeline.frozen)}")
        for version in pipeline.versions.values():
            if version.is_open and not {version.name, version.beside} <= pipeline.frozen.keys():
                fail(FROZEN, f"{version.name} runs beside {version.beside}, frozen are {sorted(pipeline.frozen)}")
        if pipeline.frozen and not any(version.is_open for version in pipeline.versions.values()):
            fail(GONE, f"{sorted(pipeline.frozen)} are frozen, and no version runs")

    def check_public(self) -> None:
        """Check that consumers read all that the version which serves has committed."""
        pipeline = self.pipeline
        shown = pipeline.public.shown
        if shown is None:
            return
        home = pipeline.homes.get(self.serving)
        if home is None:
            fail(EXISTS, self.serving)
        head = home.head()
        rows = [] if head is None else home.path_rows(head)
        if not rows:
            return
        last = rows[-1]
        if (shown.sequence, shown.timeline, shown.batch) != (
            home.last_seq(),
            last.timeline,
            last.batch,
        ):
            fail(ONE_VERSION, f"{home.name} is at batch {last.batch}, consumers read {shown.stamp}")
        self._check_rows(home, shown)


def true_rows(world: VersionWorld, look: Served) -> dict[int, frozenset[Address]]:
    """Return the rows of a version at a stamp: what its batches emitted, then each publication in its turn."""
    path = world.judge.path(look.timeline)
    keys = path[path.index((look.timeline, look.batch)) :]
    closed = world.judge.rows[keys[0]].batch_watermark_ms
    rows = {end: held for key in reversed(keys) for end, held in world.changelog[key]}
    for entry in world.sequence[: look.sequence]:
        if entry.kind == EntryKind.HEAD:
            continue
        ranges = entry.payload["ranges"]
        rows = {end: held for end, held in rows.items() if not _covers(ranges, end)}
        rows |= {end: held for end, held in world.correction(entry.payload["backfill"]).items() if _covers(ranges, end)}
    return {end: held for end, held in rows.items() if end <= closed}


def _covers(ranges: list[list[int]], end: int) -> bool:
    return any(low <= end - WINDOW_MS < high for low, high in ranges)


def _reads(world: VersionWorld, address: Address) -> bool:
    """Say whether a version's stream reads a record, now or later, or its first load has."""
    partition, offset = address
    if world.load is not None:
        return world.load.ranges[partition][0] <= offset
    head = world.head()
    line = None if head is None else world.timelines[world.path_rows(head)[0].timeline]
    return line is not None and int(line.genesis[TOPIC][str(partition)]) <= offset
