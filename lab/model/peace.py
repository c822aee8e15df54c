"""Peace: no process dies any more, all wake, people ask again; the stream must reach the log's end or report why not."""

from __future__ import annotations

from collections.abc import Callable

from lab.model.agent import look_served
from lab.model.checkpoints import start_of
from lab.model.events import produce
from lab.model.loads import unloaded
from lab.model.process import Process
from lab.model.stream import TOPIC
from lab.model.violations import fail
from lab.model.world import World
from rivertwice.savepoint.operations.record import OperationStep, Restore, Rewind
from rivertwice.timeline.intent import Intent

ROUNDS = 700
END = "the end of the log"
WORKS = "at work"
MOST_PROOFS = 4
MOST_LOADS = 4


def make_peace(world: World, step: Callable[[Process], None]) -> str:
    """Let everything run fairly; return how it ended: at the log's end, or with the named reason why the stream stopped.

    Raises:
        ViolationError: neither.
    """
    world.sick, world.standby_leaves = False, True
    put_definition_back(world)
    world.judge.jumped = True
    produce(world, 99)
    for process in list(world.processes.values()):
        process.paused = False
    people = People(world)
    for number in range(ROUNDS):
        world.tick(3)
        for process in list(world.processes.values()):
            if process.alive:
                step(process)
        kinds = {process.kind for process in world.processes.values()}
        for kind in ("agent", "keeper"):
            if kind not in kinds:
                world.spawn(kind)
        if number % 8 or {"load", "prove", "restore", "planned", "fall-back", "abandon", "rewind", "give up"} & kinds:
            continue
        put_definition_back(world)  # a driver that had read another one may have begun the timeline since
        ending = people.look(late=number > ROUNDS // 2)
        if ending and ending != WORKS:
            come_to_rest(world, step)
            return ending
    memory = world.memory
    return fail(
        "live again once nothing fails",
        f"head {world.head()}, intent {world.intent}, {world.unfinished(Restore)}, "
        f"broken: {'' if memory is None else memory.broken_because}, last exit: {world.exit}",
    )


def come_to_rest(world: World, step: Callable[[Process], None]) -> None:
    """Let the keeper overtake a driver that still commits though people see a reason for it to stand."""
    for _ in range(ROUNDS):
        if look_served(world) is world.served:
            return
        world.tick(3)
        for process in list(world.processes.values()):
            if process.alive:
                step(process)
        if not any(process.kind == "keeper" for process in world.processes.values()):
            world.spawn("keeper")


def put_definition_back(world: World) -> None:
    """Give the head's timeline the definition that it began with."""
    head = world.head() or next(iter(world.timelines), None)
    world.definition = 1 if head is None else int(world.timelines[head].fingerprint["semantics"][1:])


class People:
    """What people do about a stream that stopped: finish or give up a restore, ask again, restore by a command."""

    def __init__(self, world: World) -> None:
        """Watch a world."""
        self.world = world
        self.asked = self.restores = self.rewinds = self.proofs = self.loads = 0

    def look(self, *, late: bool) -> str:
        """Look once, and act; return how it ended, empty if it did not end."""
        world = self.world
        if world.unfinished(Restore):
            self.restores += 1
            moved = world.unfinished(Restore)[-1].step >= OperationStep.MOVED
            world.spawn("restore" if self.restores < 6 or moved or self.restores % 2 else "abandon")
            return reason_to_stand(world) if self.restores > 12 else ""
        if world.unfinished(Rewind):
            self.rewinds += 1
            moved = world.unfinished(Rewind)[-1].step >= OperationStep.MOVED
            world.spawn("rewind" if self.rewinds < 6 or moved or self.rewinds % 2 else "give up")
            return reason_to_stand(world) if self.rewinds > 12 else ""
        if is_at_end(world):
            return self.finish_load() or self.prove() or END
        if not must_ask(world):
            return reason_to_stand(world) if late else ""
        self.asked += 1
        if self.asked > 3 and reason_to_stand(world):
            return reason_to_stand(world)
        if self.asked in (5, 7) and world.judge.damaged:
            world.spawn("restore")  # the agent's own fall-back was refused; a person does it
        else:
            world.intent = Intent("running", "a person", world.now)
        return ""

    def finish_load(self) -> str:
        """Let a person continue a first load; return what is still to be done.

        Raises:
            ViolationError: its windows are not published, and no record is gone that would say why.
        """
        world = self.world
        if world.load is None:
            return ""
        if not unloaded(world, world.load):
            world.load_judge.is_done(world.load)
            return ""
        self.loads += 1
        if self.loads <= MOST_LOADS:
            world.spawn("load")
            return WORKS
        if not any(world.begin):
            fail("the windows of a load are published in the end", unloaded(world, world.load))
        return ""

    def prove(self) -> str:
        """Let the agent prove what a planned restore took; return why that cannot be, or what is still to be done.

        Raises:
            ViolationError: it cannot be proved, and nothing was broken that would say why.
        """
        world = self.world
        if not world.awaiting():
            return ""
        self.proofs += 1
        if self.proofs <= MOST_PROOFS:
            world.spawn("prove")
            return WORKS
        broken = any(saved.rotten for saved in world.savepoints.values()) or world.judge.damaged or any(world.begin)
        if not broken:
            fail("a planned restore's savepoint is proved in the end", world.awaiting())
        return ""


def must_ask(world: World) -> bool:
    """Say whether a person has to ask for the stream again."""
    given_up = world.memory is not None and world.memory.broken_at is not None
    return world.intent is None or world.intent.desired != "running" or given_up


def is_at_end(world: World) -> bool:
    """Say whether everything in the log is committed on the head's path, and served."""
    head = world.head()
    rows = [] if head is None else world.path_rows(head)
    if head is None or world.topic_id != world.timelines[head].topic_ids[TOPIC]:
        return False
    reached = rows[-1].end_offsets if rows else world.timelines[head].genesis
    ends = [int(offset) for offset in reached[TOPIC].values()]
    beat = world.heartbeat
    idle = beat is not None and beat.state == "idle" and world.owner_lives() and beat.pid == world.owner[1][1]
    look = look_served(world)
    return ends == world.produced and idle and look is world.served


def _cannot_replay(world: World, head: str) -> bool:
    """Say whether the batch that the checkpoint has to run again needs records that Kafka has deleted."""
    checkpoint = world.checkpoints.get(head)
    if checkpoint is None:
        return False
    batch = max(checkpoint.commits, default=world.timelines[head].first_batch - 1) + 1
    if batch not in checkpoint.offsets or (batch > 0 and batch - 1 not in checkpoint.offsets):
        return False
    return any(world.begin[int(p)] > int(offset) for p, offset in start_of(checkpoint, batch)[TOPIC].items())


def reason_to_stand(world: World) -> str:
    """Return the named reason why the stream may stop, empty if there is none. Looked up in the truth."""
    head = world.head()
    if any(line.topic_ids[TOPIC] != world.topic_id for line in world.timelines.values()):
        return "the topic was deleted and created again"
    rows = [] if head is None else world.path_rows(head)
    if head is not None:
        reached = rows[-1].end_offsets if rows else world.timelines[head].genesis
        if any(world.begin[int(p)] > int(offset) for p, offset in reached[TOPIC].items()):
            return "records are gone before they were read"
        if _cannot_replay(world, head):
            return "records of an unfinished batch are gone"
    usable = [
        savepoint
        for savepoint in world.savepoints.values()
        if savepoint.exists and savepoint.proof is not None and not savepoint.rotten
    ]
    if world.judge.damaged:
        if not usable:
            return "the checkpoint is damaged and no savepoint is proved"
        if any(world.begin):
            return "the checkpoint is damaged and its records are gone"
    if world.unfinished(Restore) and any(world.begin):
        return "a restore needs records that are gone"
    if world.unfinished(Rewind) and any(world.begin):
        return "a rewind needs records that are gone"
    return ""
