"""What is guessed of sample records, and what is said to be unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from rivertwice.core.errors import RequestError
from rivertwice.core.instants import from_ms
from rivertwice.local.fields import guess_fields
from rivertwice.local.guess import (
    Guess,
    Overrides,
    TimedRecord,
    choose_delay,
    choose_length,
    largest_disorder,
    make_guess,
    view_name,
)
from rivertwice.local.sample import RecordSample, SampleRecord
from rivertwice.local.write import render_yaml
from streams.trips import make_trips, value_of

TRIPS = make_trips(400)


def sample_of(values: Sequence[Mapping[str, Any]], keys: Sequence[str | None] = ()) -> RecordSample:
    stamped = [from_ms(trip.arrived_ms) for trip in TRIPS]
    records = [
        SampleRecord(0, number, 0, stamped[number % len(stamped)], keys[number] if keys else None, value)
        for number, value in enumerate(values)
    ]
    return RecordSample("topic trips", "trips", 2, records)


def guess_of(variant: str, *, wishes: Overrides | None = None, keyed: bool = True) -> Guess:
    values = [
        {
            name: Decimal(str(each)) if isinstance(each, float) else each
            for name, each in value_of(trip, variant).items()
        }
        for trip in TRIPS
    ]
    return make_guess(
        "trips", sample_of(values, [trip.station for trip in TRIPS] if keyed else ()), wishes or Overrides()
    )


def finding(guess: Guess, what: str) -> Any:
    return next(each for each in guess.findings if each.what == what)


def test_a_time_with_a_zone_is_the_event_time_and_the_earlier_of_two() -> None:
    guess = guess_of("iso")
    assert (guess.event_time.name, guess.event_time.unit) == ("started_at", None)
    assert "fits better than ended_at" in finding(guess, "event time").why
    assert {each.name: each.kind for each in guess.fields} == {
        "ride_id": "string",
        "station": "string",
        "member": "boolean",
        "fare": "decimal(18,2)",
        "rating": "bigint",
        "started_at": "timestamp",
        "ended_at": "timestamp",
    }
    assert guess.gaps == []


def test_milliseconds_since_1970_are_recognised_and_read() -> None:
    guess = guess_of("epoch_ms")
    assert (guess.event_time.name, guess.event_time.unit, guess.event_time.kind) == ("started_at", "ms", "timestamp")
    assert "`epochs: {started_at: ms}` reads them" in finding(guess, "field started_at").why
    assert finding(guess, "event time").value == "started_at (milliseconds since 1970)"


def test_fields_of_an_object_are_read_by_their_paths() -> None:
    guess = guess_of("nested")
    kinds = {each.name: each.kind for each in guess.fields}
    assert (kinds["bike_id"], kinds["bike_kind"]) == ("bigint", "string")
    assert guess.sample.paths == {"bike_id": "bike.id", "bike_kind": "bike.kind"}
    assert finding(guess, "field bike_id").why.endswith("read from bike.id")
    assert "      bike_id: bike.id\n" in render_yaml(guess)


def test_names_in_capitals_get_a_field_and_keep_their_path() -> None:
    guess = guess_of("camel")
    assert guess.sample.paths == {
        "ride_id": "rideId", "started_at": "startedAt", "the_end_ended_at": "theEnd.endedAt", "station_name": "stationName"
    } | {"is_member": "isMember"}  # fmt: skip
    assert (guess.event_time.name, guess.gaps) == ("started_at", [])


def test_without_any_time_the_gap_is_said() -> None:
    guess = guess_of("no_time")
    assert (guess.event_time, guess.gaps) == (None, ["event_time"])
    assert finding(guess, "event time").value is None
    assert "no field looks like a time" in finding(guess, "event time").why


def test_a_time_without_a_zone_is_a_gap_and_says_what_is_read() -> None:
    why = finding(guess_of("local"), "event time").why
    assert "started_at holds a time without a zone" in why
    assert "ISO 8601 with a zone" in why


@pytest.mark.parametrize(
    ("values", "kind", "word"),
    [
        ([1, 2, None], "bigint", "whole numbers"),
        ([1, "x"], "string", "integer and string"),
        ([2**70], "decimal(38,0)", "beyond 64 bits"),
        ([Decimal("1.5"), 2], "decimal(18,2)", "1 decimals"),
        ([Decimal("13.40495312345")], "double", "measurements"),
        (["2026-05-01T06:00:00Z"], "timestamp", "ISO 8601"),
        (["2026-05-01T06:00:00.123456789Z"], "string", "more than six decimals"),
        (["2026-05-01 06:00:00"], "string", "without a zone"),
        ([1_777_615_200_000_000_000], "bigint", "nanoseconds"),
        ([Decimal("1777615200.25")], "double", "with a fraction"),
        ([True, False], "boolean", "true or false"),
        ([None], None, "null in every record"),
        ([[1]], None, "it is an array"),
    ],
)
def test_the_type_of_a_field_and_its_reason(values: list[Any], kind: str | None, word: str) -> None:
    (field,) = guess_fields([{"created_at": value} for value in values], {})
    assert field.kind == kind
    assert word in field.why


@pytest.mark.parametrize(
    ("name", "numbers", "unit"),
    [
        ("ts", [1_777_615_200, 1_777_615_201], "s"),
        ("order_no", [1_777_615_200, 1_777_615_201], None),  # ten digits are not only times
        ("ts", [1_777_615_200_000], "ms"),
        ("ts_us", [1_777_615_200_000_000], "us"),
        ("ts", [1_777_615_200, 5], None),
        ("reading", [1_777_615_200_000, 1_777_615_201_000], "ms"),
    ],
)
def test_numbers_since_1970_are_told_by_size_and_name(name: str, numbers: list[int], unit: str | None) -> None:
    (field,) = guess_fields([{name: number} for number in numbers], {})
    assert field.unit == unit


def test_a_name_that_is_no_column_is_not_taken() -> None:
    fields = guess_fields([{"userName": "a", "window_start": 1, "ok": 2}], {})
    assert [each.kind for each in fields] == [None, None, "bigint"]
    assert "let the producer send it under such a name" in fields[0].why


def test_the_kafka_key_is_the_key_if_a_field_holds_it() -> None:
    guess = guess_of("iso")
    assert guess.keys == ("station",)
    assert "it is the Kafka key" in finding(guess, "keys").why
    assert "it is the Kafka key" not in finding(guess_of("iso", keyed=False), "keys").why


def test_without_a_field_that_divides_the_records_there_is_no_key() -> None:
    guess = make_guess(
        "p", sample_of([{"at": "2026-05-01T06:00:00Z", "id": f"x{number}"} for number in range(50)]), Overrides()
    )
    assert guess.keys == ()
    assert "make one row" in finding(guess, "keys").why


def test_the_delay_is_twice_the_disorder_of_one_partition_rounded_up() -> None:
    def record(partition: int, offset: int, second: int) -> TimedRecord:
        return TimedRecord(partition, 0, offset, from_ms(second * 1_000), None)

    records = [record(0, 0, 100), record(1, 0, 9_000), record(0, 1, 60), record(0, 2, 130)]
    assert largest_disorder(records) == (timedelta(seconds=40), 1)
    assert choose_delay(records).value == timedelta(minutes=2)
    ordered = [record(0, number, number) for number in range(5)]
    assert (choose_delay(ordered).value, choose_delay(ordered).measured) == (timedelta(minutes=1), False)


def test_a_window_is_long_enough_for_twenty_records_of_a_key() -> None:
    each_second = [TimedRecord(0, 0, number, from_ms(number * 1_000), None) for number in range(1_000)]
    assert choose_length(each_second, keys=1).value == timedelta(minutes=1)
    assert choose_length(each_second, keys=10).value == timedelta(minutes=5)
    short = choose_length(each_second, keys=100)
    assert (short.value, "would not fill three" in short.why) == (timedelta(minutes=5), True)
    assert choose_length(each_second[:1], keys=1).measured is False


def test_a_sum_is_of_decimals_and_a_double_has_none() -> None:
    assert [each.text for each in guess_of("iso").measures] == ["sum of fare", "mean of fare"]
    values = [{"at": "2026-05-01T06:00:00Z", "celsius": Decimal("20.12345678") + number} for number in range(9)]
    guess = make_guess("p", sample_of(values), Overrides())
    assert [each.text for each in guess.measures] == ["min of celsius", "max of celsius"]
    assert "inexact" in guess.measures[0].why


def test_every_part_can_be_asked_for() -> None:
    wishes = Overrides("ended_at", ("station", "member"), timedelta(minutes=5), timedelta(0), ("rating:max", "fare"))
    guess = guess_of("iso", wishes=wishes)
    assert (guess.event_time.name, guess.keys) == ("ended_at", ("station", "member"))
    assert (guess.window, guess.watermark) == (timedelta(minutes=5), timedelta(0))
    assert [each.column for each in guess.measures] == ["rating_max", "fare_sum", "fare_mean"]
    asked = ("event time", "keys", "window", "watermark", "column rating_max")
    assert {finding(guess, what).why for what in asked} == {"asked for on the command line"}


@pytest.mark.proves("howto-init.md#say-it-instead-of-guessing")
@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (Overrides(event_time="startet_at"), ["no record of topic trips has such a field", "did you mean started_at?"]),
        (Overrides(event_time="fare"), ["are not a time that a definition can read"]),
        (Overrides(keys=("statoin",)), ["--key statoin", "did you mean station?"]),
        (Overrides(keys=("started_at",)), ["it is the event time"]),
        (Overrides(columns=("fair",)), ["not a numeric field", "did you mean fare?"]),
        (Overrides(columns=("fare:summ",)), ["sum, mean, min, max", "did you mean sum?"]),
    ],
)
def test_a_wish_that_cannot_be_is_refused_with_the_nearest_name(wishes: Overrides, words: list[str]) -> None:
    with pytest.raises(RequestError) as refused:
        guess_of("iso", wishes=wishes)
    for word in words:
        assert word in str(refused.value)


def test_the_name_of_a_view_is_one_that_sql_takes() -> None:
    assert [view_name(each) for each in ("bike-trips.v2", "2026", "Orders")] == ["bike_trips_v2", "t_2026", "orders"]


def test_types_of_a_schema_are_taken_as_they_are() -> None:
    sample = sample_of([{"at": "2026-05-01T06:00:00Z", "n": 5}])
    typed = replace(sample, encoding=replace(sample.encoding, format="avro", types={"at": "timestamp", "n": "int"}))
    guess = make_guess("p", typed, Overrides())
    assert [(each.kind, each.sure) for each in guess.fields] == [("timestamp", "certain"), ("int", "certain")]
