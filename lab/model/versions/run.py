"""A schedule with versions: decisions drawn from a seed, over the processes of all versions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from lab.model.coverage import Coverage
from lab.model.draws import plan_log
from lab.model.events import apply_event
from lab.model.loads import unloaded
from lab.model.process import POINTS, Process
from lab.model.rules import Rules
from lab.model.run import Run, state_of
from lab.model.stories import Decision, Focus
from lab.model.stream import TOPIC
from lab.model.versions.begin import half_dropped, is_half_begun
from lab.model.versions.home import VersionWorld
from lab.model.versions.peace import check_versions, make_version_peace
from lab.model.versions.pipeline import FIRST, Pipeline
from lab.model.versions.serve import is_current
from lab.model.versions.stories import VERSION_ACTORS, VERSION_STORIES, VERSION_TASKS
from lab.model.views import look_at
from rivertwice.core.errors import LostRaceError, RivertwiceError
from rivertwice.timeline.intent import Intent
from rivertwice.versions.proof import prove

PATIENCE = 300  # decisions that a story waits for streams and `served` to come to rest
MOST_LOST = 3  # commands of a schedule that are run again because they lost a race
_ASKED = {"upgrade", "drop new", "serve new", "serve old", "serve again", "far serve new", "far serve old"}


class VersionRun(Run):
    """A schedule of a pipeline with versions."""

    def __init__(self, seed: int, rules: Rules, broken: str, coverage: Coverage, focus: Focus, *, trace: bool) -> None:
        """Set the pipeline of a seed up; nothing has moved yet."""
        draw = self.random = Random(seed)  # noqa: S311 (schedules must repeat, nothing is secret)
        pipeline = self.pipeline = Pipeline(plan_log(draw, 20, 32), rules, VERSION_ACTORS, broken)
        plants = draw.random() < 0.3
        if plants if focus.planted is None else focus.planted:
            counted = [
                (partition, offset)
                for partition, log in enumerate(pipeline.logs[pipeline.topic_id])
                for offset, record in enumerate(log)
                if record.kind == "ok"
            ]
            pipeline.planted = draw.choice(counted[: len(counted) // 2 + 1])
        world = pipeline.homes[FIRST] = VersionWorld(pipeline, FIRST, 1)
        super().__init__(world, coverage, trace=trace)
        self.crowd = focus.crowd or draw.random() < 0.25
        world.rate = draw.choice((2, 3, 4))
        world.intent = Intent("running", "model", world.now)
        world.produced = [3, 2]
        for kind in ("agent", "keeper"):
            world.spawn(kind)
        drawn = draw.choice((0.0, 0.5, 1.0))
        self.far_share = drawn if focus.far is None else float(focus.far)
        if focus.far:
            world.spawn("far keeper")
        self.crash_share = 0.12 if focus.deadly else draw.choice((0.0, 0.01, 0.03, 0.06))
        self.pause_share = 0.12 if focus.sleepy else draw.choice((0.0, 0.0, 0.02, 0.05))
        if focus.quiet:
            self.crash_share = self.pause_share = 0.0
        stories = VERSION_STORIES if focus.stories is None else focus.stories
        self.plan = list(draw.choice(stories))
        self.caught: set[str] = set()
        self.lost = 0
        pipeline.repeats = draw.random() < 0.5
        self.calm = draw.randint(60, 110)
        self.harmed_from = draw.randint(1, len(self.plan) + 1) if draw.random() < 0.7 else len(self.plan) + 1
        self.next_at, self.waited = self.calm, 0
        self.length = self.calm + draw.randint(300, 500) + (120 if focus.quiet else 80) * len(self.plan)

    # the run

    def find(self, name: str) -> Process | None:
        """Return a living process of any version by its name."""
        for home in self.pipeline.homes.values():
            if name in home.names:
                return home.processes[home.names[name]]
        return None

    def world_of(self, process: Process) -> VersionWorld:
        """Return the home that a process acts in."""
        return self.pipeline.where[process.pid]

    def happen(self, what: str, argument: Any) -> None:
        """Let something happen from outside; `WHAT@new` names the newest version's home, if there is one."""
        pipeline = self.pipeline
        kind, _, target = what.partition("@")
        home = pipeline.homes.get(pipeline.newest) if target else pipeline.first
        if kind == "define back":
            pipeline.project = int(pipeline.versions[pipeline.newest].fingerprint["semantics"][1:])
        elif kind == "define":
            pipeline.project = max(pipeline.project, *(int(key[1:]) for key in self._meanings())) + 1
        elif kind == "retain read":
            retain_read(pipeline)
        elif kind == "clock":
            for each in pipeline.homes.values():
                each.judge.jumped = True
            apply_event(pipeline.first, kind, argument)
        elif kind == "intent" and home is not None and home.intent is None:
            return  # nobody starts a version that is not begun
        elif home is not None and (kind != "spawn" or home is pipeline.first or argument not in _ASKED):
            apply_event(home, kind, argument)

    def _meanings(self) -> list[str]:
        return ["m1", *(version.fingerprint["semantics"] for version in self.pipeline.versions.values())]

    def step(self, process: Process) -> None:
        """Let a process go on; it leaves the streams of other versions as they are, and ends with its version's home."""
        world = self.world_of(process)
        if world.is_removed and not process.paused:
            self.note(process, "ends: its home is gone")
            world.end(process)
            return
        pipeline = self.pipeline
        changed = {world.name} | ({pipeline.newest} if process.kind == "upgrade" else set())
        if process.kind == "drop new":
            changed |= pipeline.versions.keys()
        others = [home for name, home in pipeline.homes.items() if name not in changed]
        before = [stream_of(home) for home in others]
        super().step(process)
        for home, was in zip(others, before, strict=True):
            pipeline.judge.is_apart(home, was, stream_of(home))

    def has_failed(self, process: Process, error: RivertwiceError) -> None:
        """Let a person run a command again that lost a race."""
        if process.kind in _ASKED - {"upgrade"} and isinstance(error, LostRaceError) and self.lost < MOST_LOST:
            self.lost += 1
            self.plan.insert(0, process.kind)

    def state(self) -> tuple[Any, ...]:
        """Return what tells the present state from others."""
        pipeline = self.pipeline
        return (
            tuple((name, state_of(home), home.own.version) for name, home in pipeline.homes.items()),
            tuple(sorted(pipeline.notes.items())),
            pipeline.public.stamp,
            tuple(version.is_open for version in pipeline.versions.values()),
            tuple(pipeline.frozen),
        )

    def finish(self) -> str:
        """Make peace, and check all that must hold then; return how it ended."""
        ending = make_version_peace(self.pipeline, self.step)
        check_versions(self.pipeline)
        return ending

    # what is decided

    def decide(self, number: int) -> Decision:
        """Draw the next decision."""
        draw = self.random
        if number < self.calm:
            return self._calm(number)
        asked = self._story(number) or self._again()
        if asked is not None:
            return asked
        homes = list(self.pipeline.homes.values())
        missing = self._missing(homes)
        if missing and draw.random() < 0.2:
            return draw.choice(missing)
        names = [name for home in homes for name in home.names]
        chance = draw.random()
        if chance < 0.06 or not names:
            return self._rare()
        kinds = ("ag", "ke", "fa") if draw.random() < 0.65 else ()
        name = draw.choice([each for each in names if each[:2] not in kinds] or names)
        process = self.find(name)
        if process is None:
            return ("tick", 1)
        if process.paused:
            return ("wake", name) if draw.random() < (0.01 if name in self.caught else 0.25) else ("tick", 1)
        fate = draw.random() if len(self.plan) < self.harmed_from else 1.0
        if process.kind in _ASKED - {"upgrade"}:
            fate /= 4  # a switch and a drop have few steps
        if fate < self.crash_share:
            return ("crash", name)
        if fate < self.crash_share + self.pause_share:
            return ("pause", name)
        return ("step", name)

    def _missing(self, homes: Sequence[VersionWorld]) -> list[Decision]:
        """Return the starts of agents and keepers that a home lacks; the agent knows a version once its stream is wanted."""
        starts: list[Decision] = []
        for home in homes:
            if home.intent is None or home.name not in (FIRST, self.pipeline.newest):
                continue
            kinds = {process.kind for process in home.processes.values()}
            target = "spawn" if home.name == FIRST else "spawn@new"
            wanted = ["agent", "keeper", *(["far keeper"] if self.random.random() < self.far_share else [])]
            starts += [(target, kind) for kind in wanted if kind not in kinds]
        return starts

    def _story(self, number: int) -> Decision | None:
        """Start what the story has next, once it is its turn."""
        draw = self.random
        if not self.plan or number < self.next_at:
            return None
        turn = self.plan[0]
        if turn.startswith("catch "):
            return self._catch(*turn.removeprefix("catch ").split(" at ", 1))
        is_now, turn = turn.startswith("now "), turn.removeprefix("now ")
        if not is_now and not self._is_turn(turn) and (turn == "settle" or draw.random() > 0.003):
            self.waited += 1
            return None
        if turn == "serve new" and not is_now and self.waited < 2 * PATIENCE and self._is_unproved():
            self.waited += 1
            return self._prove()
        self.waited = 0
        self.next_at = number + draw.randint(1, 4 if self.crowd else 10)
        kind, _, target = turn.partition("@")
        suffix = "@new" if target else ""
        if kind.startswith("hold "):
            self.plan.pop(0)
            return ("pause", self._named(kind.removeprefix("hold "), target))
        if kind == "records":
            self.plan.pop(0)
            return ("produce", 4)
        if kind in ("settle", "rest"):
            self.plan.pop(0)
            return ("tick", 1)
        if kind in ("define", "running", "stopped"):
            self.plan.pop(0)
            return ("define", 0) if kind == "define" else (f"intent{suffix}", kind)
        if draw.random() < 0.9:  # else it runs twice
            self.plan.pop(0)
        return (f"spawn{suffix}", kind)

    def _is_unproved(self) -> bool:
        """Say whether a version that never served lacks a proof, its own or that of the first one."""
        pipeline = self.pipeline
        homes = [pipeline.homes.get(name) for name in (FIRST, pipeline.newest)]
        return pipeline.newest not in pipeline.judge.let_through and not all(
            home and _is_proved(home) for home in homes
        )

    def _prove(self) -> Decision | None:
        """Let a person reconcile what is not proved, once its load is done and `served` shows it."""
        pipeline = self.pipeline
        for name in (FIRST, pipeline.newest):
            home = pipeline.homes.get(name)
            if home is None or _is_proved(home) or not home.commits or (home.load and unloaded(home, home.load)):
                continue
            target = "" if home is pipeline.first else "@new"
            if not is_current(home):
                return ("step", self._named("keeper", target))
            if not any(process.kind == "reconcile" for process in home.processes.values()):
                return (f"spawn{target}", "reconcile")
        return None

    def _is_turn(self, turn: str) -> bool:
        """Say whether what a story has next may begin: nothing else is done, or streams and served have come to rest."""
        homes = list(self.pipeline.homes.values())
        if turn == "settle":
            return self.waited > PATIENCE or (
                all(_is_settled(home) for home in homes) and not is_half_begun(self.pipeline)
            )
        if turn == "rest@new":
            home = self.pipeline.homes.get(self.pipeline.newest)
            return self.waited > PATIENCE or home is None or not home.owner_lives()
        busy = any(process.kind in VERSION_TASKS for home in homes for process in home.processes.values())
        return not busy or (self.crowd and self.random.random() < 0.3)

    def _named(self, kind: str, target: str) -> str:
        home = self.pipeline.homes.get(self.pipeline.newest if target else FIRST)
        names = [] if home is None else [name for name in home.names if name.startswith(kind)]
        return names[0] if names else ""

    def _catch(self, kind: str, at: str) -> Decision | None:
        """Stop a process of a kind once it has reached a point; until then the story waits, and repeats a command that ended."""
        kind, _, target = kind.partition("@")
        homes = [home for name, home in self.pipeline.homes.items() if not target or name == self.pipeline.newest]
        living = [process for home in homes for process in home.processes.values() if process.kind == kind]
        reached = [process.name for process in living if process.at >= 0 and POINTS[process.at] == at]
        if not reached:
            is_repeated = kind in _ASKED and not living and self.random.random() < 0.05
            return ("spawn", kind) if is_repeated else None
        self.plan.pop(0)
        self.caught.add(reached[0])
        return ("pause", reached[0])

    def _again(self) -> Decision | None:
        """Let a person repeat a command that was cut off."""
        pipeline = self.pipeline
        kinds = {process.kind for process in pipeline.first.processes.values()}
        if kinds & _ASKED or self.random.random() > 0.2:
            return None
        if half_dropped(pipeline):
            return ("spawn", "drop new")
        newest = pipeline.versions.get(pipeline.newest)
        if newest is not None and newest.is_open and newest.drawn_from != f"d{pipeline.project}":
            return ("define back", 0)
        home = pipeline.homes.get(pipeline.newest)
        is_loading = home is not None and home.load is not None and bool(unloaded(home, home.load))
        return ("spawn", "upgrade") if is_half_begun(pipeline) or is_loading else None

    def _calm(self, number: int) -> Decision:
        """Let the first version run without harm, so that there is something to upgrade."""
        draw, world = self.random, self.world
        if number % 8 == 7:
            return ("produce", 1)
        if draw.random() < 0.8:
            busy = [process.name for process in world.processes.values() if process.kind not in ("agent", "keeper")]
            if busy:
                return ("step", draw.choice(busy))
        return ("step", draw.choice(list(world.names)))

    def _rare(self) -> Decision:
        draw = self.random
        chance = draw.random()
        if chance < 0.5:
            return ("produce", 1)
        if chance < 0.65:
            return ("tick", draw.choice((2, 15, 70)))
        return draw.choice(
            (
                ("intent", "running"),
                ("intent@new", "running"),
                ("retain read", 0),
                ("clock", draw.choice((-3600, 3600))),
            )
        )


