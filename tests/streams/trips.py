"""Trips of hired bicycles, in the forms in which strangers send them: the same trips, made by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.faults.events import Event
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.log.kafka import ensure_topic
from rivertwice.log.send import Sent, send_records

BEGIN_MS = 1_777_615_200_000
"""2026-05-01T06:00:00Z."""
STATIONS = 6
VARIANTS = ("iso", "epoch_ms", "nested", "camel", "no_time", "local")


@dataclass(frozen=True)
class Trip:
    """A trip and when its record came."""

    number: int
    station: str
    member: bool
    fare_cents: int
    started_ms: int
    arrived_ms: int


def make_trips(count: int, seed: int = 5, late_ms: int = 90_000) -> list[Trip]:
    """Return trips in the order in which their records came; a quarter of them come late, by at most `late_ms`."""
    dice = random.Random(seed)
    trips, arrived_ms = [], BEGIN_MS
    for number in range(count):
        arrived_ms += dice.randrange(1_000, 20_000)
        late = dice.randrange(late_ms) if dice.random() < 0.25 else dice.randrange(900)
        trips.append(
            Trip(number, f"station-{dice.randrange(STATIONS)}", dice.random() < 0.6, dice.randrange(100, 2_500), arrived_ms - late, arrived_ms)
        )  # fmt: skip
    return trips


def value_of(trip: Trip, variant: str = "iso") -> dict[str, Any]:
    """Return the value of a trip's record."""
    started = from_ms(trip.started_ms)
    fields: dict[str, Any] = {
        "ride_id": f"ride-{trip.number:06d}",
        "station": trip.station,
        "member": trip.member,
        "fare": trip.fare_cents / 100,
        "rating": None if trip.number % 3 else trip.number % 5,
    }
    if variant == "no_time":
        return fields
    if variant == "epoch_ms":
        return {**fields, "started_at": trip.started_ms, "ended_at": trip.started_ms + 600_000}
    if variant == "local":
        return {**fields, "started_at": started.strftime("%Y-%m-%d %H:%M:%S")}
    if variant == "camel":
        ended = from_ms(trip.started_ms + 600_000)
        return {
            "rideId": fields["ride_id"],
            "stationName": trip.station,
            "isMember": trip.member,
            "fare": fields["fare"],
            "startedAt": to_iso(started),
            "theEnd": {"endedAt": to_iso(ended)},
        }
    times = {"started_at": to_iso(started), "ended_at": to_iso(from_ms(trip.started_ms + 600_000))}
    return {
        **fields,
        **times,
        **({"bike": {"id": trip.number % 40, "kind": "electric"}} if variant == "nested" else {}),
    }


def json_lines(trips: Sequence[Trip], variant: str = "iso") -> str:
    """Return a file of records, one a line."""
    return "".join(json.dumps(value_of(trip, variant)) + "\n" for trip in trips)


def send_trips(
    settings: Settings, topic: str, trips: Sequence[Trip], variant: str = "iso", partitions: int = 2
) -> list[Sent]:
    """Make a topic and send the trips, keyed by station: all records of a station are in one partition."""
    ensure_topic(settings, topic, partitions)
    return send_records(settings, topic, [
        Event(int(trip.station[-1]) % partitions, trip.station.encode(), json.dumps(value_of(trip, variant)).encode(), trip.arrived_ms)
        for trip in trips
    ])  # fmt: skip
