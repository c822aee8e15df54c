"""A pipeline of amounts by key, and five hours of its records: late ones, keys that are never negative, and what a batch gives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from lab.faults.events import Event, produce_events
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings

NAME = "amounts"
MINUTE_MS = 60_000
WINDOW_MS, DELAY_MS = 10 * MINUTE_MS, 10 * MINUTE_MS
BEGIN_MS = 1_767_225_600_000
YAML = """\
name: amounts
description: Amounts by key.
sources:
  records:
    topic: TOPIC
    partitions: 1
    schema: {k: string, at: timestamp, delta: bigint}
    required: [k, delta]
    event_time: at
    watermark: 10 minutes
    max_future: 1 hour
window: {size: 10 minutes}
keys: [k]
count_column: records
columns: {records: {}, total: {}}
stream: {max_offsets_per_trigger: 40, catch_up_share: 0, shuffle_partitions: 1}
"""
SQL = """\
SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS records, sum(delta) AS total
FROM records
GROUP BY window(at, '10 minutes'), k
"""


@dataclass(frozen=True)
class Amount:
    k: str
    at_ms: int
    delta: int


def amounts() -> list[Amount]:
    """Five hours of records, two a minute; some come ninety minutes late, and one key is never negative."""
    made = []
    for number in range(600):
        k = ("in", "out", "both")[number % 3]
        at_ms = BEGIN_MS + number * MINUTE_MS // 2
        if number % 41 == 40 and number > 180:
            at_ms -= 90 * MINUTE_MS
        size = 1 + number % 17
        made.append(Amount(k, at_ms, size if k == "in" else -size if k == "out" or number % 2 else size))
    return made


def send(settings: Settings, topic: str, records: Iterable[Amount]) -> None:
    produce_events(
        settings,
        topic,
        [
            Event(0, b"k", json.dumps({"k": r.k, "at": to_iso(from_ms(r.at_ms)), "delta": r.delta}).encode(), r.at_ms)
            for r in records
        ],
    )


def totals(records: Iterable[Amount]) -> dict[tuple[int, str], tuple[int, int, int]]:
    """Return records, sum and absolute sum of each window and key: what a batch over everything gives."""
    groups: dict[tuple[int, str], list[int]] = {}
    for record in records:
        groups.setdefault((record.at_ms // WINDOW_MS * WINDOW_MS, record.k), []).append(record.delta)
    return {row: (len(deltas), sum(deltas), sum(map(abs, deltas))) for row, deltas in groups.items()}
