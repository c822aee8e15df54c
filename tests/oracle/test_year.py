"""Batch over the whole year of flights equals the oracle, for every window, open or closed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oracle.flights_oracle import aggregate, mean_delay, read_csv, rounded
from rivertwice.log import kafka
from rivertwice.log.broker import BrokerInfo
from rivertwice.log.records import read_ranges
from rivertwice.log.replay import ReplayRequest, replay
from rivertwice.pipeline.compile import accepted, compile_batch
from rivertwice.pipeline.decode import decode
from rivertwice.pipeline.definition import load_definition
from rivertwice.reconcile.frames import unique_rows
from rivertwice.reconcile.view import shape_of
from rivertwice.setup.data import flights_csv
from streamed_run import PIPELINE, make_project

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
TOPIC = "year"
FLIGHTS = 336_776


def test_batch_over_the_year_equals_the_oracle_in_every_window(
    broker: BrokerInfo, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_project(tmp_path, bootstrap=broker.bootstrap, topic=TOPIC)
    begun = time.monotonic()
    assert replay(settings, ReplayRequest(topic=TOPIC)).planned == FLIGHTS
    loaded = time.monotonic()
    definition = load_definition(settings.definitions / PIPELINE)
    _, source = definition.source
    ranges = {partition: (0, end) for partition, end in kafka.end_offsets(settings, TOPIC).items()}
    raw = read_ranges(spark, settings, TOPIC, ranges)
    table = compile_batch(spark, definition, accepted(decode(raw, source), source)).toArrow()
    computed = time.monotonic()
    rows = unique_rows(table, shape_of(definition))
    ours = {(row.start_ms, row.key.split('"')[3]): rounded(values) for row, values in rows.items()}
    truth = aggregate(read_csv(flights_csv(settings)))
    assert len(rows) == table.num_rows
    assert ours == truth
    assert sum(row[0] for row in truth.values()) == FLIGHTS
    assert sum(row[1] for row in truth.values()) == 8_255
    assert round(mean_delay(truth.values()), 1) == 12.6
    with capsys.disabled():
        sys.stdout.write(
            f"\nyear: {FLIGHTS} flights, {len(truth)} windows by origin, 0 differ; mean delay {mean_delay(ours.values()):.2f}"
            f" (oracle {mean_delay(truth.values()):.2f}); load {loaded - begun:.1f} s, batch {computed - loaded:.1f} s\n"
        )
