"""Peace with versions: people finish what they began, and every stream must reach the log's end or report why not."""

from __future__ import annotations

from collections.abc import Callable

from lab.model.events import produce
from lab.model.final import check_final, check_proved, check_reconciles
from lab.model.peace import ROUNDS, WORKS, People
from lab.model.process import Process
from lab.model.versions.begin import half_dropped, is_half_begun
from lab.model.versions.home import VersionWorld
from lab.model.versions.pipeline import FIRST, Pipeline
from lab.model.versions.serve import is_current
from lab.model.versions.stories import VERSION_TASKS
from lab.model.violations import fail
from rivertwice.timeline.intent import Intent


def make_version_peace(pipeline: Pipeline, step: Callable[[Process], None]) -> str:
    """Let everything run fairly; return how the first version ended.

    Raises:
        ViolationError: a stream neither reached the log's end nor stands for a reason.
    """
    produce(pipeline.first, 99)
    for home in pipeline.homes.values():
        home.judge.jumped = True
        for process in home.processes.values():
            process.paused = False
    people: dict[str, People] = {}
    followed = not pipeline.repeats
    endings: dict[str, str] = {}
    for number in range(ROUNDS):
        pipeline.tick(3)
        kinds: set[str] = set()
        for home in list(pipeline.homes.values()):
            kinds |= _go_on(home, step)
        if number % 8 or (VERSION_TASKS | {"load", "serve again"}) & kinds:
            continue
        if _finish(pipeline):
            continue
        if not followed:  # whoever let a version serve does it once more
            followed = True
            pipeline.first.spawn("serve again")
            continue
        endings = {
            name: people.setdefault(name, People(home)).look(late=number > ROUNDS // 2)
            for name, home in pipeline.homes.items()
            if name == FIRST or name in pipeline.versions
        }
        if all(ending and ending != WORKS for ending in endings.values()):
            return endings[FIRST]
    return fail(
        "live again once nothing fails",
        f"{endings}, intents { {name: home.intent for name, home in pipeline.homes.items()} }, "
        f"exits { {name: home.exit for name, home in pipeline.homes.items()} }, "
        f"served { {name: is_current(home) for name, home in pipeline.homes.items()} }, versions {pipeline.versions}",
    )


def _go_on(home: VersionWorld, step: Callable[[Process], None]) -> set[str]:
    """Let each process of a version go on, and the agent start what is missing; return their kinds."""
    for process in list(home.processes.values()):
        if process.alive:
            step(process)
    kinds = {process.kind for process in home.processes.values()}
    for kind in ("agent", "keeper"):
        if kind not in kinds and home.intent is not None:
            home.spawn(kind)
    return kinds


def _finish(pipeline: Pipeline) -> bool:
    """Let a person repeat a command that was cut off, and let the project have the definition that this needs."""
    left = half_dropped(pipeline)
    if left:
        home = pipeline.homes.get(left[0])
        if home is not None:  # a drop that was cut off may have left its stream wanted
            home.intent = Intent("stopped", "a person", pipeline.now)
        pipeline.first.spawn("drop new")
        return True
    newest = pipeline.versions.get(pipeline.newest)
    if newest is not None and newest.is_open:
        pipeline.project = int(newest.fingerprint["semantics"][1:])
    elif not pipeline.frozen:
        pipeline.project = int((pipeline.first.meaning() or "m1")[1:])
    if is_half_begun(pipeline):
        pipeline.first.spawn("upgrade")
        return True
    return False


def check_versions(pipeline: Pipeline) -> None:
    """Check all that must hold at rest, of each version and of what they share."""
    for home in pipeline.homes.values():
        check_final(home)
        check_proved(home)
        check_reconciles(home)
    pipeline.judge.check_dropped()
    pipeline.judge.check_public()
