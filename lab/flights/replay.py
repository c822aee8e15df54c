"""The flight replayer: produces the planned records, paced or as fast as it goes, and resumes where it stopped.

The plan is the same on every run, and an idempotent producer fills each partition in the plan's order without a hole.
So a topic holds the first n records of each partition's plan, and a run continues after them; the last of them is
compared with the plan, key and time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from confluent_kafka import KafkaError, Message, TopicPartition

from lab.flights.data import flights_csv
from lab.flights.legs import LEG_PLANS, TABLE_PLANS, read_legs
from lab.flights.plan import LogRecord, plan_records, read_flights
from lab.flights.poison import plan_poison
from rivertwice.core.errors import RequestError, ServiceError
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Measured, Progress
from rivertwice.log import kafka
from rivertwice.log.send import hand_over

PROGRESS_SECONDS = 2.0
FLUSH_SECONDS = 60.0
SCHEDULED = "flights"
STORIES = (SCHEDULED, *LEG_PLANS, *TABLE_PLANS)
"""The kinds of events that the data gives, each in a topic of its own."""


@dataclass(frozen=True)
class ReplayRequest:
    """What to replay.

    Attributes:
        topic: where to; it is created if absent.
        partitions: the topic's partitions.
        days: first and last scheduled local day, both included; None replays the year.
        speed: seconds of the story per second of ours; 0 is as fast as it goes.
        limit: stop after so many records of the plan; None replays all of it.
        poison_share: additional records that cannot be accepted, as a share of the flights.
        seed: seed of the poison.
        story: which of `STORIES`; only `flights` has poison, and tables have no days.
    """

    topic: str
    partitions: int = 4
    days: tuple[date, date] | None = None
    speed: float = 0.0
    limit: int | None = None
    poison_share: float = 0.0
    seed: int = 20130630
    story: str = SCHEDULED


@dataclass(frozen=True)
class ReplayReport:
    """What a replay did.

    Attributes:
        planned: records of the plan, up to the limit.
        present: records that were in the topic already.
        sent: records this run produced and Kafka acknowledged.
        poison: poison records in the plan, up to the limit.
        ends: where the topic ends now, by partition.
        seconds: how long it took.
    """

    planned: int
    present: int
    sent: int
    poison: int
    ends: dict[int, int]
    seconds: float


@dataclass(frozen=True)
class ReplayPlan:
    """All records in order, and which of them are poison."""

    records: tuple[LogRecord, ...]
    poison: frozenset[int]


def plan_replay(settings: Settings, request: ReplayRequest) -> ReplayPlan:
    """Return the records of the request; the same on every call."""
    if request.speed < 0:
        message = f"a speed of {request.speed} runs backwards; give event seconds per second, or 0 for no pacing"
        raise RequestError(message)
    if request.story != SCHEDULED:
        records = _plan_other(settings, request)
        return ReplayPlan(tuple(records[: request.limit]), frozenset())
    flights = read_flights(flights_csv(settings), request.days)
    planned = plan_records(flights, request.partitions)
    placed = [record.partition for record in planned]
    poison = plan_poison(flights, placed, request.poison_share, request.seed)
    records = []
    bad: set[int] = set()
    for position, record in enumerate(planned):
        records.append(record)
        if position in poison:
            bad.add(len(records))
            records.append(poison[position].record)
    limit = len(records) if request.limit is None else min(request.limit, len(records))
    return ReplayPlan(tuple(records[:limit]), frozenset(place for place in bad if place < limit))


def _plan_other(settings: Settings, request: ReplayRequest) -> list[LogRecord]:
    """Return the records of a story other than the flights themselves."""
    if request.poison_share:
        message = f"poison is for {SCHEDULED} only, but the story is {request.story}; leave it out"
        raise RequestError(message)
    folder = flights_csv(settings).parent
    if request.story in LEG_PLANS:
        return LEG_PLANS[request.story](read_legs(folder, request.days), request.partitions)
    if request.days is not None:
        message = f"{request.story} is a table of the whole year, and days were given; leave them out"
        raise RequestError(message)
    return TABLE_PLANS[request.story](folder, request.partitions)


def select_unsent(records: Sequence[LogRecord], ends: Mapping[int, int]) -> list[LogRecord]:
    """Return the records after the first `ends[p]` of each partition.

    Raises:
        RequestError: a partition already holds more than the plan has for it.
    """
    counts: Counter[int] = Counter()
    unsent: list[LogRecord] = []
    for record in records:
        if counts[record.partition] >= ends.get(record.partition, 0):
            unsent.append(record)
        counts[record.partition] += 1
    for partition, end in ends.items():
        if end > counts[partition]:
            message = (
                f"partition {partition} already holds {end} records, the plan only {counts[partition]}; it was filled by "
                "another replay (other days, share or limit); use another topic or the same request"
            )
            raise RequestError(message)
    return unsent


def replay(
    settings: Settings,
    request: ReplayRequest,
    *,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> ReplayReport:
    """Produce what is not in the topic yet.

    Args:
        settings: the cluster and the data.
        request: what to replay.
        progress: is called with a line every few seconds.
        stop: ends the replay early when set; another run continues from there.

    Raises:
        RequestError: the topic holds something else.
        ServiceError: Kafka did not acknowledge every record; running it again continues after the last acknowledged one.
    """
    started = time.monotonic()
    plan = plan_replay(settings, request)
    kafka.ensure_topic(settings, request.topic, request.partitions)
    ends = kafka.end_offsets(settings, request.topic)
    unsent = select_unsent(plan.records, ends)
    _require_same(settings, request.topic, plan.records, ends)
    stop = stop or threading.Event()
    sent = _produce(settings, request.topic, _paced(unsent, request.speed, stop), len(unsent), progress)
    return ReplayReport(
        planned=len(plan.records),
        present=len(plan.records) - len(unsent),
        sent=sent,
        poison=len(plan.poison),
        ends=kafka.end_offsets(settings, request.topic),
        seconds=time.monotonic() - started,
    )


def send_on(settings: Settings, request: ReplayRequest, stop: threading.Event) -> int:
    """Send a plan after whatever the topic holds, and return how many records that were.

    Nothing is compared, so to send it twice doubles it: for a story that goes on after another one.

    Args:
        settings: the cluster and the data.
        request: what to send, and how quickly.
        stop: ends it early when set.

    Raises:
        ServiceError: Kafka did not acknowledge every record.
    """
    records = plan_replay(settings, request).records
    return _produce(settings, request.topic, _paced(records, request.speed, stop), len(records), None)


def _paced(records: Sequence[LogRecord], speed: float, stop: threading.Event) -> Iterator[LogRecord | None]:
    """Yield the records, each when its time has come; None means: nothing is due, serve the producer."""
    begun = time.monotonic()
    for record in records:
        if speed > 0:
            due = begun + (record.timestamp_ms - records[0].timestamp_ms) / 1000 / speed
            while (left := due - time.monotonic()) > 0 and not stop.is_set():
                yield None
                stop.wait(min(left, 0.2))
        if stop.is_set():
            return
        yield record


def _produce(
    settings: Settings,
    topic: str,
    records: Iterator[LogRecord | None],
    total: int,
    progress: Progress | None,
) -> int:
    tally = _Tally()
    client = kafka.producer(settings)
    last_report = time.monotonic()
    for record in records:
        if record is not None:
            hand_over(client, topic, record, tally, lambda: bool(tally.errors))
        client.poll(0)
        if tally.errors:
            break
        if progress is not None and time.monotonic() - last_report >= PROGRESS_SECONDS:
            last_report = time.monotonic()
            at = "" if record is None else f", the clock says {to_iso(from_ms(record.timestamp_ms))}"
            progress(Measured(f"{tally.acknowledged} of {total} records{at}", topic, tally.acknowledged, total))
    left = client.flush(FLUSH_SECONDS)
    if left or tally.errors:
        first = str(tally.errors[0]) if tally.errors else f"no answer within {FLUSH_SECONDS:.0f} s"
        message = (
            f"Kafka acknowledged {tally.acknowledged} of {total} records ({first}); the topic holds them in order "
            "without a hole; start the replay again and it continues after them"
        )
        raise ServiceError(message)
    return tally.acknowledged


class _Tally:
    """Counts Kafka's answers about the records."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.errors: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)


def _require_same(settings: Settings, topic: str, records: Sequence[LogRecord], ends: Mapping[int, int]) -> None:
    """Compare the last record of each partition with the plan's record at that place."""
    planned: dict[tuple[int, int], LogRecord] = {}
    counts: Counter[int] = Counter()
    for record in records:
        planned[(record.partition, counts[record.partition])] = record
        counts[record.partition] += 1
    begins = kafka.begin_offsets(settings, topic)
    places = [TopicPartition(topic, p, end - 1) for p, end in ends.items() if end > begins[p]]
    for place, message in kafka.read_at(settings, places).items():
        wanted = planned[place]
        if (message.key(), message.timestamp()[1]) != (wanted.key, wanted.timestamp_ms):
            text = (
                f"topic {topic}, partition {place[0]}, offset {place[1]} holds {message.key()!r}, the "
                f"plan has {wanted.key!r} there; it was filled by another replay; use another topic or the same request"
            )
            raise RequestError(text)
