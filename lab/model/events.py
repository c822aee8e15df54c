"""What happens to a world from outside: records, retention, clocks, people, rot."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from lab.model.stream import Record
from lab.model.world import World
from rivertwice.timeline.intent import Intent

ONE_AT_A_TIME = 6  # processes of one kind that a schedule may have at once


def apply_event(world: World, what: str, argument: Any) -> None:
    """Let something happen to the world."""
    if what == "spawn":
        start_process(world, argument)
    elif what == "produce":
        produce(world, argument)
    elif what == "tick":
        world.tick(argument)
    elif what == "clock":
        world.now += timedelta(seconds=argument)
        world.judge.jumped = True
    elif what == "retain":
        partition, offset = argument
        world.begin[partition] = max(world.begin[partition], min(offset, world.produced[partition]))
    elif what == "retain archived":
        for partition, (_, end) in world.archived.items():
            world.begin[partition] = max(world.begin[partition], end)
    elif what == "network":
        trouble_network(world, argument)
    elif what == "intent":
        world.intent = Intent(argument, "a person", world.now)
    elif what == "sick":
        world.sick = argument
    elif what == "define":
        world.definition = argument
    else:
        harm(world, what, argument)


def harm(world: World, what: str, argument: Any) -> None:
    """Break something, or put it right again."""
    if what == "damage":
        damage(world, argument)
    elif what == "rot":
        rot(world)
    elif what == "pin":
        for saved in [candidate for candidate in world.savepoints.values() if candidate.exists][:1]:
            saved.pinned = True
    elif what == "recreate topic":
        if argument:
            recreate_topic(world)
    elif what == "fence":
        process = world.processes.get(world.names.get(argument, 0))
        if process is not None and process.kind == "driver" and world.shared_lease:
            process.paused = True
            world.tick(20)


def rot(world: World) -> None:
    """Flip a bit of the newest savepoint.

    Not while prune runs: it has read every byte of what it relies on, and cannot know of later rot.
    """
    if any(process.kind == "prune" for process in world.processes.values()):
        return
    for saved in list(world.savepoints.values())[-1:]:
        saved.rotten = True
        if saved.content is not None:
            state = saved.content.state
            saved.content.state = {batch: dict(list(held.items())[1:]) for batch, held in state.items()}


def start_process(world: World, kind: str) -> None:
    """Start a process of a kind, unless there are too many."""
    if kind == "standby" and not world.shared_lease:
        return
    if sum(process.kind == kind for process in world.processes.values()) < ONE_AT_A_TIME:
        world.spawn(kind, host=2 if kind == "standby" or kind.startswith("far ") else 1)


def trouble_network(world: World, number: int) -> None:
    """Delay a request to a sink, let a late one arrive, or let a server end a transaction that stays open."""
    sinks = world.sinks
    choices: list[tuple[Callable[..., None], Any]] = [
        (sinks.arrive if request.sender is None else sinks.delay, request) for request in sinks.network
    ]
    if sinks.postgres.holder is not None:
        choices.append((sinks.time_out, "postgres"))
    if sinks.kafka.unfinished is not None:
        choices.append((sinks.time_out, "kafka"))
    if choices:
        happens, what = choices[number % len(choices)]
        happens(what)


def produce(world: World, count: int) -> None:
    """Let the next records arrive."""
    for _ in range(count):
        left = [len(log) - end for log, end in zip(world.logs[world.topic_id], world.produced, strict=True)]
        partition = 0 if left[0] >= left[1] else 1
        if left[partition]:
            world.produced[partition] += 1


def damage(world: World, what: str) -> None:
    """Take the newest file of a kind out of the head's checkpoint."""
    head = world.head()
    checkpoint = None if head is None else world.checkpoints.get(head)
    if checkpoint is None or not checkpoint.commits:
        return
    files: dict[int, Any] = getattr(checkpoint, what)
    if files:
        del files[max(files)]
        world.judge.damaged = True


def recreate_topic(world: World) -> None:
    """Delete the topic and create it again: another id, and offsets that mean other records."""
    if world.topic_id == "topic-2":
        return
    new_logs = [[Record("ok", record.event_ms + 5) for record in log] for log in world.logs[world.topic_id]]
    world.topic_id = "topic-2"
    world.logs[world.topic_id] = new_logs
    world.begin = [0, 0]
