from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime

import pytest

from lab.flights.plan import Flight
from lab.flights.poison import KINDS, make_poison, plan_poison
from rivertwice.core.errors import RequestError

FLIGHTS = [
    Flight(date(2013, 7, 1), datetime(2013, 7, 1, 12, n % 60, tzinfo=UTC), n, "UA", n, None, "EWR", "IAH", 1400)
    for n in range(1, 2001)
]
PLACED = [n % 4 for n in range(len(FLIGHTS))]


def test_there_are_at_least_ten_kinds_and_every_reason_occurs() -> None:
    assert len({kind.name for kind in KINDS}) >= 10
    assert {kind.reason for kind in KINDS} == {
        "tombstone", "empty", "utf8", "json", "schema", "missing", "schema_id", "rule", "future",
    }  # fmt: skip


def test_the_same_seed_gives_the_same_poison_and_another_seed_other() -> None:
    assert plan_poison(FLIGHTS, PLACED, 0.01, 7) == plan_poison(FLIGHTS, PLACED, 0.01, 7)
    assert plan_poison(FLIGHTS, PLACED, 0.01, 7) != plan_poison(FLIGHTS, PLACED, 0.01, 8)


def test_the_share_is_kept_and_all_kinds_take_turns() -> None:
    plan = plan_poison(FLIGHTS, PLACED, 0.03, 1)
    counts = Counter(poison.kind for poison in plan.values())
    assert len(plan) == 60
    assert set(counts) == {kind.name for kind in KINDS}
    assert set(counts.values()) == {60 // len(KINDS)}


def test_no_share_is_no_poison() -> None:
    assert plan_poison(FLIGHTS, PLACED, 0.0, 1) == {}


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(RequestError, match="poison share"):
        plan_poison(FLIGHTS, PLACED, share, 1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_poison_lies_beside_its_flight_and_is_not_its_record(kind) -> None:  # type: ignore[no-untyped-def]
    poison = make_poison(kind, FLIGHTS[0], 4, random.Random(0))
    good = FLIGHTS[0]
    assert poison.record.key == good.key
    assert poison.record.timestamp_ms == int(good.record_time.timestamp() * 1000)
    assert poison.reason == kind.reason
