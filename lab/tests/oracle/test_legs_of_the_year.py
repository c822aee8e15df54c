"""Joins, tables as of, sessions and folds over the whole year of flights equal an oracle of the CSV files, row by row."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from homes.project import EXAMPLES, REPOSITORY
from lab.flights.data import flights_csv
from lab.flights.replay import ReplayRequest, replay
from lab.tests.oracle.legs_oracle import Row, aircraft_days, as_of, landed, position_at, read_legs
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.engine.compile import compile_sources
from rivertwice.engine.decode import decode
from rivertwice.engine.relations import accepted
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.log.records import read_ranges
from running.tiers import in_turn

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
YEAR_MS = (1_357_016_400_000, 1_388_552_400_000)
"""2013 in New York."""


@dataclass
class Year:
    """The log that holds the year, and what computes over it."""

    spark: SparkSession
    settings: Settings
    legs: pd.DataFrame

    def rows(self, example: str) -> Iterator[dict[str, Any]]:
        """Replay what a definition reads, as far as it is not there, and yield its batch result; instants as epoch ms."""
        definition = load_definition(EXAMPLES / example)
        decoded = {}
        for view, source in definition.sources.items():
            replay(self.settings, ReplayRequest(source.topic, source.partitions, story=source.topic))
            ends = kafka.end_offsets(self.settings, source.topic)
            raw = read_ranges(self.spark, self.settings, source.topic, {part: (0, end) for part, end in ends.items()})
            decoded[view] = accepted(decode(raw, source), source)
        begun = time.monotonic()
        table = compile_sources(self.spark, definition, decoded).toArrow()
        sys.stdout.write(f"{example}: {table.num_rows} rows in {time.monotonic() - begun:.1f} s\n")
        for row in table.to_pylist():
            yield {name: _ms(value) for name, value in row.items()}


def _ms(value: Any) -> Any:
    return round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value


@pytest.fixture(scope="module")
def year(broker: BrokerInfo, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Year:
    home: Path = tmp_path_factory.mktemp("legs")
    settings = Settings(REPOSITORY, home, bootstrap=broker.bootstrap, spark_master="local[2]")
    return Year(spark, settings, read_legs(flights_csv(settings).parent))


def same(found: dict[Any, Row], wanted: dict[Any, Row]) -> None:
    differing = [
        (key, found.get(key), wanted.get(key))
        for key in found.keys() | wanted.keys()
        if found.get(key) != wanted.get(key)
    ]
    assert (len(differing), differing[:3]) == (0, [])


def departures_have_their_arrivals_or_were_diverted(year: Year) -> None:
    names = ("carrier", "dest", "departed_at", "arrived_at", "minutes", "arr_delay")
    rows = list(year.rows("legs_landed"))
    found = {row["leg"]: tuple(row[name] for name in names) for row in rows}
    assert len(found) == len(rows) == 328_521
    same(found, landed(year.legs))
    assert sum(row["arrived_at"] is None for row in rows) == 1_175


def flights_have_the_tables_as_they_were_when_they_were_due(year: Year) -> None:
    names = (
        "dep_delay",
        "airline",
        "manufacturer",
        "model",
        "seats",
        "observed_at",
        "temp",
        "wind_speed",
        "precip",
        "visib",
    )
    rows = list(year.rows("flights_as_of"))
    found = {
        (row["carrier"], row["flight"], row["origin"], row["sched_dep"]): tuple(row[name] for name in names)
        for row in rows
    }
    assert len(found) == len(rows) == 336_776
    same(found, as_of(year.legs, flights_csv(year.settings).parent))
    assert 0 < sum(row["manufacturer"] is None for row in rows) < 60_000


def days_of_aircraft_are_sessions(year: Year) -> None:
    rows = list(year.rows("aircraft_days"))
    found = {
        (row["tailnum"], row["window_start"]): (row["window_end"], row["legs"], row["from_jfk"], row["last_departure"])
        for row in rows
    }
    assert len(found) == len(rows)
    same(found, aircraft_days(year.legs))


def the_fleet_stands_where_it_stood_at_any_time(year: Year) -> None:
    rows = sorted(year.rows("fleet_position"), key=lambda row: (row["tailnum"], row["record"], row["row"]))
    chance = random.Random("fleet")
    for at_ms in (chance.randrange(*YEAR_MS) for _ in range(50)):
        found = {row["tailnum"]: (row["status"], row["airport"], row["leg"]) for row in rows if row["at"] <= at_ms}
        same(found, position_at(year.legs, at_ms))


def test_a_year_of_legs_equals_the_oracle(year: Year) -> None:
    (check,) = in_turn(
        [
            departures_have_their_arrivals_or_were_diverted,
            flights_have_the_tables_as_they_were_when_they_were_due,
            days_of_aircraft_are_sessions,
            the_fleet_stands_where_it_stood_at_any_time,
        ]
    )
    check(year)
