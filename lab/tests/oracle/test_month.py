"""Batch over a month of flights, another one in each cycle of landings, equals the oracle for every window, open or closed."""

from __future__ import annotations

import sys
import time
from calendar import monthrange
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lab.flights.data import flights_csv
from lab.flights.replay import ReplayRequest, replay
from lab.tests.oracle.flights_oracle import aggregate, mean_delay, read_csv, rounded
from rivertwice.definition.definition import load_definition
from rivertwice.engine.compile import compile_batch
from rivertwice.engine.decode import decode
from rivertwice.engine.relations import accepted
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.log.records import read_ranges
from rivertwice.reconcile.frames import unique_rows
from rivertwice.reconcile.view import shape_of
from running.tiers import in_turn
from streams.flights import PIPELINE, make_flights_project

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


# Month: flights, cancelled, mean delay in minutes; the sums are those of the year, 336,776 and 8,255.
KNOWN = {
    1: (27_004, 521, 10.0),
    2: (24_951, 1_261, 10.8),
    3: (28_834, 861, 13.2),
    4: (28_330, 668, 13.9),
    5: (28_796, 563, 13.0),
    6: (28_243, 1_009, 20.8),
    7: (29_425, 940, 21.7),
    8: (29_327, 486, 12.6),
    9: (27_574, 452, 6.7),
    10: (28_889, 236, 6.2),
    11: (27_268, 233, 5.4),
    12: (28_135, 1_025, 16.6),
}


def test_batch_over_flights_equals_the_oracle_in_every_window(
    broker: BrokerInfo, spark: SparkSession, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (month,) = in_turn(KNOWN)
    flights, cancelled, mean = KNOWN[month]
    days = date(2013, month, 1), date(2013, month, monthrange(2013, month)[1])
    settings = make_flights_project(tmp_path, bootstrap=broker.bootstrap, topic=topic)
    begun = time.monotonic()
    assert replay(settings, ReplayRequest(topic=topic, days=days)).planned == flights
    loaded = time.monotonic()
    definition = load_definition(settings.definitions / PIPELINE)
    _, source = definition.source
    ranges = {partition: (0, end) for partition, end in kafka.end_offsets(settings, topic).items()}
    raw = read_ranges(spark, settings, topic, ranges)
    table = compile_batch(spark, definition, accepted(decode(raw, source), source)).toArrow()
    computed = time.monotonic()
    rows = unique_rows(table, shape_of(definition))
    ours = {(row.start_ms, row.key.split('"')[3]): rounded(values) for row, values in rows.items()}
    truth = aggregate(read_csv(flights_csv(settings), (str(days[0]), str(days[1]))))
    assert len(rows) == table.num_rows
    assert ours == truth
    assert sum(row[0] for row in truth.values()) == flights
    assert sum(row[1] for row in truth.values()) == cancelled
    assert round(mean_delay(truth.values()), 1) == mean
    with capsys.disabled():
        sys.stdout.write(
            f"\n{days[0]:%B}: {flights} flights, {len(truth)} windows by origin, 0 differ; mean delay {mean_delay(ours.values()):.2f}"
            f" (oracle {mean_delay(truth.values()):.2f}); load {loaded - begun:.1f} s, batch {computed - loaded:.1f} s\n"
        )
