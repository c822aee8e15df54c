from __future__ import annotations

import itertools
import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from lab.flights.data import flights_csv
from lab.flights.plan import STORM, Flight, log_order, plan_records, read_flights, scheduled_instant
from rivertwice.core.errors import RequestError
from rivertwice.core.settings import Settings

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def year(project: Path) -> list[Flight]:
    return read_flights(flights_csv(Settings(project=project, home=project)))


@pytest.mark.parametrize(
    ("day", "hhmm", "instant"),
    [
        (date(2013, 1, 1), 515, "2013-01-01T10:15"),  # winter: UTC-5
        (date(2013, 3, 9), 2359, "2013-03-10T04:59"),  # the last minute before the clocks go forward
        (date(2013, 3, 10), 300, "2013-03-10T07:00"),  # the first minute after: UTC-4
        (date(2013, 7, 1), 1615, "2013-07-01T20:15"),
        (date(2013, 11, 3), 30, "2013-11-03T04:30"),  # before the clocks go back
        (date(2013, 11, 3), 200, "2013-11-03T07:00"),  # after: UTC-5 again
    ],
)
def test_local_times_become_instants_across_both_clock_changes(day: date, hhmm: int, instant: str) -> None:
    assert scheduled_instant(day, hhmm) == datetime.fromisoformat(instant).replace(tzinfo=UTC)


@pytest.mark.parametrize(("day", "hhmm"), [(date(2013, 3, 10), 230), (date(2013, 11, 3), 130)])
def test_a_local_time_that_is_no_single_instant_is_refused(day: date, hhmm: int) -> None:
    with pytest.raises(RequestError, match="clock change"):
        scheduled_instant(day, hhmm)


def test_the_year_has_its_known_flights(year: list[Flight]) -> None:
    assert len(year) == 336_776
    assert sum(flight.dep_delay is None for flight in year) == 8_255
    assert max(flight.dep_delay or 0 for flight in year) == 1_301
    early = sum((flight.dep_delay or 0) < 0 for flight in year)
    assert round(early / len(year), 3) == 0.545


def test_the_two_stormy_days_have_1884_flights(year: list[Flight], settings: Settings) -> None:
    storm = read_flights(flights_csv(settings), STORM)
    assert len(storm) == 1_884
    assert storm == [flight for flight in year if STORM[0] <= flight.day <= STORM[1]]


def test_every_scheduled_hour_is_the_one_the_file_gives_in_utc(project: Path, year: list[Flight]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(flights_csv(Settings(project=project, home=project)))
    wanted = Counter(zip(frame.time_hour, frame.minute, frame.carrier, frame.flight, frame.origin, strict=True))
    found = Counter(
        (f"{f.sched_dep:%Y-%m-%dT%H:00:00Z}", f.sched_dep.minute, f.carrier, f.flight, f.origin) for f in year
    )
    assert found == wanted


def test_flights_are_in_the_order_they_enter_the_log_and_no_two_tie(year: list[Flight]) -> None:
    keys = [log_order(flight) for flight in year]
    assert all(before < after for before, after in itertools.pairwise(keys))


def test_a_cancelled_flight_enters_at_its_scheduled_time_and_says_so(year: list[Flight]) -> None:
    cancelled = next(flight for flight in year if flight.dep_delay is None)
    assert cancelled.record_time == cancelled.sched_dep
    assert cancelled.fields()["cancelled"] is True
    assert cancelled.fields()["dep_delay"] is None


def test_a_record_says_what_the_schema_names(year: list[Flight]) -> None:
    first = min(year, key=lambda flight: (flight.sched_dep, flight.carrier))
    record = plan_records([first], 4)[0]
    assert record.key == b"UA-1545-EWR"
    assert record.headers == (("schema-id", b"flights-1"),)
    assert record.timestamp_ms == int(datetime(2013, 1, 1, 10, 17, tzinfo=UTC).timestamp() * 1000)
    assert json.loads(record.value or b"") == {
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "distance": 1400,
        "sched_dep": "2013-01-01T10:15:00Z",
        "dep_delay": 2,
        "cancelled": False,
    }


def test_four_partitions_are_balanced(year: list[Flight]) -> None:
    counts = Counter(record.partition for record in plan_records(year, 4))
    assert sorted(counts) == [0, 1, 2, 3]
    assert max(counts.values()) < 1.15 * min(counts.values())


def test_no_event_time_is_later_than_its_record_by_an_hour(year: list[Flight]) -> None:
    assert max(flight.sched_dep - flight.record_time for flight in year) == timedelta(minutes=43)


def test_a_key_stays_in_one_partition_and_partitions_share_their_time(year: list[Flight]) -> None:
    storm = [flight for flight in year if STORM[0] <= flight.day <= STORM[1]]
    records = plan_records(storm, 4)
    homes: dict[bytes, set[int]] = {}
    ahead = 0
    counts = Counter(dict.fromkeys(range(4), 0))
    for record in records:
        homes.setdefault(record.key, set()).add(record.partition)
        counts[record.partition] += 1
        ahead = max(ahead, max(counts.values()) - min(counts.values()))
    assert all(len(found) == 1 for found in homes.values())
    assert ahead <= 12
