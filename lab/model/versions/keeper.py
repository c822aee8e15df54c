"""What keeps `served` of a version: each build finds the table that is its own, and writes directly on what it read."""

from __future__ import annotations

from collections.abc import Generator

from lab.model.agent import look_served
from lab.model.process import Process, Steps, point
from lab.model.versions.home import VersionWorld, renamed
from rivertwice.core.errors import LostRaceError

RACES = 5
FOLLOWED = point("served of a version: stamp of what consumers read followed")
OPENED = point("served of a version: table opened")
LOOKED = point("served of a version: sequence and batches read")
OWN = point("served of a version: table is its own")
BUILT = point("served of a version: written")
WAITS = point("served of a version: nothing new")
LOCKED = point("served of a version: another build has the lock")


def run_keeper(world: VersionWorld, me: Process) -> Steps:
    """Build what a version serves whenever it moved; a `far keeper` does it on another host, with that host's note and lock."""
    seen = None
    while True:
        state = (world.last_seq(), len(world.commits), len(world.corrections))
        if (state, _served(world, me)) == seen:
            yield WAITS
            continue
        try:
            yield from rebuild(world, me)
        except LostRaceError:
            yield WAITS
            continue
        seen = (state, _served(world, me))
        yield WAITS


def _served(world: VersionWorld, me: Process) -> tuple[object, int]:
    place = world.place(me.host)
    return place, world.table_at(place).version


def rebuild(world: VersionWorld, me: Process) -> Steps:
    """Do what `rebuild_served` does.

    Raises:
        LostRaceError: others committed each time.
    """
    for number in range(RACES):
        yield from take_lock(world, me)
        try:
            yield from _build(world, me)
        except LostRaceError:
            if number == RACES - 1:
                raise
        else:
            return
        finally:
            world.unlock(lock_name(me), me)


def lock_name(me: Process) -> str:
    """Return the name of the lock of builds on a process's host."""
    return f"served {me.host}"


def take_lock(world: VersionWorld, me: Process) -> Generator[int]:
    """Wait for the lock of builds of this version on this host."""
    while not world.lock(lock_name(me), me):
        yield LOCKED


def _build(world: VersionWorld, me: Process) -> Steps:
    """Do what `_rebuild` does, in its order."""
    pipeline, rules = world.pipeline, world.rules
    if not world.home.is_first_version:
        pipeline.follow(me.host)
        yield FOLLOWED
    place = world.place(me.host)
    handle = world.table_at(place).version
    yield OPENED
    look = look_served(world)
    if look is None:
        return
    look = renamed(look, rules.mark_of(world.home, place))
    yield LOOKED
    if world.broken == "a build reads its table last":
        handle = world.table_at(place).version
    shown = world.table_at(place).stamp
    if not rules.is_own(shown, look.version):
        pipeline.follow(me.host)
        message = f"{pipeline.known(me.host)} serves now"
        raise LostRaceError(message)
    yield OWN
    if shown == look.stamp:
        return
    if world.broken == "a build writes over what came in between" or (
        handle < 0 and world.broken == "a first build replaces another one"
    ):
        handle = world.table_at(place).version
    world.build(look, place, handle)
    yield BUILT
