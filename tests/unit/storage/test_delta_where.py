"""Rows are read and replaced by conditions; other rows stay, also those with nulls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from rivertwice.core.errors import LostRaceError
from rivertwice.storage import delta
from rivertwice.storage.sql import all_of, any_of, equals, is_after, is_among, is_before, is_between, is_within

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [("at time", pa.timestamp("us", "UTC")), ("kind", pa.string()), ("who", pa.string()), ("n", pa.int64())]
)


def rows(*values: tuple[int, str, str | None, int | None]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"at time": EPOCH + timedelta(milliseconds=at), "kind": kind, "who": who, "n": n}
            for at, kind, who, n in values
        ],
        schema=SCHEMA,
    )


STORED = rows((-1, "it's", "a", 0), (0, "x", "a", 1), (1, "x", "b", 2), (2_500, "y", None, None), (9_000, "x", "a", 4))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    delta.append(tmp_path / "t", STORED.slice(0, 3))
    delta.append(tmp_path / "t", STORED.slice(3))
    return tmp_path / "t"


def kept(table: pa.Table | None) -> list[int]:
    assert table is not None
    return sorted(round(at.timestamp() * 1000) for at in table["at time"].to_pylist())


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (is_after("at time", 0), [1, 2_500, 9_000]),
        (is_after("at time", -1), [0, 1, 2_500, 9_000]),
        (is_before("at time", 1), [-1, 0]),
        (is_within("at time", [(-1, 0), (1, 9_000)]), [-1, 1, 2_500]),
        (is_among("kind", ["it's", "y"]), [-1, 2_500]),
        (all_of([equals("kind", "x"), equals("who", "a"), is_between("n", 1, 4)]), [0, 9_000]),
        (any_of([equals("kind", "y"), is_within("at time", [(0, 1)])]), [0, 2_500]),
    ],
)
def test_rows_that_match_a_condition_are_read_and_go_others_stay(
    place: Path, condition: str, expected: list[int]
) -> None:
    everything = kept(STORED)
    assert kept(delta.read(place, matching=condition)) == expected
    delta.replace_rows(place, STORED.slice(0, 0), where=condition)
    assert kept(delta.read(place)) == [at for at in everything if at not in expected]


def test_rows_that_come_with_others_that_go_are_one_commit(place: Path) -> None:
    before = delta.open_table(place)
    assert before is not None
    number = before.version()
    where = any_of([equals("kind", "y"), all_of([equals("kind", "x"), equals("who", "new")])])
    version = delta.replace_rows(place, rows((7, "x", "new", 7)), where=where, at=before)
    assert version == number + 1
    assert kept(delta.read(place)) == [-1, 0, 1, 7, 9_000]


def test_rows_are_not_replaced_over_a_commit_made_meanwhile(place: Path) -> None:
    before = delta.open_table(place)
    delta.append(place, rows((5, "x", "a", 5)))
    with pytest.raises(LostRaceError):
        delta.replace_rows(place, rows((2_500, "y", "z", 1)), where=equals("kind", "y"), at=before)
    assert kept(delta.read(place)) == [-1, 0, 1, 5, 2_500, 9_000]
