"""More topics of the same flights: departures and arrivals, an aircraft's movements, and the tables beside them.

A leg enters `departures` when it departs and `arrivals` when it arrives; cancelled ones enter neither, diverted ones never
arrive. `movements` holds both, keyed by the aircraft. The file has no instant of arrival: it is the scheduled one, the first
moment after the scheduled departure when clocks at the destination show that time, plus the delay. For all 327,346 legs that
arrived it is 5 to 235 minutes of taxiing later than departure and time in the air.

`planes` and `airlines` are snapshots as a connector would write them (Debezium's envelope, op r), `weather` is one observation
per airport and hour, at its time.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from lab.flights.plan import Flight, LogRecord, encode_value, level_partitions, parse_flight, read_rows
from rivertwice.core.instants import parse_iso, to_iso, to_ms

SNAPSHOT_AT = datetime(2013, 1, 1, 5, tzinfo=UTC)
"""Midnight in New York: before the first departure of the year."""
NOT_IN_FILE = dict.fromkeys(("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico")
"""Destinations that the airports' file does not have; the Virgin Islands keep Puerto Rico's time."""
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_ABSENT = ("", "NA")


@dataclass(frozen=True)
class Leg:
    """A flight and where it came down.

    Attributes:
        arrived_at: None if it was cancelled or diverted.
        arr_delay: minutes after the scheduled arrival.
    """

    flight: Flight
    arrived_at: datetime | None
    arr_delay: int | None

    @property
    def id(self) -> str:
        """The leg among all of the year."""
        flight = self.flight
        return f"{flight.day:%Y%m%d}-{flight.carrier}-{flight.flight}-{flight.origin}"

    @property
    def departed_at(self) -> datetime | None:
        """When it left, None if it was cancelled."""
        return None if self.flight.dep_delay is None else self.flight.record_time


def arrival_instant(sched_dep: datetime, hhmm: int, zone: ZoneInfo) -> datetime:
    """Return the first instant at or after a departure when clocks of `zone` show a time written as in the file, 819 for 8:19.

    A time that happens twice means its first, one that a clock change leaves out counts by the clock before the change.
    """
    clock = timedelta(hours=hhmm // 100, minutes=hhmm % 100)
    local = sched_dep.astimezone(zone)
    midnight = datetime(local.year, local.month, local.day)  # noqa: DTZ001 (a wall clock's, given its zone below)
    today, tomorrow = ((midnight + days + clock).replace(tzinfo=zone).astimezone(UTC) for days in (timedelta(0), _DAY))
    return today if today >= sched_dep else tomorrow


def read_zones(folder: Path) -> dict[str, ZoneInfo]:
    """Return the time zone of every airport of the file that has one, and of those it lacks."""
    with (folder / "airports.csv").open(newline="", encoding="utf-8") as file:
        named = {row["faa"]: row["tzone"] for row in csv.DictReader(file) if row["tzone"] not in _ABSENT}
    return {airport: ZoneInfo(name) for airport, name in {**named, **NOT_IN_FILE}.items()}


def read_legs(folder: Path, days: tuple[date, date] | None = None) -> list[Leg]:
    """Return the flights as legs, in the file's order.

    Args:
        folder: folder of the data's files.
        days: first and last scheduled local day, both included; None reads the whole year.
    """
    zones = read_zones(folder)
    return [_leg(row, zones) for row in read_rows(folder / "flights.csv.zip", days)]


def _leg(row: dict[str, str], zones: Mapping[str, ZoneInfo]) -> Leg:
    flight = parse_flight(row)
    if not row["arr_delay"]:
        return Leg(flight, None, None)
    delay = int(row["arr_delay"])
    planned = arrival_instant(flight.sched_dep, int(row["sched_arr_time"]), zones[flight.dest])
    return Leg(flight, planned + delay * _MINUTE, delay)


@dataclass(frozen=True)
class _Event:
    at: datetime
    key: str
    fields: dict[str, str | int | bool | None]


def _departure(leg: Leg, at: datetime) -> _Event:
    flight = leg.flight
    fields: dict[str, str | int | bool | None] = {
        "leg": leg.id,
        "carrier": flight.carrier,
        "tailnum": flight.tailnum,
        "origin": flight.origin,
        "dest": flight.dest,
        "departed_at": to_iso(at),
    }
    return _Event(at, leg.id, fields)


def _arrival(leg: Leg, at: datetime) -> _Event:
    fields: dict[str, str | int | bool | None] = {
        "leg": leg.id,
        "dest": leg.flight.dest,
        "arrived_at": to_iso(at),
        "arr_delay": leg.arr_delay,
    }
    return _Event(at, leg.id, fields)


def _movement(leg: Leg, kind: str, at: datetime) -> _Event:
    fields: dict[str, str | int | bool | None] = {
        "tailnum": leg.flight.tailnum,
        "kind": kind,
        "leg": leg.id,
        "origin": leg.flight.origin,
        "dest": leg.flight.dest,
        "at": to_iso(at),
    }
    return _Event(at, str(leg.flight.tailnum), fields)


def plan_departures(legs: Iterable[Leg], partitions: int) -> list[LogRecord]:
    """Return a record per leg that departed, at its departure, keyed by the leg."""
    return _planned((_departure(leg, leg.departed_at) for leg in legs if leg.departed_at), partitions)


def plan_arrivals(legs: Iterable[Leg], partitions: int) -> list[LogRecord]:
    """Return a record per leg that arrived, at its arrival, keyed by the leg."""
    return _planned((_arrival(leg, leg.arrived_at) for leg in legs if leg.arrived_at), partitions)


def plan_movements(legs: Iterable[Leg], partitions: int) -> list[LogRecord]:
    """Return a record per departure and per arrival of a known aircraft, at its time, keyed by the aircraft."""
    known = [leg for leg in legs if leg.flight.tailnum]
    moments = [(leg, "departed", leg.departed_at) for leg in known] + [
        (leg, "arrived", leg.arrived_at) for leg in known
    ]
    return _planned((_movement(leg, kind, at) for leg, kind, at in moments if at), partitions)


def _planned(events: Iterable[_Event], partitions: int) -> list[LogRecord]:
    """Return the events' records in the order of time, each key in one partition; at one time they go by key, and by text."""
    ordered = sorted(events, key=lambda event: (event.at, event.key, json.dumps(event.fields)))
    placed = level_partitions((event.key.encode() for event in ordered), partitions)
    return [
        LogRecord(partition, to_ms(event.at), event.key.encode(), encode_value(event.fields), ())
        for event, partition in zip(ordered, placed, strict=True)
    ]


