"""Which files of a table can have a larger number: by the statistics in its log, and never too few."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rivertwice.storage import delta
from rivertwice.storage.delta_counts import uris_above


@pytest.mark.parametrize(("number", "files"), [(-1, 4), (0, 4), (1, 3), (4, 2), (5, 1), (99, 1)])
def test_files_without_a_larger_number_are_left_out(number: int, files: int, tmp_path: Path) -> None:
    for values in ([0, 1], [4, 2], [5, 0], [None, None]):
        delta.append(tmp_path / "table", pa.table({"n": pa.array(values, pa.int64())}))
    delta.append(tmp_path / "table", pa.table({"n": pa.array([], pa.int64())}))
    table = delta.open_table(tmp_path / "table")
    assert table is not None
    named = uris_above(table, "n", number)
    assert len(named) == files
    assert set(named) <= set(table.file_uris())


def test_without_statistics_every_file_is_named(tmp_path: Path) -> None:
    delta.append(tmp_path / "table", pa.table({"n": pa.array([1], pa.int64())}))
    table = delta.open_table(tmp_path / "table")
    assert table is not None
    assert uris_above(table, "unknown", 5) == table.file_uris()
