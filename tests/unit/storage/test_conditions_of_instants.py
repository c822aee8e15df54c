"""Conditions on instants hold for every year that Delta stores, in reads and in replaced rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rivertwice.core.instants import from_ms
from rivertwice.storage.sql import Where
from rivertwice.storage.table import Table

LAST_MS = 253_402_300_799_999  # the year 9999
YEARS_MS = {1336: -20_000_000_000_000, 1970: 1_000, 2262: 9_214_646_400_000, 5138: 100_000_000_000_000}


def table(*instants: int) -> pa.Table:
    return pa.table({"at": pa.array([from_ms(instant) for instant in instants], pa.timestamp("us", "UTC"))})


@pytest.mark.parametrize("year", YEARS_MS)
def test_an_instant_of_any_year_is_found_and_replaced(tmp_path: Path, year: int) -> None:
    path = tmp_path / "t"
    Table(path).append(table(*YEARS_MS.values()))
    later = sum(instant >= YEARS_MS[year] for instant in YEARS_MS.values())
    since = Table(path).read(matching=Where("at").is_within([(YEARS_MS[year], LAST_MS)]))
    assert since is not None
    assert since.num_rows == later
    after = Table(path).read(matching=Where("at").is_after(YEARS_MS[year]))
    assert after is not None
    assert after.num_rows == later - 1
    Table(path).replace_rows(table(YEARS_MS[year]), where=Where("at").is_within([(YEARS_MS[year], LAST_MS)]))
    rows = Table(path).read()
    assert rows is not None
    assert rows.num_rows == len(YEARS_MS) - later + 1
