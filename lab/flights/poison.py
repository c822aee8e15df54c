"""Records no pipeline can accept, made on purpose: each kind with the reason the decoder must give.

Deterministic: the same seed gives the same bytes. Poison comes in addition to the real records, right after one of
them and in its partition, so that the true result stays what the file gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from lab.flights.plan import SCHEMA_HEADER, SCHEMA_ID, Flight, LogRecord, encode_value, flight_record
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import to_iso

_FAR = timedelta(days=400)
_Maker = Callable[[Flight, random.Random], bytes | None]


@dataclass(frozen=True)
class PoisonKind:
    """One way to be wrong.

    Attributes:
        name: what is wrong.
        reason: the word the dead letter must carry.
        make: makes the value from a flight.
        schema_id: the header's value.
    """

    name: str
    reason: str
    make: _Maker
    schema_id: bytes = SCHEMA_ID


def _truncated(flight: Flight, rng: random.Random) -> bytes:
    whole = encode_value(flight.fields())
    return whole[: rng.randrange(1, len(whole) - 1)]


def _without(name: str) -> _Maker:
    def make(flight: Flight, rng: random.Random) -> bytes:
        return encode_value({key: value for key, value in flight.fields().items() if key != name})

    return make


def _with(name: str, value: str | int | None) -> _Maker:
    def make(flight: Flight, rng: random.Random) -> bytes:
        return encode_value({**flight.fields(), name: value})

    return make


def _invalid_utf8(flight: Flight, rng: random.Random) -> bytes:
    return encode_value(flight.fields()).replace(flight.dest.encode(), b"\xff\xfe\xfd", 1)


def _not_a_number(flight: Flight, rng: random.Random) -> bytes:
    return encode_value({**flight.fields(), "dep_delay": float("nan")})  # type: ignore[dict-item]


def _far_future(flight: Flight, rng: random.Random) -> bytes:
    ahead = _FAR + timedelta(minutes=rng.randrange(600))
    return encode_value({**flight.fields(), "sched_dep": to_iso(flight.record_time + ahead)})


KINDS: tuple[PoisonKind, ...] = (
    PoisonKind("tombstone", "tombstone", lambda flight, rng: None),
    PoisonKind("empty value", "empty", lambda flight, rng: b""),
    PoisonKind("truncated JSON", "json", _truncated),
    PoisonKind("JSON array", "json", lambda flight, rng: b"[" + encode_value(flight.fields()) + b"]"),
    PoisonKind("JSON scalar", "json", lambda flight, rng: str(rng.randrange(1_000_000)).encode()),
    PoisonKind("wrong type", "schema", _with("dep_delay", "late")),
    PoisonKind("huge integer", "schema", _with("flight", 10**30)),
    PoisonKind("event time that is no time", "schema", _with("sched_dep", "2013-06-31T25:00:00Z")),
    PoisonKind("NaN", "json", _not_a_number),
    PoisonKind("missing required field", "missing", _without("carrier")),
    PoisonKind("null in a required field", "missing", _with("sched_dep", None)),
    PoisonKind("invalid UTF-8", "utf8", _invalid_utf8),
    PoisonKind("unknown schema id", "schema_id", lambda f, rng: encode_value(f.fields()), schema_id=b"flights-99"),
    PoisonKind("unknown origin", "rule", _with("origin", "ORD")),
    PoisonKind("far-future event time", "future", _far_future),
)


@dataclass(frozen=True)
class Poison:
    """One poison record and the dead letter that it must become."""

    kind: str
    reason: str
    record: LogRecord


def make_poison(kind: PoisonKind, flight: Flight, partition: int, rng: random.Random) -> Poison:
    """Return one poison record modelled on a flight."""
    model = flight_record(flight, partition)
    record = LogRecord(
        partition=model.partition,
        timestamp_ms=model.timestamp_ms,
        key=model.key,
        value=kind.make(flight, rng),
        headers=((SCHEMA_HEADER, kind.schema_id),),
    )
    return Poison(kind.name, kind.reason, record)


def plan_poison(flights: Sequence[Flight], placed: Sequence[int], share: float, seed: int) -> dict[int, Poison]:
    """Return which flights are followed by poison: position in `flights` to poison, in the flight's partition.

    The number is `share` of the flights, rounded; the kinds take turns, so a share that gives at least as many
    records as there are kinds has every kind.

    Raises:
        RequestError: `share` is not within 0 and 1.
    """
    if not 0 <= share <= 1:
        message = f"a poison share of {share} is not possible; give a number from 0 to 1, for instance 0.01"
        raise RequestError(message)
    rng = random.Random(seed)  # noqa: S311 (test data, not a secret)
    chosen = sorted(rng.sample(range(len(flights)), round(share * len(flights))))
    turns = list(KINDS)
    rng.shuffle(turns)
    return {
        position: make_poison(turns[turn % len(turns)], flights[position], placed[position], rng)
        for turn, position in enumerate(chosen)
    }
