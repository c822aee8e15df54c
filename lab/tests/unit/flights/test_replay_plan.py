from __future__ import annotations

from dataclasses import replace

import pytest

from lab.flights.plan import STORM
from lab.flights.replay import ReplayRequest, plan_replay, select_unsent
from rivertwice.core.errors import RequestError
from rivertwice.core.settings import Settings

pytestmark = pytest.mark.long

REQUEST = ReplayRequest(topic="flights", days=STORM)


def test_the_plan_is_the_same_on_every_call(settings: Settings) -> None:
    poisoned = replace(REQUEST, poison_share=0.01)
    assert plan_replay(settings, poisoned) == plan_replay(settings, poisoned)


def test_poison_comes_on_top_of_the_flights(settings: Settings) -> None:
    clean = plan_replay(settings, REQUEST)
    poisoned = plan_replay(settings, replace(REQUEST, poison_share=0.01))
    assert len(clean.records) == 1_884
    assert len(poisoned.poison) == 19
    assert clean.records == tuple(r for place, r in enumerate(poisoned.records) if place not in poisoned.poison)


def test_a_topic_that_holds_the_first_records_gets_the_others(settings: Settings) -> None:
    records = plan_replay(settings, REQUEST).records
    half = records[:900]
    ends = {p: sum(record.partition == p for record in half) for p in range(4)}
    assert select_unsent(records, ends) == list(records[900:])


def test_a_topic_that_holds_more_than_the_plan_is_refused(settings: Settings) -> None:
    with pytest.raises(RequestError, match="partition 0 already holds 5000 records"):
        select_unsent(plan_replay(settings, REQUEST).records, {0: 5000})


def test_a_limit_cuts_the_same_plan_short(settings: Settings) -> None:
    whole = plan_replay(settings, REQUEST).records
    assert plan_replay(settings, replace(REQUEST, limit=100)).records == whole[:100]


def test_a_negative_speed_is_refused(settings: Settings) -> None:
    with pytest.raises(RequestError, match="runs backwards"):
        plan_replay(settings, replace(REQUEST, speed=-1.0))
