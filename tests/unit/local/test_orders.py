"""The generated orders: the same every time, and late by the rule of micro-batches, whatever their size up to the definition's."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from rivertwice.local.sample import (
    BATCH,
    FORGOTTEN,
    MOST_RECORDS,
    ORDERS,
    OUTAGE,
    make_orders,
    orders_sample,
    orders_text,
)
from rivertwice.local.write import sample_files

HOUR = timedelta(hours=1)
DELAY = timedelta(minutes=5)


def placed(order: dict[str, object]) -> datetime:
    return datetime.fromisoformat(str(order["placed_at"]))


def late_numbers(batch: int) -> list[int]:
    """Return the orders that are late if micro-batches have so many records: by the watermark of the batch before their own."""
    orders, late = make_orders(), []
    before = current = datetime(1970, 1, 1, tzinfo=UTC)
    for start in range(0, len(orders), batch):
        chunk = orders[start : start + batch]
        for order in chunk:
            end = placed(order).replace(minute=0, second=0) + HOUR
            if end <= before:
                late.append(int(order["order_id"]))
        before, current = current, max(current, max(placed(order) for order in chunk) - DELAY)
    return late


def test_the_orders_are_the_same_every_time_and_each_comes_once() -> None:
    assert make_orders() == make_orders()
    assert sorted(order["order_id"] for order in make_orders()) == list(range(ORDERS))
    assert [json.loads(line) for line in orders_text().splitlines()] == make_orders()


@pytest.mark.parametrize("batch", [1, 10, 50, 150, BATCH - 1, BATCH])
def test_the_same_orders_are_late_in_batches_of_every_allowed_size(batch: int) -> None:
    late = late_numbers(batch)
    of_outage = [
        order["order_id"]
        for order in make_orders()
        if order["shop"] == OUTAGE[0] and OUTAGE[1] <= placed(order) < OUTAGE[2]
    ]
    assert sorted(late) == sorted([*of_outage, *FORGOTTEN])
    assert len(late) == 19


def test_nothing_is_late_in_one_batch_of_all() -> None:
    assert late_numbers(ORDERS) == []


def test_the_pipeline_is_guessed_from_orders_that_are_in_time() -> None:
    assert len(orders_sample(orders_text()).records) == MOST_RECORDS
    guess, files = sample_files()
    assert (guess.name, guess.keys, guess.window, guess.watermark, guess.gaps) == ("orders", ("shop",), HOUR, DELAY, [])
    assert f"max_offsets_per_trigger: {BATCH}" in files["pipelines/orders/pipeline.yaml"]
    assert files["pipelines/orders/sample.jsonl"] == orders_text()
    assert "pipelines/orders/produce.py" not in files
