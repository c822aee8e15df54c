"""A home with a long table of served rows, a file for each day, without a stream."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from homes.backfill import make_home
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.storage.table import Table
from rivertwice.timeline.served_stamp import SERVED_KEY, ServedStamp

FIRST = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("_format", pa.int32()),
        ("window_start", pa.timestamp("us", "UTC")),
        ("window_end", pa.timestamp("us", "UTC")),
        ("k", pa.string()),
        ("n", pa.int64()),
        ("mean", pa.decimal128(12, 2)),
        ("note", pa.string()),
        ("_status", pa.string()),
        ("_timeline", pa.string()),
        ("_batch", pa.int64()),
        ("_backfill", pa.string()),
    ]
)
KEYS = ("a", "b", "c")


def rows_of_day(day: int) -> Iterator[dict[str, object]]:
    """Rows of the hours of a day, latest first: three keys each; `note` is null, empty or the word null."""
    for hour in reversed(range(24)):
        start = FIRST + timedelta(days=day, hours=hour)
        for number, key in enumerate(KEYS):
            yield {
                "_format": 1,
                "window_start": start,
                "window_end": start + timedelta(hours=1),
                "k": key,
                "n": 100 * day + hour,
                "mean": None,
                "note": (None, "", "null")[number],
                "_status": "stream",
                "_timeline": "t1",
                "_batch": day,
                "_backfill": None,
            }


def make_served(root: Path, days: int = 5) -> tuple[Settings, PipelineHome]:
    """A home of the pipeline `p` whose served table has 72 rows of each day from 2024-01-01 on, a file for a day."""
    settings, home, _ = make_home(root)
    for day in range(days):
        stamp = ServedStamp(1, "t1", 9 if day == days - 1 else day)
        rows = pa.Table.from_pylist(list(rows_of_day(day)), SCHEMA)
        Table(home.tables.served).append(rows, metadata={SERVED_KEY: stamp.plain()})
    return settings, home


def keep_days(home: PipelineHome, *kept: int) -> None:
    """Remove the data files of all other days: whoever opens one of them fails."""
    table = Table(home.tables.served).open()
    assert table is not None
    actions = table.actions().to_pylist()
    for action in actions:
        if (action["min.window_start"] - FIRST).days not in kept:
            (Path(str(home.tables.served)) / action["path"]).unlink()
