"""A backlog whose keys live in eras: each partition is dense at other times, so batches split by what waits drift apart."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homes.project import TO_RUN, make_project
from lab.faults.events import Event, produce_events
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.log.kafka import ensure_topic
from rivertwice.timeline.ledger import LedgerRow

NAME = "keyed"
PARTITIONS = 4
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
BEGIN_MS = 1_767_225_600_000
"""2026-01-01."""
ERAS = ((0.0, 1.0, 1.0), (0.0, 0.25, 4.0), (0.7, 1.0, 3.0), (0.3, 0.5, 5.0))
"""Each partition's era: where it begins and ends in the history, and how dense its records are there; a tenth lies outside."""


@dataclass(frozen=True)
class Keyed:
    """A record: its event, and when its producer sent it."""

    partition: int
    key: str
    event_ms: int
    sent_ms: int

    @property
    def window_end_ms(self) -> int:
        """End of the window of one hour that it belongs to."""
        return (self.event_ms // HOUR_MS + 1) * HOUR_MS


def keyed_backlog(seed: int, records: int, *, days: float, late_share: float = 0.08) -> list[Keyed]:
    """Return records in the order in which they were sent; some were sent by hours more than the watermark after their event."""
    dice = random.Random(seed)
    weights = [density * (end - begin) for begin, end, density in ERAS]
    made = []
    for _ in range(records):
        partition = dice.choices(range(PARTITIONS), weights)[0]
        begin, end, _density = ERAS[partition]
        place = dice.random() if dice.random() < 0.1 else dice.uniform(begin, end)
        event_ms = BEGIN_MS + int(place * days * DAY_MS)
        slow = dice.random() < late_share
        delay_ms = dice.uniform(2, 12) * HOUR_MS if slow else dice.expovariate(1 / (4 * MINUTE_MS))
        key = f"k{partition + PARTITIONS * dice.randrange(5)}"
        made.append(Keyed(partition, key, event_ms, event_ms + int(delay_ms)))
    return sorted(made, key=lambda record: (record.sent_ms, record.event_ms, record.key))


def make_keyed_project(folder: Path, bootstrap: str, topic: str, **pins: Any) -> Settings:
    """Make a project whose one pipeline counts records of a key and an hour, under a watermark of one hour."""
    files = {"pipeline.yaml": _YAML.format(topic=topic, pins=json.dumps(pins)), "transform.sql": _SQL}
    return make_project(folder, {NAME: files}, links=TO_RUN, bootstrap=bootstrap)


def send(settings: Settings, topic: str, records: Iterable[Keyed]) -> None:
    """Create the topic and send the records with the time at which they were sent."""
    ensure_topic(settings, topic, PARTITIONS)
    events = []
    for record in records:
        value = json.dumps({"k": record.key, "at": to_iso(from_ms(record.event_ms))}).encode()
        events.append(Event(record.partition, record.key.encode(), value, record.sent_ms))
    produce_events(settings, topic, events)


def late_by_arrival(records: Sequence[Keyed]) -> int:
    """Return how many records come after their window's end, if each arrives alone, in the order in which they were sent."""
    late, newest_ms = 0, 0
    for record in records:
        late += record.window_end_ms <= newest_ms - HOUR_MS
        newest_ms = max(newest_ms, record.event_ms)
    return late


def late_by_arrival_in_batches(records: Sequence[Keyed], size: int) -> int:
    """Return how many records are late if batches take them in the order in which they were sent, as Spark judges batches."""
    batches = [records[at : at + size] for at in range(0, len(records), size)]
    return late_in_batches(batches)


def late_in_the_stream(records: Sequence[Keyed], rows: Sequence[LedgerRow], topic: str) -> int:
    """Return how many records are late by the ranges and watermarks of the ledger."""
    by_partition: dict[int, list[Keyed]] = {number: [] for number in range(PARTITIONS)}
    for record in records:
        by_partition[record.partition].append(record)
    late, before_ms = 0, 0
    for row in rows:
        for partition, (start, end) in row.ranges(topic).items():
            late += sum(record.window_end_ms <= before_ms for record in by_partition[partition][start:end])
        before_ms = row.batch_watermark_ms
    return late


def drift_ms(records: Sequence[Keyed], topic: str, row: LedgerRow) -> int:
    """Return by how much a batch's furthest partition is ahead of the one that is read least far and has more, by event time."""
    by_partition: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for record in records:
        by_partition[record.partition].append(record.event_ms)
    ends: Mapping[int, int] = {partition: end for partition, (_, end) in row.ranges(topic).items()}
    fronts = {p: max(by_partition[p][:end], default=0) for p, end in ends.items()}
    unread = [max(fronts[p], by_partition[p][end]) for p, end in ends.items() if end < len(by_partition[p])]
    return max(0, max(fronts.values()) - min(unread)) if unread else 0


def late_in_batches(batches: Sequence[Sequence[Keyed]]) -> int:
    """Return how many records are late by the watermark of the batch before theirs."""
    late, before_ms, now_ms = 0, 0, 0
    for batch in batches:
        late += sum(record.window_end_ms <= before_ms for record in batch)
        before_ms, now_ms = now_ms, max(now_ms, max(record.event_ms for record in batch) - HOUR_MS)
    return late


_YAML = """\
name: keyed
description: Records of a key and an hour.
sources:
  records:
    topic: {topic}
    partitions: 4
    schema: {{k: string, at: timestamp}}
    required: [k]
    event_time: at
    watermark: 1 hour
    max_future: 1 hour
window: {{size: 1 hour}}
keys: [k]
count_column: records
columns:
  records: {{compare: exact}}
stream: {pins}
"""
_SQL = """\
SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS records
FROM records
GROUP BY window(at, '1 hour'), k
"""
