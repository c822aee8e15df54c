"""The oracle for what is made of departures, arrivals and tables: from the CSV files by pandas. It imports nothing of rivertwice."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pandas as pd

ISLANDS = ("BQN", "PSE", "SJU", "STT")
SESSION_MS = 10 * 3_600_000
Row = tuple[Any, ...]


def read_legs(folder: Path) -> pd.DataFrame:
    """Return every flight with `leg`, `sched_ms`, `dep_ms` and `arr_ms` (epoch ms; NA where it did not depart or arrive)."""
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        flights = pd.read_csv(raw)
    day = pd.to_datetime(flights[["year", "month", "day"]])
    sched = (day + _clock(flights.sched_dep_time)).dt.tz_localize("America/New_York").dt.tz_convert("UTC")
    arrival = pd.concat(
        _arrivals(sched[mine.index], mine.sched_arr_time, str(zone))
        for zone, mine in flights.groupby(_zones(flights, folder))
    )
    names: tuple[Any, ...] = (day.dt.strftime("%Y%m%d"), flights.carrier, flights.flight.astype(str), flights.origin)
    departed = sched + pd.to_timedelta(flights.dep_delay.where(flights.dep_time.notna()), unit="min")
    return flights.assign(
        leg=names[0].str.cat(list(names[1:]), sep="-"),
        sched_ms=_ms(sched),
        dep_ms=_ms(departed),
        arr_ms=_ms(arrival + pd.to_timedelta(flights.arr_delay, unit="min")),
    )


def _zones(flights: pd.DataFrame, folder: Path) -> pd.Series:
    zones: dict[Any, str] = pd.read_csv(folder / "airports.csv").set_index("faa").tzone.to_dict()
    return flights.dest.map({**zones, **dict.fromkeys(ISLANDS, "America/Puerto_Rico")})


def _clock(hhmm: pd.Series) -> pd.Series:
    return pd.to_timedelta(hhmm // 100 * 60 + hhmm % 100, unit="min")


def _arrivals(sched: pd.Series, hhmm: pd.Series, zone: str) -> pd.Series:
    """Return when clocks of the zone first show a time, from each departure on."""
    left = sched.dt.tz_convert(zone).dt.tz_localize(None)
    shown = left.dt.normalize() + _clock(hhmm)
    shown = shown.where(shown >= left, shown + pd.Timedelta(days=1))
    return shown.dt.tz_localize(zone, ambiguous=[True] * len(shown), nonexistent="raise").dt.tz_convert("UTC")


def _ms(instants: pd.Series) -> pd.Series:
    return ((instants - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)).astype("Int64")


def landed(legs: pd.DataFrame) -> dict[str, Row]:
    """Return leg to (carrier, destination, departure, arrival, minutes between, delay) of all that departed; None where it was diverted."""
    mine = legs[legs.dep_ms.notna()]
    minutes = (mine.arr_ms - mine.dep_ms) // 60_000
    delay = mine.arr_delay.astype("Int64")
    columns = (mine.carrier, mine.dest, mine.dep_ms, mine.arr_ms, minutes, delay)
    return dict(zip(mine.leg, zip(*map(_plain, columns), strict=True), strict=True))


def as_of(legs: pd.DataFrame, folder: Path) -> dict[Row, Row]:
    """Return (carrier, flight, origin, schedule) to what the tables said of it then."""
    airlines = pd.read_csv(folder / "airlines.csv").rename(columns={"name": "airline"})
    planes = pd.read_csv(folder / "planes.csv")[["tailnum", "manufacturer", "model", "seats"]]
    weather = pd.read_csv(folder / "weather.csv", float_precision="round_trip")  # pandas' own way loses the last digit
    weather["observed_ms"] = _ms(pd.to_datetime(weather.time_hour, utc=True))
    weather = weather[["origin", "observed_ms", "temp", "wind_speed", "precip", "visib"]].sort_values("observed_ms")
    flights = legs[["carrier", "flight", "origin", "sched_ms", "tailnum", "dep_delay", "dep_time"]].sort_values(
        "sched_ms"
    )
    flights = flights.assign(dep_delay=flights.dep_delay.where(flights.dep_time.notna()).astype("Int64"))
    found = flights.merge(airlines, on="carrier", how="left").merge(planes, on="tailnum", how="left")
    found = pd.merge_asof(
        found.astype({"sched_ms": "int64"}),
        weather.astype({"observed_ms": "int64"}).assign(seen_ms=lambda frame: frame.observed_ms.astype("Int64")),
        left_on="sched_ms",
        right_on="observed_ms",
        by="origin",
    )
    keys = (found.carrier, found.flight, found.origin, found.sched_ms)
    values = (
        found.dep_delay,
        found.airline,
        found.manufacturer,
        found.model,
        found.seats.astype("Int64"),
        found.seen_ms,
    )
    measured = (found.temp, found.wind_speed, found.precip, found.visib)
    rows = zip(*map(_plain, (*values, *measured)), strict=True)
    return dict(zip(zip(*map(_plain, keys), strict=True), rows, strict=True))


def aircraft_days(legs: pd.DataFrame) -> dict[Row, Row]:
    """Return (aircraft, start) to (end, legs, of them from JFK, last departure) of its days: departures at most ten hours apart."""
    mine = legs[legs.dep_ms.notna() & legs.tailnum.notna()].sort_values(["tailnum", "dep_ms"])
    apart = (mine.tailnum != mine.tailnum.shift()) | ((mine.dep_ms - mine.dep_ms.shift()) > SESSION_MS)
    days = mine.assign(day_number=apart.fillna(value=True).cumsum(), jfk=mine.origin == "JFK").groupby("day_number")
    table = days.agg(
        tail=("tailnum", "first"),
        start=("dep_ms", "min"),
        last=("dep_ms", "max"),
        n=("leg", "count"),
        jfk=("jfk", "sum"),
    )
    rows: list[Any] = list(table.itertuples())
    return {(r.tail, int(r.start)): (int(r.last) + SESSION_MS, int(r.n), int(r.jfk), int(r.last)) for r in rows}


def position_at(legs: pd.DataFrame, at_ms: int) -> dict[str, Row]:
    """Return aircraft to (`in the air to` or `at`, airport, leg): its last departure by then, and whether that had come down."""
    mine = legs[legs.tailnum.notna() & (legs.dep_ms <= at_ms)].sort_values(["dep_ms", "leg"])
    last = mine.groupby("tailnum").tail(1)
    down = (last.arr_ms <= at_ms).fillna(value=False)
    status = down.map({True: "at", False: "in the air to"})
    return dict(zip(last.tailnum, zip(status, last.dest, last.leg, strict=True), strict=True))


def _plain(column: pd.Series) -> list[Any]:
    return [None if pd.isna(value) else value for value in column.tolist()]
