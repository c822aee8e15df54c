"""Begin a version, which is `upgrade --new-version --yes`, and drop one."""

from __future__ import annotations

from lab.model.loads import run_load
from lab.model.process import Process, Steps, point
from lab.model.versions.home import VersionWorld
from lab.model.versions.pipeline import FIRST, Pipeline
from rivertwice.core.errors import LostRaceError, RequestError
from rivertwice.core.installed import version_name
from rivertwice.timeline.version_records import Version

WANTED = point("begin: versions and definitions read")
STORED = point("begin: definition stored")
RECORDED = point("begin: version recorded")
OLD_FROZEN = point("begin: old definition frozen")
NEW_FROZEN = point("begin: new definition frozen")
CHECKED = point("drop: it does not serve, and no driver runs")
DROPPED = point("drop: recorded")
UNWANTED = point("drop: its stream is not wanted any more")
REMOVED = point("drop: its tables and checkpoints removed")
THAWED = point("drop: its frozen definition removed")


def run_upgrade(world: VersionWorld, me: Process) -> Steps:
    """Begin a version of the project's definition, or continue; then load its past and start its stream."""
    pipeline, rules = world.pipeline, world.rules
    hold_versions(world, me)
    if world.head() is None:
        message = "the pipeline never ran"
        raise RequestError(message)
    versions, serving = list(pipeline.versions.values()), pipeline.follow()
    drawn = f"d{pipeline.project}"
    begun = rules.select_under_way(versions, serving, drawn)
    running = pipeline.homes[serving].meaning()
    if running == f"m{pipeline.project}":
        message = "nothing that a result depends on changed"
        raise RequestError(message)
    number = rules.next_number(versions) if begun is None else begun.number
    version = begun or Version(
        version_name(FIRST, number),
        serving,
        drawn,
        drawn,
        {"semantics": f"m{pipeline.project}"},
        ("sql",),
        "a person",
        world.now,
    )
    definition = int(version.fingerprint["semantics"][1:])
    yield WANTED
    home = pipeline.homes.get(version.name)
    if home is None:
        home = pipeline.homes[version.name] = VersionWorld(pipeline, version.name, definition)
    yield STORED  # step 1
    if begun is None and not pipeline.record(version):
        message = f"another process began {version.name}"
        raise LostRaceError(message)
    if begun is None:
        pipeline.judge.is_begun(version)
    yield RECORDED
    if world.broken != "definitions are frozen after the start":
        yield from _freeze(pipeline, version, running, definition)
    else:
        pipeline.frozen[version.name] = definition
    world.unlock(versions_lock(me), me)
    yield from load_alone(home, me)
    if world.broken == "definitions are frozen after the start":
        yield from _freeze(pipeline, version, running, definition)


def hold_versions(world: VersionWorld, me: Process) -> None:
    """Do what `hold_versions` does; the lock goes with the process.

    Raises:
        LostRaceError: another process begins, drops or switches a version.
    """
    if world.broken != "versions are changed side by side" and not world.lock(versions_lock(me), me):
        message = "another process begins, drops or switches a version"
        raise LostRaceError(message)


def versions_lock(me: Process) -> str:
    """Return the name of the lock of a process's host that lets one process at a time change versions."""
    return f"versions {me.host}"


def load_alone(home: VersionWorld, me: Process) -> Steps:
    """Load the past of a version, while no other process does, and start its stream.

    Raises:
        LostRaceError: another one does.
        RequestError: the version was dropped.
    """
    if not home.lock("load", me):
        message = f"another process loads {home.name}"
        raise LostRaceError(message)
    if home.name not in home.pipeline.frozen:
        message = f"there is no definition of {home.name}"
        raise RequestError(message)
    yield from run_load(home, me)
    home.unlock("load", me)


def _freeze(pipeline: Pipeline, version: Version, running: str | None, definition: int) -> Steps:
    assert running is not None, "what serves has run"
    if pipeline.broken != "the old definition is not frozen":
        pipeline.frozen[version.beside] = int(running[1:])  # step 2
    yield OLD_FROZEN
    pipeline.frozen[version.name] = definition  # step 3
    yield NEW_FROZEN


def run_drop(world: VersionWorld, me: Process) -> Steps:
    """Give the newest version up, as `drop_version` does, in its order."""
    pipeline, rules = world.pipeline, world.rules
    hold_versions(world, me)
    name = next(iter(half_dropped(pipeline)), pipeline.newest)
    version, home = pipeline.versions.get(name), pipeline.homes.get(name)
    if version is None:
        message = "there is no version"
        raise RequestError(message)
    owner = home.owner[1][1] if home is not None and home.owner_lives() else None
    rules.require_droppable(version, pipeline.follow(), owner)
    if home is not None and world.broken != "a version is dropped under its load":
        for lock in ("load", "stream1"):
            if not home.lock(lock, me):
                message = f"another process loads {name}, or starts its stream"
                raise LostRaceError(message)
    yield CHECKED
    pipeline.record_dropped(name)
    yield DROPPED
    if home is not None:
        home.intent = None
    yield UNWANTED
    remove_home(pipeline, name)
    yield REMOVED
    pipeline.frozen.pop(name, None)
    yield THAWED
    if not rules.needs_frozen(list(pipeline.versions.values())):
        pipeline.frozen.pop(FIRST, None)
    world.unlock(versions_lock(me), me)


def half_dropped(pipeline: Pipeline) -> list[str]:
    """Return the versions that were given up and of which something is left, or for which the first one is still frozen."""
    is_frozen = FIRST in pipeline.frozen and not any(version.is_open for version in pipeline.versions.values())
    return [
        name
        for name, version in pipeline.versions.items()
        if not version.is_open and (is_frozen or name in pipeline.homes or name in pipeline.frozen)
    ]


def is_half_begun(pipeline: Pipeline) -> bool:
    """Say whether the newest version is not frozen, or its stream was never wanted."""
    version = pipeline.versions.get(pipeline.newest)
    if version is None or not version.is_open:
        return False
    home = pipeline.homes.get(version.name)
    is_frozen = {version.name, version.beside} <= pipeline.frozen.keys()
    return not is_frozen or home is None or home.intent is None


def remove_home(pipeline: Pipeline, name: str) -> None:
    """Remove all that a version has stored."""
    home = pipeline.homes.pop(name, None)
    if home is not None:
        pipeline.judge.is_removed(home)
        home.is_removed = True
        home.sequence, home.load, home.intent = [], None, None
        home.remove_own()
