"""Decisions drawn from a seed: who steps, who dies, what is started, what happens from outside."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from lab.model.coverage import Coverage
from lab.model.deliveries import check_sinks
from lab.model.final import check_final, check_proved, check_reconciles
from lab.model.loads import unloaded
from lab.model.peace import make_peace
from lab.model.process import POINTS
from lab.model.rules import Rules
from lab.model.run import Run
from lab.model.stories import ACTORS, STORIES, TASKS, Decision, Focus
from lab.model.stream import Record
from lab.model.world import World
from rivertwice.savepoint.operations.record import Rewind
from rivertwice.timeline.intent import Intent


class DrawnRun(Run):
    """A schedule whose decisions are drawn from a seed."""

    def __init__(self, seed: int, rules: Rules, broken: str, coverage: Coverage, focus: Focus, *, trace: bool) -> None:
        """Set the world of a seed up; nothing has moved yet."""
        self.random = Random(seed)  # noqa: S311 (schedules must repeat, nothing is secret)
        world = World(plan_log(self.random), rules, ACTORS, broken)
        super().__init__(world, coverage, trace=trace)
        world.shared_lease = self.random.random() < 0.25 or focus.shared
        world.sick = focus.sick
        self.crowd = focus.crowd or self.random.random() < 0.15
        self.sick = focus.sick
        self.people = focus.people or self.random.random() < 0.15
        world.rate = self.random.choice((2, 3, 4))
        world.intent = Intent("running", "model", world.now)
        world.produced = [3, 2]
        for kind in ("agent", "keeper"):
            world.spawn(kind)
        self.crash_share = self.random.choice((0.0, 0.02, 0.05, 0.12))
        self.pause_share = self.random.choice((0.0, 0.0, 0.03, 0.06))
        self.wild = self.random.random() < 0.2 or focus.wild
        self.length = self.random.randint(90, 240)
        stories = STORIES if focus.stories is None else focus.stories
        self.plan = list(self.random.choice(stories))
        if self.random.random() < 0.3:
            self.plan += self.random.choice(stories)
        self.next_at = self.random.randint(20, 60)
        wanted = {"restore", "planned", "prune", "rewind", "reconcile"} & set(self.plan)
        self.calm = self.random.randint(90, 150) if wanted and self.random.random() < 0.8 else 0
        self.prelude = ["prove", "take"] * (self.random.randint(1, 2) if self.calm else 0)
        if focus.prelude is not None:
            self.calm, self.prelude = self.random.randint(100, 150), list(focus.prelude[::-1])
        if focus.deadly:
            self.crash_share = 0.12
        if focus.sleepy:
            self.pause_share = 0.12
        self.loads = focus.loads
        if focus.loads:
            self._load_first()
        self.length += (
            self.calm
            + (500 if focus.sick else 0)
            + 150 * self.plan.count("rewind")
            + 120 * min(2, self.plan.count("planned"))
        )

    def finish(self) -> str:
        """Make peace, and check all that must hold then; return how it ended."""
        ending = make_peace(self.world, self.step)
        check_final(self.world)
        check_proved(self.world)
        check_reconciles(self.world)
        check_sinks(self.world)
        return ending

    def _load_first(self) -> None:
        """Let a person load what the log has; on two hosts, and compared by a reconcile, that is not modelled."""
        world = self.world
        world.shared_lease = False
        world.intent = None
        world.produced = [len(log) * 2 // 3 for log in world.logs[world.topic_id]]
        if any(kind.startswith("reconcile") for kind in self.plan):
            self.plan, self.calm = [], 0
        world.spawn("load")

    def decide(self, number: int) -> Decision:
        """Draw the next decision."""
        draw, world = self.random, self.world
        if number < self.calm:
            return self._calm(number)
        if (world.sinks.network or world.sinks.postgres.holder is not None) and draw.random() < 0.12:
            return ("network", draw.randint(0, 5))
        story = self._load_again() if self.loads else None
        story = story or self._story(number) or self._again()
        if story is not None:
            return story
        chance = draw.random()
        names = list(world.names)
        if not any(running.kind == "agent" for running in world.processes.values()) and chance > 0.8:
            return ("spawn", "agent")
        if not names:
            return ("spawn", "keeper")
        if chance < 0.10:
            return self._rare(draw, names)
        name = draw.choice(names)
        if draw.random() < 0.7:  # the agent and the keeper need not look all the time
            calm = ("ag", "ke", "re") if any(candidate.startswith("catcher") for candidate in names) else ("ag", "ke")
            name = draw.choice([candidate for candidate in names if candidate[:2] not in calm] or names)
        process = world.processes[world.names[name]]
        if process.paused:
            return ("wake", name) if draw.random() < 0.15 else ("tick", 1)
        fate = draw.random()
        if fate < self.crash_share:
            return ("crash", name)
        if fate < self.crash_share + self.pause_share:
            return ("pause", name)
        return ("step", name)

    def _story(self, number: int) -> Decision | None:
        """Start what the story has next, once it is its turn."""
        draw, world = self.random, self.world
        if self.plan and self.plan[0].startswith("catch "):
            return self._catch(*self.plan[0].removeprefix("catch ").split(" at ", 1))
        if self.plan and number >= self.next_at and (world.commits or number > 100):
            busy = not self.crowd and any(process.kind in TASKS for process in world.processes.values())
            if not busy or draw.random() < 0.08:
                self.next_at = number + draw.randint(1, 4 if self.crowd else 10)
                if self.plan[0].startswith("hold "):
                    kind = self.plan.pop(0).removeprefix("hold ")
                    return ("pause", next((name for name in world.names if name.startswith(kind)), ""))
                if self.plan[0] == "fence":
                    self.plan.pop(0)
                    return ("fence", next((name for name in world.names if name.startswith("driver")), ""))
                if draw.random() < 0.15:  # a task that runs twice
                    self.next_at = number + 1
                    return ("spawn", self.plan[0])
                return ("spawn", self.plan.pop(0))
        return None

    def _catch(self, kind: str, at: str) -> Decision | None:
        """Stop a process of a kind once it has reached a point; until then the story waits."""
        reached = [p.name for p in self.world.processes.values() if p.kind == kind and p.at >= 0 and POINTS[p.at] == at]
        if not reached:
            return None
        self.plan.pop(0)
        return ("pause", reached[0])

    def _again(self) -> Decision | None:
        """Let a person continue a rewind that stopped, or give it up."""
        draw, world = self.random, self.world
        if not world.unfinished(Rewind) or any(
            process.kind in ("rewind", "give up") for process in world.processes.values()
        ):
            return None
        if draw.random() > 0.15:
            return None
        return ("spawn", "rewind" if draw.random() < 0.75 else "give up")

    def _load_again(self) -> Decision | None:
        """Let a person continue a first load that stopped, or once in a while start the stream without one."""
        draw, world = self.random, self.world
        if "load" in {process.kind for process in world.processes.values()} or draw.random() > 0.08:
            return None
        if world.load is None and world.head() is not None:
            return None
        if world.load is not None and world.head() is not None and not unloaded(world, world.load):
            return None
        return ("spawn", "load") if draw.random() < 0.85 else ("intent", "running")

    def _calm(self, number: int) -> Decision:
        """Let things run without harm, so that there is something to harm: batches, a proved savepoint."""
        draw, world = self.random, self.world
        if number % 12 == 11:
            return ("produce", 1)
        kinds = {process.kind: process.name for process in world.processes.values()}
        if number > 25 and self.prelude and world.commits and not {"take", "prove"} & set(kinds):
            return ("spawn", self.prelude.pop())
        if draw.random() < 0.8:
            busy = [name for kind, name in kinds.items() if kind not in ("agent", "keeper")]
            if busy:
                return ("step", draw.choice(busy))
        return ("step", draw.choice(list(world.names)))

    def _rare(self, draw: Random, names: Sequence[str]) -> Decision:
        chance = draw.random()
        if self.sick and chance < 0.5:
            return ("tick", 15)
        if self.people and chance < 0.3:
            return ("intent", "running")
        if chance < 0.55:
            return ("produce", draw.randint(1, 3))
        if chance < 0.65:
            return ("tick", draw.choice((2, 15, 70)))
        if not self.wild:
            return ("spawn", draw.choice(("agent", "keeper"))) if chance < 0.8 else ("tick", 1)
        return draw.choice(
            (
                ("clock", draw.choice((-3600, 3600, 7 * 3600))),
                ("retain", (draw.randint(0, 1), draw.randint(1, 9))),
                ("retain archived", 0),
                ("intent", "stopped"),
                ("intent", "running"),
                ("damage", draw.choice(("state", "commits", "offsets"))),
                ("rot", 0),
                ("pin", 0),
                ("sick", draw.random() < 0.6),
                ("define", draw.choice((1, 1, 2))),
                ("recreate topic", draw.random() < 0.3),
                ("spawn", "standby"),
                ("spawn", "driver"),
                ("fence", draw.choice(names)),
            )
        )


def plan_log(draw: Random, least: int = 10, most: int = 20) -> list[list[Record]]:
    """Return the records of both partitions: event times that rise, with late ones, bad ones and filtered ones."""
    log: list[list[Record]] = [[], []]
    at = 0
    for _ in range(draw.randint(least, most)):
        at += draw.randint(0, 6)
        late = draw.choice((0, 0, 0, 3, 12, 25))
        kind = draw.choice(("ok", "ok", "ok", "ok", "ok", "bad", "skip"))
        log[draw.randint(0, 1)].append(Record(kind, max(0, at - late)))
    for partition in log:
        while len(partition) < 3:
            at += 2
            partition.append(Record("ok", at))
    return log
