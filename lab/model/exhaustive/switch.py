"""Version switch: it is let through and done, resumed and gone back on, while builds of two hosts keep what consumers read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lab.model.driver import IDLE
from lab.model.exhaustive.batch import WorldScene, run_calmly
from lab.model.exhaustive.search import COMES_RIGHT, Bounds, Scene, Slot, copies_of, harm_in
from lab.model.mutation import Mutation
from lab.model.process import Process
from lab.model.rules import Rules
from lab.model.stream import Record
from lab.model.versions import judge, keeper
from lab.model.versions.home import VersionWorld
from lab.model.versions.pipeline import FIRST, Pipeline
from lab.model.versions.serve import is_current
from lab.model.versions.stories import VERSION_ACTORS
from lab.model.violations import fail
from rivertwice.core.installed import version_name
from rivertwice.timeline.served_stamp import serving_version_of
from rivertwice.timeline.version_records import Version
from rivertwice.versions import serve

SAYS_WHOSE = "the table that consumers read says whose rows it has"
SECOND = version_name(FIRST, 2)
LOG = [
    [Record("ok", 1), Record("skip", 12), Record("ok", 31), Record("ok", 51)],
    [Record("ok", 3), Record("skip", 2), Record("ok", 33), Record("ok", 52)],
]
INVARIANTS = (
    SAYS_WHOSE,
    judge.ONE_VERSION,
    judge.SWITCH_ONLY,
    judge.SAYS,
    judge.NOT_BACK,
    judge.UP_TO_DATE,
    judge.LET_THROUGH,
    judge.BOTH_PROVED,
    COMES_RIGHT,
)


class SwitchScene(WorldScene):
    """Switches and builds over two versions that stand still."""

    def __init__(self, pipeline: Pipeline, slots: Mapping[str, Slot], harm: Mapping[str, int]) -> None:
        """Begin with a version that may serve, and the first one that does."""
        super().__init__(pipeline.first, slots, harm)
        self.pipeline = pipeline

    def spawn(self, name: str, slot: Slot, pid: int) -> Process:
        """Start a process in the home of its version."""
        home = self.pipeline.homes[SECOND if name.endswith("of new") else FIRST]
        self.pipeline.pids = pid - 1
        return home.processes[home.spawn(slot.kind, host=slot.host)]

    def end(self, process: Process) -> None:
        """Let a process be gone."""
        self.pipeline.where[process.pid].end(process)

    def durable(self) -> Any:
        """Return what switches and builds write, and what the judge knows of it."""
        pipeline = self.pipeline
        homes = [
            (home.own, home.built, tuple(sorted(home.locks.items())), home.judge.closed_ms)
            for home in pipeline.homes.values()
        ]
        seen = pipeline.judge.serving, pipeline.judge.newest, pipeline.judge.let_through, pipeline.judge.begun
        switched = tuple(tuple(switch.items()) for switch in pipeline.switches)
        return (
            pipeline.public,
            switched,
            tuple(sorted(pipeline.notes.items())),
            homes,
            seen,
            tuple(pipeline.locks.items()),
        )

    def can_step(self, process: Process) -> bool:
        """Let whoever waits for a lock look again only if it is free."""
        if process.at != keeper.LOCKED:
            return True
        name = keeper.lock_name(process)
        return all(home.locks.get(name) in (None, process.pid) for home in self.pipeline.homes.values())

    def check(self) -> None:
        """Check that the table of consumers says whose rows it has."""
        if serving_version_of(self.pipeline.public.stamp, FIRST) != self.pipeline.judge.serving:
            fail(SAYS_WHOSE, f"{self.pipeline.public.stamp}, its rows are of {self.pipeline.judge.serving}")

    def is_good(self) -> bool:
        """Say whether consumers read all of the version that serves."""
        serving = self.pipeline.homes[self.pipeline.serving()]
        return is_current(serving) and all(process.kind.endswith("keeper") for process in self.running.values())

    def finish(self) -> None:
        """Let keepers of both versions build."""
        for home in self.pipeline.homes.values():
            run_calmly(home, "keeper", until=keeper.WAITS)
        self.pipeline.judge.check_public()
        super().finish()


def begin(rules: Rules, broken: str, bounds: Bounds) -> Callable[[], Scene]:
    """Return what begins the scene."""
    pipeline = Pipeline(LOG, Rules(), VERSION_ACTORS, "")
    pipeline.homes[FIRST] = VersionWorld(pipeline, FIRST, 1)
    pipeline.produced = [3, 3]
    for name in (FIRST, SECOND):
        if name == SECOND:
            _record(pipeline)
        home = pipeline.homes[name]
        home.rate = 2
        run_calmly(home, "driver", until=IDLE)
        run_calmly(home, "keeper", until=keeper.WAITS)
        run_calmly(home, "reconcile")
    if bounds["back"]:
        run_calmly(pipeline.first, "serve new")
    pipeline.produced = [4, 4]
    for home in pipeline.homes.values():
        run_calmly(home, "driver", until=IDLE)
    pipeline.rules, pipeline.broken = rules, broken
    for home in pipeline.homes.values():
        home.rules, home.broken = rules, broken
    copy = copies_of(pipeline)
    slots = {"serve": Slot("serve new", 1, bounds["starts"]), "keeper": Slot("far keeper", 2)}
    if bounds["back"]:
        slots = {
            "back": Slot("serve old", 1, bounds["starts"]),
            "back too": Slot("far serve old", 2),
            "keeper of new": Slot("far keeper", 2),
        }
    return lambda: SwitchScene(copy(), slots, harm_in(bounds))


def _record(pipeline: Pipeline) -> None:
    """Begin the second version, which counts what the first one leaves out."""
    pipeline.project = 2
    pipeline.homes[SECOND] = VersionWorld(pipeline, SECOND, 2)
    pipeline.record(Version(SECOND, FIRST, "d2", "d2", {"semantics": "m2"}, ("sql",), "a person", pipeline.now))
    pipeline.frozen.update({FIRST: 1, SECOND: 2})


MUTATIONS = (
    Mutation("a build does not look whose rows the table shows", rules={"is_own": lambda *_: True}),
    Mutation("a build writes over what came in between", "a build writes over what came in between"),
    Mutation("both versions mark their rows alike", rules={"mark_of": lambda *_: ""}),
    Mutation(
        "the table of consumers does not say whose rows it has",
        rules={"serving_version_of": lambda _, name: name.partition("@")[0]},
    ),
    Mutation("a switch writes over what came in between", "a switch writes over what came in between"),
    Mutation("a switch does not look again who serves", rules={"require_unmoved": lambda *_: None}),
    Mutation("a switch keeps rows of the version before", "a switch keeps the old rows"),
    Mutation("a switch builds no rows of its own first", "a switch builds no rows"),
    Mutation(
        "a switch stamps the rows as the version's own table does",
        rules={"stamp_to_serve": lambda home, own: own or serve.stamp_to_serve(home, own)},
    ),
    Mutation("every version counts as one that served before", rules={"has_served": lambda *_: True}),
)
