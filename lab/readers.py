"""Plain consumers beside a stream, as any application has them: groups that share partitions, takeover, readers of any speed (S30 to S32).

`python -m lab.readers` runs all four scenes over a broker and prints what each saw. A stream of rivertwice is a member of no group: it
reads exact ranges, and its ledger is its position. These readers are Kafka's own, by confluent-kafka.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from lab.faults.campaign import broker_for
from lab.faults.events import Event, produce_events
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.log import kafka
from rivertwice.log.kafka import ensure_topic
from rivertwice.log.reader import read_exactly

AT_MS = 1_767_225_600_000
PATIENCE_S = 60
TAKEN = 7
COMMITTED = 5
"""The reader that is killed has taken `TAKEN` records and committed the first `COMMITTED` of them."""


def send(settings: Settings, topic: str, *records: tuple[int, str, str]) -> None:
    """Send records: partition, key and value of each."""
    made = [Event(partition, key.encode(), value.encode(), AT_MS) for partition, key, value in records]
    produce_events(settings, topic, made)


@contextmanager
def member(settings: Settings, group: str, topic: str) -> Iterator[Consumer]:
    """Give a reader of a group, which commits only when told to."""
    extra = {
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "partition.assignment.strategy": "range",
    }
    reader = kafka.consumer(settings, extra=extra)
    reader.subscribe([topic])
    try:
        yield reader
    finally:
        reader.close()


def take(reader: Consumer, count: int) -> list[str]:
    """Return the next values of a reader.

    Raises:
        TimeoutError: they did not come within a minute.
    """
    found: list[str] = []
    deadline = Deadline.after(PATIENCE_S)
    while len(found) < count:
        if not deadline.left():
            message = f"{len(found)} of {count} records came within {PATIENCE_S} s"
            raise TimeoutError(message)
        record = reader.poll(0.2)
        if record is not None and record.error() is None:
            found.append((record.value() or b"").decode())
    return found


def settle(readers: Sequence[Consumer], partitions: int) -> list[list[int]]:
    """Poll all readers until each partition has one; return the partitions of each, the smallest first.

    Raises:
        TimeoutError: the group did not settle within a minute.
    """
    deadline = Deadline.after(PATIENCE_S)
    while deadline.left():
        for reader in readers:
            reader.poll(0.05)
        parts = [sorted(one.partition for one in reader.assignment()) for reader in readers]
        idle = max(0, len(readers) - partitions)
        if sorted(one for part in parts for one in part) == list(range(partitions)) and parts.count([]) == idle:
            return sorted(parts, key=lambda part: part or [partitions])
    message = f"the group did not settle within {PATIENCE_S} s"
    raise TimeoutError(message)


def keys(settings: Settings, topic: str) -> dict[str, Any]:
    """S30: records in the partition that their key names, id modulo partitions, and their order there; two readers share them."""
    ensure_topic(settings, topic, 3)
    place = {user: int(user[1:]) % 3 for user in ("u7", "u8")}
    send(settings, topic, *((place[user], user, value) for user, value in (("u7", "e1"), ("u8", "e2"), ("u7", "e3"))))
    ends = kafka.end_offsets(settings, topic)
    found: dict[str, list[str]] = {}
    for record in read_exactly(settings, topic, {part: (0, end) for part, end in ends.items() if end}):
        found.setdefault(f"P{record.partition()}", []).append(f"o{record.offset()} {(record.value() or b'').decode()}")
    return {"12345": f"P{12345 % 3}", **dict(sorted(found.items())), "readers": shares(settings, topic, 3, 2)}


def shares(settings: Settings, topic: str, partitions: int, readers: int) -> list[list[int]]:
    """S31: return the partitions of each reader of a group; one that is left over is idle and has none."""
    ensure_topic(settings, topic, partitions)
    with ExitStack() as stack:
        group = f"{topic}-{readers}-readers"
        return settle([stack.enter_context(member(settings, group, topic)) for _ in range(readers)], partitions)


def takeover(settings: Settings, topic: str) -> list[str]:
    """S31: a reader is killed with SIGKILL after its commit; return what the next member of its group reads."""
    ensure_topic(settings, topic, 1)
    send(settings, topic, *((0, "k", f"e{number}") for number in range(10)))
    group = f"{topic}-group"
    command = [sys.executable, "-m", "lab.readers", "--bootstrap", settings.bootstrap_servers(), "--take", topic, group]
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            if first.stdout.readline() != "committed\n":
                message = f"the first reader did not commit within {PATIENCE_S} s"
                raise TimeoutError(message)
        finally:
            first.kill()
    with member(settings, group, topic) as second:
        return take(second, 10 - COMMITTED)


def take_and_wait(settings: Settings, topic: str, group: str) -> None:
    """Be the reader of `takeover` that is killed: read `TAKEN` records, commit `COMMITTED` of them, say so, and wait."""
    with member(settings, group, topic) as reader:
        take(reader, TAKEN)
        reader.commit(offsets=[TopicPartition(topic, 0, COMMITTED)], asynchronous=False)
        sys.stdout.write("committed\n")
        sys.stdout.flush()
        sys.stdin.read()


def speeds(settings: Settings, topic: str) -> dict[str, int]:
    """S32: three groups at three speeds over one log; return how many records each has read before the last begins again at 0."""
    ensure_topic(settings, topic, 1)
    values = [f"e{number}" for number in range(200)]
    send(settings, topic, *((0, "k", value) for value in values))
    seen: dict[str, list[str]] = {name: [] for name in ("slow", "fast", "late", "again")}
    with ExitStack() as stack:
        reader = {
            name: stack.enter_context(member(settings, f"{topic}-{name}", topic)) for name in ("slow", "fast", "late")
        }
        for name, count in (("slow", 1), ("fast", 200), ("slow", 1), ("late", 50)):
            seen[name] += take(reader[name], count)
        reader["late"].seek(TopicPartition(topic, 0, 0))  # a view that is made again from the first record
        seen["again"] = take(reader["late"], 200)
    wrong = [name for name, found in seen.items() if found != values[: len(found)]]
    if wrong:
        message = f"{', '.join(wrong)} did not read the log from its beginning in its order"
        raise RuntimeError(message)
    return {name: len(found) for name, found in seen.items()}


SCENES: dict[str, Callable[[Settings, str], Any]] = {
    "S30: users by id % 3; the partitions of two readers": keys,
    "S31: 6 partitions, 3 readers": lambda settings, topic: shares(settings, topic, 6, 3),
    "S31: 3 partitions, 10 readers": lambda settings, topic: shares(settings, topic, 3, 10),
    f"S31: killed after {TAKEN} records, {COMMITTED} committed; its successor reads": takeover,
    "S32: records read by three groups, and by the one that begins again": speeds,
}


def main() -> int:
    """Run the scenes over an embedded broker, or over that of --bootstrap, and print what each saw."""
    parser = argparse.ArgumentParser(prog="python -m lab.readers", description=__doc__)
    parser.add_argument("--bootstrap", help="HOST:PORT of a broker; default: one that is started for it")
    parser.add_argument("--take", nargs=2, metavar=("TOPIC", "GROUP"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    settings = Settings.from_env()
    if given.take:
        take_and_wait(Settings(project=settings.project, home=settings.home, bootstrap=given.bootstrap), *given.take)
        return 0
    with tempfile.TemporaryDirectory(prefix="rivertwice-readers-") as name:
        asked = Settings(project=settings.project, home=Path(name), bootstrap=given.bootstrap)
        with broker_for(asked, Path(name)) as running:
            for number, (title, scene) in enumerate(SCENES.items()):
                topic = f"{Path(name).name}-{number}"
                sys.stdout.write(f"{title}: {json.dumps(scene(running, topic))}\n")
                sys.stdout.flush()
                kafka.delete_topic(running, topic)
    return 0


if __name__ == "__main__":
    sys.exit(main())
