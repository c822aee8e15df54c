"""The archive job."""

from __future__ import annotations

from lab.model.process import Process, Steps, point
from lab.model.stream import TOPIC
from lab.model.world import World
from rivertwice.core.errors import LostRaceError, ServiceError
from rivertwice.log.addresses import between

CHUNK = 4
PLANNED = point("archive: planned")
READ = point("archive: chunk read")
CHECKED = point("archive: archive unmoved")
COMMITTED = point("archive: chunk committed")


def run_archiver(world: World, me: Process) -> Steps:
    """Archive what Kafka has and the archive has not, a chunk a commit."""
    if world.broken != "archive without its lock" and not world.lock("archive", me):
        message = "another process archives"
        raise ServiceError(message)
    if world.topic_id != "topic-1":
        return  # another topic has a table of its own
    archived = dict(world.archived)
    retained = {p: (world.begin[p], world.produced[p]) for p in range(len(world.begin))}
    planned = world.rules.plan_extension(archived, retained, None)
    yield PLANNED
    starts = {p: archived.get(p, bounds)[0] for p, bounds in planned.items()}
    ends = {p: start for p, (start, _) in planned.items()}
    for chunk in world.rules.plan_chunks(planned, CHUNK):
        before = dict(ends)
        ends |= {p: high for p, (_, high) in chunk.items()}
        world.read_kafka(chunk)
        if world.topic_id != "topic-1":
            message = "the topic is another one now"
            raise LostRaceError(message)
        yield READ
        world.rules.check_unmoved(world.archived, between(starts, before), TOPIC)
        yield CHECKED
        if world.broken == "archive commit without its ends":
            world.log_judge.archived(chunk)
            world.archive += [(p, start, end) for p, (start, end) in chunk.items()]
            yield COMMITTED
            world.archived = between(starts, ends)
            continue
        if world.archived and world.archived != between(starts, before) and world.broken != "archive without its lock":
            message = "the transactions of the archive moved"
            raise LostRaceError(message)
        world.extend_archive(chunk, between(starts, ends))
        yield COMMITTED
