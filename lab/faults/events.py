"""Seeded events for the pipeline lab_sums: late, repeated, poisonous, skewed, idle, from the future, of another schema.

The clock of the story begins at BEGIN_MS and knows nothing of ours, so the same plan gives the same bytes on any day.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.faults.poison import POISON, make_poison
from rivertwice.core.errors import RequestError, ServiceError
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.core.waits import retry
from rivertwice.log import kafka
from rivertwice.log.send import Sent, send_records

BEGIN_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""
YEAR_MS = 365 * 86_400_000
CLOSING_MS = 600_000
Headers = tuple[tuple[str, bytes], ...]
LAB_1: Headers = (("schema-id", b"lab-1"),)
LAB_2: Headers = (("schema-id", b"lab-2"),)


@dataclass(frozen=True)
class Event:
    """One record as it is produced."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


@dataclass(frozen=True)
class EventPlan:
    """What to produce. All shares are of `records`, drawn independently.

    Attributes:
        records: records of the story; repeats and closing records come on top.
        partitions: partitions of the topic; the last `idle_partitions` of them get nothing, partition 0 gets `skew` more.
        keys: distinct keys.
        begin_ms: when the story begins.
        step_ms: time between two records' arrivals.
        late_share: records whose event time lies up to `late_ms` before their arrival, the others up to 3 s.
        duplicate_share: records that are produced twice, byte for byte, as a producer without idempotence does.
        poison_share: records no pipeline can accept, of all kinds in turn.
        future_share: records whose event time is a year ahead of their arrival.
        excluded_share: records that the transform's row filter leaves out.
        schema_share: records of schema lab-2, which has a field more.
        closing: ends with one record per busy partition, ten minutes later, so that every window before it closes.
    """

    seed: int
    records: int = 600
    partitions: int = 3
    keys: int = 8
    begin_ms: int = BEGIN_MS
    step_ms: int = 500
    late_share: float = 0.1
    late_ms: int = 120_000
    duplicate_share: float = 0.0
    poison_share: float = 0.005
    future_share: float = 0.003
    excluded_share: float = 0.05
    schema_share: float = 0.05
    skew: float = 0.0
    idle_partitions: int = 0
    closing: bool = True

    @property
    def end_ms(self) -> int:
        """Return when the story is over: the next plan on the same topic begins here."""
        return self.begin_ms + self.records * self.step_ms + (2 * CLOSING_MS if self.closing else 0)


def encode_event(fields: Mapping[str, Any]) -> bytes:
    """Return a record's value."""
    return json.dumps(fields, separators=(",", ":")).encode()


def plan_events(plan: EventPlan) -> list[Event]:
    """Return the events in the order of their arrival; the same for the same plan.

    Raises:
        RequestError: no partition would get a record.
    """
    busy = plan.partitions - plan.idle_partitions
    if busy < 1:
        message = (
            f"{plan.idle_partitions} idle of {plan.partitions} partitions leave none to produce to; leave one busy"
        )
        raise RequestError(message)
    draw = random.Random(plan.seed)  # noqa: S311 (test data, not a secret)
    events: list[Event] = []
    poisoned = 0
    for number in range(plan.records):
        arrival = plan.begin_ms + number * plan.step_ms + draw.randrange(plan.step_ms)
        partition = 0 if draw.random() < plan.skew else draw.randrange(busy)
        fields = _fields(plan, number, arrival, draw)
        if draw.random() < plan.poison_share:
            event = make_poison(POISON[(plan.seed + poisoned) % len(POISON)], fields)
            poisoned += 1
            events.append(Event(partition, event.key, event.value, arrival, event.headers))
            continue
        headers = LAB_1
        if draw.random() < plan.schema_share:
            fields, headers = {**fields, "note": f"added-{number}"}, LAB_2
        if draw.random() < plan.future_share:
            fields["at"] = to_iso(from_ms(arrival + YEAR_MS))
        made = Event(partition, fields["k"].encode(), encode_event(fields), arrival, headers)
        events.append(made)
        if draw.random() < plan.duplicate_share:
            events.append(made)
    if plan.closing:
        events.extend(_closing(plan, busy))
    return events


def _fields(plan: EventPlan, number: int, arrival: int, draw: random.Random) -> dict[str, Any]:
    late = draw.random() < plan.late_share
    delay_ms = draw.randrange(plan.late_ms) if late else draw.randrange(3_000)
    amount = draw.randrange(1_000)
    if draw.random() < plan.excluded_share:
        amount = -1 - amount
    return {
        "id": f"{plan.seed}-{plan.begin_ms}-{number}",
        "k": f"k{draw.randrange(plan.keys)}",
        "at": to_iso(from_ms(arrival - delay_ms)),
        "amount": amount,
    }


def _closing(plan: EventPlan, busy: int) -> list[Event]:
    arrival = plan.begin_ms + plan.records * plan.step_ms + CLOSING_MS
    closing = []
    for partition in range(busy):
        fields = {"id": f"closing-{partition}", "k": "closing", "at": to_iso(from_ms(arrival)), "amount": partition}
        closing.append(Event(partition, b"closing", encode_event(fields), arrival, LAB_1))
    return closing


def produce_events(settings: Settings, topic: str, events: Sequence[Event]) -> list[Sent]:
    """Produce events in their order and return where each lies now, in the same order.

    The records of one partition keep their order; the call returns when the broker has acknowledged all of them.

    Raises:
        ServiceError: not all were acknowledged.
    """
    # An absent topic is reported at once, not after the producer's patience. While controllers elect, nobody answers.
    retry(ServiceError, tries=3)(kafka.topic_id, settings, topic)
    return send_records(settings, topic, events)