def stream_of(home: VersionWorld) -> tuple[int, ...]:
    """Return counts of all that a stream and its sequence have stored."""
    return (
        len(home.commits),
        len(home.sequence),
        len(home.ledger),
        len(home.epochs),
        len(home.timelines),
        len(home.reconciles.seals),
        sum(home.applied.values()),
    )


def retain_read(pipeline: Pipeline) -> None:
    """Let Kafka delete what is archived and what every stream has read."""
    for partition, (_, end) in pipeline.archived.items():
        read = [_read_up_to(home, partition) for home in pipeline.homes.values()]
        pipeline.begin[partition] = max(pipeline.begin[partition], min([end, *read]))


def _read_up_to(home: VersionWorld, partition: int) -> int:
    head = home.head()
    if head is None:
        return 0
    rows = home.path_rows(head)
    ends = rows[-1].end_offsets if rows else home.timelines[head].genesis
    return int(ends[TOPIC][str(partition)])


def _is_proved(home: VersionWorld) -> bool:
    looks = look_at(home, full=False)
    while True:
        try:
            next(looks)
        except StopIteration as stop:
            return not prove(home.name, stop.value[0].looked).lacks
        except LostRaceError:
            return False


def _is_settled(home: VersionWorld) -> bool:
    beat = home.heartbeat
    is_loaded = home.load is None or not unloaded(home, home.load)
    return beat is not None and beat.state == "idle" and is_loaded and is_current(home)
