"""The rows that a case expects, computed from the late rule of docs/definitions.md."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from rivertwice.core.instants import from_ms, to_iso
from rivertwice.local.first_case import TimedSample, expected_results
from rivertwice.local.guess import Guess, Measure, Overrides, make_guess
from rivertwice.local.sample import RecordSample, SampleRecord


def guess_and_records(seconds: list[int]) -> tuple[Guess, list[TimedSample]]:
    times = [from_ms(second * 1_000) for second in seconds]
    records = [
        SampleRecord(0, number, 0, time, None, {"k": "ab"[number % 2], "at": to_iso(time), "v": number})
        for number, time in enumerate(times)
    ]
    wishes = Overrides("at", ("k",), timedelta(minutes=1), timedelta(seconds=30), ("v",))
    guess = make_guess("p", RecordSample("topic t", "t", 1, records), wishes)
    return guess, [TimedSample(record, time) for record, time in zip(records, times, strict=True)]


def test_a_record_is_late_by_the_watermark_of_the_batch_before() -> None:
    """
    seconds   0 ........ 60 ........ 120
    batch 0   0  10                       watermark of batch 1: -20, so 0
    batch 1                   95          watermark of batch 2: 65
    batch 2   5                           judged by that of batch 1: in time
    batch 3   6                           judged by that of batch 2: late
    """
    guess, (a, b, c, d, e) = guess_and_records([0, 10, 95, 5, 6])
    results = expected_results(guess, [[a, b], [c], [d], [e]])
    assert results["late"] == ["0-4"]
    assert [(row["window_start"][14:16], row["k"], row["records"]) for row in results["batch"]] == [
        ("00", "a", 2), ("00", "b", 2), ("01", "a", 1)
    ]  # fmt: skip
    assert [(row["k"], row["records"], row["v_sum"]) for row in results["stream"]] == [("a", 1, 0), ("b", 2, 4)]


def test_an_open_window_is_not_emitted() -> None:
    guess, records = guess_and_records([0, 10, 89])
    assert expected_results(guess, [records[:2], records[2:]])["stream"] == []


@pytest.mark.parametrize(
    ("measure", "values", "expected"),
    [
        (Measure("v", "sum", "bigint"), [1, 2], Decimal(3)),
        (Measure("v", "mean", "bigint"), [1, 1, 2], Decimal("1.3333")),
        (Measure("v", "mean", "decimal(18,2)"), [Decimal("0.01"), Decimal("0.02")], Decimal("0.015")),
        (Measure("v", "mean", "decimal(18,2)"), [2, Decimal("0.01"), 1], Decimal("1.003333")),
        (Measure("v", "max", "double"), [Decimal("1.5"), 7], 7),
        (Measure("v", "sum", "bigint"), [], None),
    ],
)
def test_a_figure_is_rounded_as_its_sql_rounds_it(measure: Measure, values: list[object], expected: object) -> None:
    assert measure.compute(values) == expected
