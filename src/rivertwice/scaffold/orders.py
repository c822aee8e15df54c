"""A small generated stream: two thousand orders of three shops, 19 of which come hours too late. Pure, and the same every time.

`rivertwice init --sample`, `rivertwice demo` and the tutorial use it.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from rivertwice.scaffold.sample import MOST_RECORDS, Sample, SampleRecord, parse_object

TOPIC = "orders"
SHOPS = ("berlin", "lagos", "quito")
ORDERS = 2_000
BATCH = 200
"""Records of a micro-batch. A record is late by the watermark of the batch before its own, so late records need several batches."""
FIRST = datetime(2026, 1, 5, 8, tzinfo=UTC)
EVERY = timedelta(seconds=18)
LONGEST_TRIP = timedelta(seconds=90)
OUTAGE = ("lagos", FIRST.replace(hour=9, minute=10), FIRST.replace(hour=9, minute=25))
"""A shop whose line is down, and from when until when; its orders of that time arrive at `LINE_BACK`."""
LINE_BACK = FIRST.replace(hour=15)
FORGOTTEN = {700: FIRST.replace(hour=16, minute=10), 900: FIRST.replace(hour=16, minute=20)}
"""Single orders by number, and when they arrive."""


def make_orders() -> list[dict[str, Any]]:
    """Return the orders in the order in which they arrive; `placed_at` is when each was placed."""
    draw = random.Random(1)  # noqa: S311
    arriving = []
    for number in range(ORDERS):
        placed = FIRST + number * EVERY
        order = {
            "order_id": number,
            "shop": draw.choice(SHOPS),
            "amount": round(draw.uniform(3, 80), 2),
            "placed_at": placed.isoformat(),
        }
        arrives = placed + timedelta(seconds=draw.randrange(round(LONGEST_TRIP.total_seconds())))
        if order["shop"] == OUTAGE[0] and OUTAGE[1] <= placed < OUTAGE[2]:
            arrives = LINE_BACK
        arriving.append((FORGOTTEN.get(number, arrives), order))
    arriving.sort(key=lambda pair: pair[0])
    return [order for _, order in arriving]


def orders_text() -> str:
    """Return the orders as JSON lines."""
    return "".join(json.dumps(order) + "\n" for order in make_orders())


def orders_sample(text: str) -> Sample:
    """Return the sample that the pipeline is guessed from: the first orders, before the late ones arrive."""
    values = [parse_object(line) for line in text.splitlines()[:MOST_RECORDS]]
    records = [
        SampleRecord(0, number, 0, None, None, value) for number, value in enumerate(values) if isinstance(value, dict)
    ]
    return Sample("generated orders", TOPIC, 1, records, held=ORDERS, is_file=True)
