"""A session is replaced by every newer one of its key that overlaps it, and by no other: compared with a search.

time          0     5    10    15    20
stream        [-----a----)
                    [------a----)              split
published     [------a----------)              2: replaces both
                                [---a---)      2: only touches, replaces nothing
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.instants import EPOCH
from rivertwice.timeline.serving import STREAM_SEQ, WITHDRAWN, Publication, select_replaced, select_served

STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("window_start", STAMP), ("window_end", STAMP), ("k", pa.string()), ("part", pa.decimal128(6, 2))])
COLUMNS = SCHEMA.names
KEYS = [("a", None), (None, None), ("a", Decimal("1.00")), ("b", Decimal("1.50"))]
Session = tuple[int, int, int, int]
"""Start, length, number of the key, publication."""
SESSIONS = st.lists(
    st.tuples(st.integers(-12, 12), st.integers(1, 8), st.integers(0, 3), st.sampled_from([STREAM_SEQ, 2, 3, 5])),
    max_size=12,
)


def table(sessions: list[Session]) -> tuple[pa.Table, Any]:
    rows = [
        {
            "window_start": EPOCH + timedelta(microseconds=start),
            "window_end": EPOCH + timedelta(microseconds=start + length),
            "k": KEYS[key][0],
            "part": KEYS[key][1],
        }
        for start, length, key, _ in sessions
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA), np.array([one[3] for one in sessions], dtype=np.int64)


@given(SESSIONS, SESSIONS)
def test_what_is_replaced_is_what_a_search_finds(sessions: list[Session], others: list[Session]) -> None:
    claimed = [one for one in others if one[3] > 0]
    found = select_replaced(*table(sessions), *table(claimed), COLUMNS)
    wanted = [
        any(
            start < other + size and other < start + length and key == its and seq < newer
            for other, size, its, newer in claimed
        )
        for start, length, key, seq in sessions
    ]
    assert found.tolist() == wanted


def served(stream: pa.Table, corrections: pa.Table, closed_ms: int = 1) -> list[tuple[int, int, str | None]]:
    publications = [
        Publication(2, "bf-1", ((0, 1),), "s", "b", {}, sessions=True),
        Publication(3, "bf-2", ((0, 1),), "s", "b", {}, sessions=True),
        Publication(4, "bf-other", ((0, 1),), "x", "b", {}, sessions=True),
    ]
    stamps = {"_timeline": pa.array(["t1"] * stream.num_rows), "_batch": pa.array([1] * stream.num_rows, pa.int64())}
    rows = pa.table({**stamps, **{name: stream[name] for name in stream.column_names}})
    found = select_served(
        rows, corrections, publications, semantics={"s"}, closed_ms=closed_ms, session_keys=["k", "part"]
    )
    micro = timedelta(microseconds=1)
    return [
        ((one["window_start"] - EPOCH) // micro, (one["window_end"] - EPOCH) // micro, one["_backfill"])
        for one in found.to_pylist()
    ]


def corrected(*rows: tuple[str, int, int, bool]) -> pa.Table:
    sessions, _ = table([(start, end - start, 0, 0) for _, start, end, _ in rows])
    stamped = sessions.append_column("_backfill", pa.array([row[0] for row in rows], pa.string()))
    return stamped.append_column(WITHDRAWN, pa.array([row[3] for row in rows], pa.bool_()))


def test_a_published_session_replaces_the_streams_of_the_same_records() -> None:
    stream, _ = table([(0, 10, 0, -1), (5, 10, 0, -1), (3, 4, 1, -1), (15, 9, 0, -1)])
    rows = served(stream, corrected(("bf-1", 0, 15, False)))
    assert rows == [(0, 15, "bf-1"), (3, 7, None), (15, 24, None)]


def test_a_newer_publication_of_the_same_semantics_replaces_an_older() -> None:
    stream, _ = table([(0, 10, 0, -1)])
    rows = served(stream, corrected(("bf-1", 0, 12, False), ("bf-2", 0, 20, False), ("bf-other", 0, 30, False)))
    assert rows == [(0, 20, "bf-2")]


def test_a_vanished_session_removes_what_is_served_and_is_not_served() -> None:
    stream, _ = table([(0, 10, 0, -1), (20, 10, 0, -1)])
    assert served(stream, corrected(("bf-1", 0, 10, True))) == [(20, 30, None)]


def test_a_session_of_a_backfill_that_nobody_published_replaces_nothing() -> None:
    stream, _ = table([(0, 10, 0, -1)])
    assert served(stream, corrected(("bf-9", 0, 10, False))) == [(0, 10, None)]
