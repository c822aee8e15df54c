"""Rows are read and replaced by conditions; other rows stay, also those with nulls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from rivertwice.core.errors import LostRaceError
from rivertwice.storage.sql import Where
from rivertwice.storage.table import Table

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
    Table(tmp_path / "t").append(STORED.slice(0, 3))
    Table(tmp_path / "t").append(STORED.slice(3))
    return tmp_path / "t"


def kept(table: pa.Table | None) -> list[int]:
    assert table is not None
    return sorted(round(at.timestamp() * 1000) for at in table["at time"].to_pylist())


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Where("at time").is_after(0), [1, 2_500, 9_000]),
        (Where("at time").is_after(-1), [0, 1, 2_500, 9_000]),
        (Where("at time").is_before(1), [-1, 0]),
        (Where("at time").is_within([(-1, 0), (1, 9_000)]), [-1, 1, 2_500]),
        (Where("kind").is_among(["it's", "y"]), [-1, 2_500]),
        (Where.all([Where("kind").equals("x"), Where("who").equals("a"), Where("n").is_between(1, 4)]), [0, 9_000]),
        (Where.any([Where("kind").equals("y"), Where("at time").is_within([(0, 1)])]), [0, 2_500]),
    ],
)
def test_rows_that_match_a_condition_are_read_and_go_others_stay(
    place: Path, condition: str, expected: list[int]
) -> None:
    everything = kept(STORED)
    assert kept(Table(place).read(matching=condition)) == expected
    Table(place).replace_rows(STORED.slice(0, 0), where=condition)
    assert kept(Table(place).read()) == [at for at in everything if at not in expected]


def test_rows_that_come_with_others_that_go_are_one_commit(place: Path) -> None:
    before = Table(place).open()
    assert before is not None
    number = before.version
    where = Where.any([Where("kind").equals("y"), Where.all([Where("kind").equals("x"), Where("who").equals("new")])])
    version = Table(place).replace_rows(rows((7, "x", "new", 7)), where=where, at=before)
    assert version == number + 1
    assert kept(Table(place).read()) == [-1, 0, 1, 7, 9_000]


def test_rows_are_not_replaced_over_a_commit_made_meanwhile(place: Path) -> None:
    before = Table(place).open()
    Table(place).append(rows((5, "x", "a", 5)))
    with pytest.raises(LostRaceError):
        Table(place).replace_rows(rows((2_500, "y", "z", 1)), where=Where("kind").equals("y"), at=before)
    assert kept(Table(place).read()) == [-1, 0, 1, 5, 2_500, 9_000]
