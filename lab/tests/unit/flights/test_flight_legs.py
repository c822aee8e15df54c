"""Arrivals are instants by the destination's clock; topics made of the flights are in order and say the same every time."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from homes.project import REPOSITORY
from lab.flights.data import flights_csv
from lab.flights.legs import arrival_instant, read_legs
from lab.flights.replay import STORIES, ReplayRequest, plan_replay
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import parse_iso
from rivertwice.core.settings import Settings

pytestmark = pytest.mark.long

DAY = (date(2013, 6, 30), date(2013, 6, 30))


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(REPOSITORY, tmp_path_factory.mktemp("home"))


@pytest.mark.parametrize(
    ("departure", "hhmm", "zone", "arrival"),
    [
        ("2013-01-01T10:15:00Z", 819, "America/Chicago", "2013-01-01T14:19:00Z"),
        ("2013-01-01T13:00:00Z", 700, "America/Chicago", "2013-01-01T13:00:00Z"),  # at once: its clock shows just that
        ("2013-01-01T13:00:00Z", 659, "America/Chicago", "2013-01-02T12:59:00Z"),
        ("2013-07-02T03:30:00Z", 15, "America/New_York", "2013-07-02T04:15:00Z"),  # behind midnight
        ("2013-01-01T15:00:00Z", 1530, "Pacific/Honolulu", "2013-01-02T01:30:00Z"),
        ("2013-03-10T06:30:00Z", 310, "America/New_York", "2013-03-10T07:10:00Z"),  # the clock change lies between
    ],
)
def test_an_arrival_is_the_first_moment_when_clocks_there_show_it(
    departure: str, hhmm: int, zone: str, arrival: str
) -> None:
    assert arrival_instant(parse_iso(departure), hhmm, ZoneInfo(zone)) == parse_iso(arrival)


def test_legs_taxi_for_minutes_not_for_hours(settings: Settings) -> None:
    legs = read_legs(flights_csv(settings).parent, DAY)
    ways = [
        (leg.arrived_at - leg.departed_at).total_seconds() / 3600 for leg in legs if leg.arrived_at and leg.departed_at
    ]
    assert len(ways) > 800
    assert 0.5 < min(ways) <= max(ways) < 13
    assert {leg.arr_delay is None for leg in legs if leg.arrived_at is None} == {True}
    assert not any(leg.arrived_at for leg in legs if leg.departed_at is None)


def days_of(story: str) -> tuple[date, date] | None:
    return None if story in ("planes", "airlines", "weather") else DAY


@pytest.mark.parametrize("story", STORIES)
def test_a_story_is_in_order_and_the_same_again(story: str, settings: Settings) -> None:
    request = ReplayRequest(story, 3, days_of(story), story=story)
    records = plan_replay(settings, request).records
    assert records == plan_replay(settings, request).records
    assert records
    times = [record.timestamp_ms for record in records]
    assert times == sorted(times)
    homes = {(record.key, record.partition) for record in records}
    assert len(homes) == len({key for key, _ in homes})
    assert all(isinstance(json.loads(record.value or b""), dict) for record in records)


def test_departures_and_arrivals_are_the_movements_of_known_aircraft(settings: Settings) -> None:
    def told(story: str) -> set[tuple[str, str]]:
        records = plan_replay(settings, ReplayRequest(story, 4, DAY, story=story)).records
        values = [json.loads(record.value or b"") for record in records]
        return {(value["leg"], value.get("kind", story)) for value in values if value.get("tailnum", "?") is not None}

    both = {(leg, "departed") for leg, _ in told("departures")} | {(leg, "arrived") for leg, _ in told("arrivals")}
    assert told("movements") <= both
    assert len(told("movements")) > 0.9 * len(both)


def test_poison_and_days_of_a_table_are_refused(settings: Settings) -> None:
    with pytest.raises(RequestError, match="poison is for flights only"):
        plan_replay(settings, ReplayRequest("arrivals", story="arrivals", poison_share=0.1))
    with pytest.raises(RequestError, match="a table of the whole year"):
        plan_replay(settings, ReplayRequest("weather", story="weather", days=DAY))


def test_the_snapshot_of_the_planes_is_before_the_first_departure(settings: Settings) -> None:
    first = plan_replay(settings, ReplayRequest("planes", 1, story="planes")).records[0]
    assert first.timestamp_ms == datetime(2013, 1, 1, 5, tzinfo=UTC).timestamp() * 1000