def plan_planes(folder: Path, partitions: int) -> list[LogRecord]:
    """Return the snapshot of the aircraft."""
    kinds: dict[str, Callable[[str], str | int]] = {
        "tailnum": str,
        "year": int,
        "manufacturer": str,
        "model": str,
        "seats": int,
    }
    return _snapshot(folder / "planes.csv", "tailnum", kinds, partitions)


def plan_airlines(folder: Path, partitions: int) -> list[LogRecord]:
    """Return the snapshot of the airlines."""
    return _snapshot(folder / "airlines.csv", "carrier", {"carrier": str, "name": str}, partitions)


def _snapshot(
    path: Path, key: str, kinds: Mapping[str, Callable[[str], str | int]], partitions: int
) -> list[LogRecord]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row[key])
    images = [{name: None if row[name] in _ABSENT else kind(row[name]) for name, kind in kinds.items()} for row in rows]
    keys = [json.dumps({key: image[key]}).encode() for image in images]
    at_ms = to_ms(SNAPSHOT_AT)
    bodies = [json.dumps({"before": None, "after": image, "op": "r", "ts_ms": at_ms}).encode() for image in images]
    placed = level_partitions(keys, partitions)
    return [LogRecord(*fields, ()) for fields in zip(placed, [at_ms] * len(rows), keys, bodies, strict=True)]


def plan_weather(folder: Path, partitions: int) -> list[LogRecord]:
    """Return an observation per airport and hour, at its time, keyed by the airport."""
    with (folder / "weather.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    measured = ("temp", "wind_speed", "precip", "visib")
    ordered = sorted((parse_iso(row["time_hour"]), row["origin"], row) for row in rows)
    placed = level_partitions((origin.encode() for _, origin, _ in ordered), partitions)
    records = []
    for (at, origin, row), partition in zip(ordered, placed, strict=True):
        measurements = {name: None if row[name] in _ABSENT else float(row[name]) for name in measured}
        body = json.dumps({"origin": origin, "observed_at": to_iso(at), **measurements}).encode()
        records.append(LogRecord(partition, to_ms(at), origin.encode(), body, ()))
    return records


LEG_PLANS: dict[str, Callable[[Sequence[Leg], int], list[LogRecord]]] = {
    "departures": plan_departures,
    "arrivals": plan_arrivals,
    "movements": plan_movements,
}
TABLE_PLANS: dict[str, Callable[[Path, int], list[LogRecord]]] = {
    "planes": plan_planes,
    "airlines": plan_airlines,
    "weather": plan_weather,
}
