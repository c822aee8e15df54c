"""Rows in order by runs on disk: what a sort in memory gives, with little in memory."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from rivertwice.storage.table_files import sorted_rows

START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def make_rows(seed: int, count: int, instants: int) -> pa.Table:
    chance = random.Random(seed)
    rows = [
        {
            "k": chance.choice(["a", "b", None]),
            "at": None if chance.random() < 0.05 else START + timedelta(seconds=chance.randrange(instants)),
            "n": chance.choice([None, chance.randrange(50)]),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


@pytest.mark.parametrize("instants", [1, 3, 1000])
@pytest.mark.parametrize(
    ("count", "run_rows", "block_rows"), [(0, 10, 3), (5, 10, 3), (500, 37, 5), (500, 1, 1), (900, 100, 64)]
)
def test_runs_that_are_merged_give_the_order_of_one_sort(
    tmp_path: Path, count: int, run_rows: int, block_rows: int, instants: int
) -> None:
    rows = make_rows(count + instants, count, instants)
    merged = list(
        sorted_rows(rows.to_batches(max_chunksize=11), SCHEMA, "at", tmp_path, run_rows=run_rows, block_rows=block_rows)
    )
    whole = pa.concat_tables([SCHEMA.empty_table(), *merged])
    assert whole.to_pylist() == rows.sort_by([(name, "ascending") for name in ("at", "k", "n")]).to_pylist()


def test_a_merge_holds_a_block_of_each_run_and_no_more(tmp_path: Path) -> None:
    rows = make_rows(1, 20_000, 5_000)
    blocks = sorted_rows(rows.to_batches(max_chunksize=100), SCHEMA, "at", tmp_path, run_rows=1_000, block_rows=50)
    # The rows without an instant, one in twenty, share their place and come as one block at the end.
    sizes = [block.num_rows for block in blocks]
    assert sum(sizes) == 20_000
    assert max(sizes[:-1]) <= 20 * 2 * 50
    assert len(list(tmp_path.glob("run-*"))) == 20
