"""Batch over a month of flights, and in the slow run over the year, equals the oracle for every window, open or closed."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lab.flights.data import flights_csv
from lab.flights.replay import ReplayRequest, replay
from lab.tests.oracle.flights_oracle import aggregate, mean_delay, read_csv, rounded
from rivertwice.embedded.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.log.records import read_ranges
from rivertwice.pipeline.compile import compile_batch
from rivertwice.pipeline.decode import decode
from rivertwice.pipeline.definition import load_definition
from rivertwice.pipeline.relations import accepted
from rivertwice.reconcile.frames import unique_rows
from rivertwice.reconcile.view import shape_of
from streams.flights import PIPELINE, make_flights_project

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@dataclass(frozen=True)
class Stretch:
    """Days of flights and what is known about them: how many, how many cancelled, their mean delay in minutes."""

    topic: str
    days: tuple[date, date] | None
    flights: int
    cancelled: int
    mean: float


FEBRUARY = Stretch("february", (date(2013, 2, 1), date(2013, 2, 28)), 24_951, 1_261, 10.8)
YEAR = Stretch("year", None, 336_776, 8_255, 12.6)


@pytest.mark.parametrize("stretch", [FEBRUARY, pytest.param(YEAR, marks=pytest.mark.faults)], ids=lambda one: one.topic)
def test_batch_over_flights_equals_the_oracle_in_every_window(
    stretch: Stretch, broker: BrokerInfo, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_flights_project(tmp_path, bootstrap=broker.bootstrap, topic=stretch.topic)
    begun = time.monotonic()
    assert replay(settings, ReplayRequest(topic=stretch.topic, days=stretch.days)).planned == stretch.flights
    loaded = time.monotonic()
    definition = load_definition(settings.definitions / PIPELINE)
    _, source = definition.source
    ranges = {partition: (0, end) for partition, end in kafka.end_offsets(settings, stretch.topic).items()}
    raw = read_ranges(spark, settings, stretch.topic, ranges)
    table = compile_batch(spark, definition, accepted(decode(raw, source), source)).toArrow()
    computed = time.monotonic()
    rows = unique_rows(table, shape_of(definition))
    ours = {(row.start_ms, row.key.split('"')[3]): rounded(values) for row, values in rows.items()}
    days = None if stretch.days is None else (str(stretch.days[0]), str(stretch.days[1]))
    truth = aggregate(read_csv(flights_csv(settings), days))
    assert len(rows) == table.num_rows
    assert ours == truth
    assert sum(row[0] for row in truth.values()) == stretch.flights
    assert sum(row[1] for row in truth.values()) == stretch.cancelled
    assert round(mean_delay(truth.values()), 1) == stretch.mean
    with capsys.disabled():
        sys.stdout.write(
            f"\n{stretch.topic}: {stretch.flights} flights, {len(truth)} windows by origin, 0 differ; mean delay {mean_delay(ours.values()):.2f}"
            f" (oracle {mean_delay(truth.values()):.2f}); load {loaded - begun:.1f} s, batch {computed - loaded:.1f} s\n"
        )
