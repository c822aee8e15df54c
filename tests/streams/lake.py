"""Years of visits in a lake, and the newest ones in Kafka: the project, the tables of three formats, and the results by hand."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from homes.project import TO_RUN, make_project
from lab.faults.events import Event, produce_events
from rivertwice.core.settings import Settings
from rivertwice.log.kafka import ensure_topic

NAME = "visits"
PARTITIONS = 2
UNTIL = datetime(2026, 1, 1, 0, 30, tzinfo=UTC)
"""In the middle of a window, so that one window has records of both sides."""
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Visit:
    """A record; without a key it is a dead letter."""

    at: datetime
    key: str | None
    amount: Decimal


def past(seed: int, count: int) -> list[Visit]:
    """Return visits of two years before `UNTIL`, the last of them minutes before it; one in 40 has no key."""
    dice = random.Random(seed)
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    made = []
    for number in range(count):
        at = begin + (UTC_SPAN * number) / count + timedelta(microseconds=dice.randrange(3_600_000_000))
        key = None if number % 40 == 7 else f"k{dice.randrange(3)}"
        made.append(Visit(min(at, UNTIL - timedelta(microseconds=1)), key, Decimal(dice.randrange(1, 100_000)) / 100))
    return [*made, Visit(UNTIL - timedelta(minutes=5), "k1", Decimal("0.50"))]


UTC_SPAN = UNTIL - datetime(2024, 1, 1, tzinfo=UTC)


def present(seed: int, count: int, hours: float = 30) -> list[Visit]:
    """Return visits from `UNTIL` on, in order of time."""
    dice = random.Random(seed)
    moments = sorted(dice.uniform(0, hours) for _ in range(count))
    return [
        Visit(
            UNTIL + timedelta(milliseconds=int(at * 3_600_000)),
            f"k{dice.randrange(3)}",
            Decimal(dice.randrange(1, 9_000)) / 100,
        )
        for at in moments
    ]


def by_hand(visits: Sequence[Visit]) -> dict[tuple[datetime, str], tuple[int, Decimal]]:
    """Return (start of the hour, key) to the number of visits and their sum: what must be served of closed windows."""
    sums: dict[tuple[datetime, str], list[Decimal]] = defaultdict(list)
    for visit in visits:
        if visit.key is not None:
            sums[visit.at.replace(minute=0, second=0, microsecond=0), visit.key].append(visit.amount)
    return {where: (len(amounts), sum(amounts, Decimal(0))) for where, amounts in sums.items()}


def value_of(visit: Visit) -> bytes:
    """Return the record of a visit, as its producer writes it."""
    body = {"at": visit.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "k": visit.key, "cost": {"amount": float(visit.amount)}}
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def send(settings: Settings, topic: str, visits: Sequence[Visit]) -> None:
    """Create the topic and send visits."""
    ensure_topic(settings, topic, PARTITIONS)
    events = [
        Event(n % PARTITIONS, (visit.key or "").encode(), value_of(visit), int(visit.at.timestamp() * 1000))
        for n, visit in enumerate(visits)
    ]
    produce_events(settings, topic, events)


def columns_of(visits: Sequence[Visit]) -> pa.Table:
    """Return visits as a lake has them: columns under its own names, and whole records."""
    return pa.table(
        {
            "visited": pa.array([visit.at for visit in visits], pa.timestamp("us", "UTC")),
            "customer": pa.array([visit.key for visit in visits], pa.string()),
            "eur": pa.array([visit.amount for visit in visits], pa.decimal128(10, 2)),
            "raw": pa.array([value_of(visit) for visit in visits], pa.binary()),
            "year": pa.array([visit.at.year for visit in visits], pa.int32()),
        }
    )


def write_lake(
    form: str, place: Path, visits: Sequence[Visit], files: int = 3, patch: pytest.MonkeyPatch | None = None
) -> dict[str, Any]:
    """Write visits as a table of a format, in some commits; return the part of `history` that names it."""
    pieces = [columns_of(visits[n::files]) for n in range(files)]
    if form == "delta":
        for piece in pieces:
            write_deltalake(str(place), piece, mode="append", partition_by=["year"])
        return {"table": str(place)}
    if form == "parquet":
        for number, piece in enumerate(pieces):
            (place / f"part={number}").mkdir(parents=True)
            pq.write_table(piece, place / f"part={number}" / "rows.parquet")
        return {"table": str(place), "format": "parquet"}
    from pyiceberg.catalog.sql import SqlCatalog

    assert patch is not None
    place.mkdir(parents=True)
    where = {"uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/warehouse"}
    for name, value in where.items():
        patch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    catalog = SqlCatalog("lake", **where)
    catalog.create_namespace("web")
    table = catalog.create_table("web.visits", schema=pieces[0].schema)
    for piece in pieces:
        table.append(piece)
    return {"table": "web.visits", "format": "iceberg", "catalog": "lake"}


def write_lake_again(form: str, place: Path, visits: Sequence[Visit]) -> None:
    """Replace what a table has by other visits, in a new snapshot; to a folder of Parquet files a file is added."""
    rows = columns_of(visits)
    if form == "delta":
        write_deltalake(str(place), rows, mode="overwrite")
    elif form == "parquet":
        pq.write_table(rows, place / "later.parquet")
    else:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.utils.config import Config

        load_catalog("lake", **Config().get_catalog_config("lake")).load_table("web.visits").overwrite(rows)


BY_COLUMNS: Mapping[str, Any] = {"columns": {"at": "visited", "k": "customer", "amount": "eur"}}
BY_PAYLOAD: Mapping[str, Any] = {"payload": "raw", "timestamp": "visited"}


def make_visits(folder: Path, bootstrap: str, topic: str, history: Mapping[str, Any] | None) -> Settings:
    """Make a project whose one pipeline counts and adds visits of a key and an hour."""
    source: dict[str, Any] = {
        "topic": topic,
        "partitions": PARTITIONS,
        "schema": {"at": "timestamp", "k": "string", "amount": "decimal(10,2)"},
        "paths": {"amount": "cost.amount"},
        "required": ["k", "amount"],
        "event_time": "at",
        "watermark": "1 hour",
        "max_future": "1 hour",
    }
    if history is not None:
        source["history"] = {"until": UNTIL.isoformat(), **history}
    definition = {
        "name": NAME,
        "description": "Visits of a customer and an hour.",
        "sources": {"records": source},
        "window": {"size": "1 hour"},
        "keys": ["k"],
        "count_column": "records",
        "columns": {"records": {"compare": "exact"}, "total": {"compare": "exact"}},
        "stream": {"max_offsets_per_trigger": 60, "shuffle_partitions": 1},
    }
    files = {"pipeline.yaml": json.dumps(definition), "transform.sql": _SQL}
    return make_project(folder, {NAME: files}, links=TO_RUN, bootstrap=bootstrap)


def moved(visits: Sequence[Visit], by: timedelta) -> list[Visit]:
    """Return visits at other times."""
    return [replace(visit, at=visit.at + by) for visit in visits]


_SQL = """\
SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS records, CAST(sum(amount) AS decimal(20,2)) AS total
FROM records
GROUP BY window(at, '1 hour'), k
"""
