"""Which files of a table can have a larger number: by the statistics in its log, and never too few."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rivertwice.storage.table import Table


@pytest.mark.parametrize(("number", "files"), [(-1, 4), (0, 4), (1, 3), (4, 2), (5, 1), (99, 1)])
def test_files_without_a_larger_number_are_left_out(number: int, files: int, tmp_path: Path) -> None:
    for values in ([0, 1], [4, 2], [5, 0], [None, None]):
        Table(tmp_path / "table").append(pa.table({"n": pa.array(values, pa.int64())}))
    Table(tmp_path / "table").append(pa.table({"n": pa.array([], pa.int64())}))
    table = Table(tmp_path / "table").open()
    assert table is not None
    named = table.uris_above("n", number)
    assert len(named) == files
    assert set(named) <= set(table.uris())


def test_without_statistics_every_file_is_named(tmp_path: Path) -> None:
    Table(tmp_path / "table").append(pa.table({"n": pa.array([1], pa.int64())}))
    table = Table(tmp_path / "table").open()
    assert table is not None
    assert table.uris_above("unknown", 5) == table.uris()
