"""A data file that lost bytes or is missing is described in one way, in the stream's tables as in an archive."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from rivertwice.log.archive_table import find_broken
from rivertwice.storage.table import Table


def test_a_missing_and_a_cut_data_file_are_described_alike_everywhere(tmp_path: Path) -> None:
    place = tmp_path / "a table"
    for day in ("1 July", "2 July", "3 July"):
        Table(place, partition_by=["day"]).append(pa.table({"day": [day], "n": [1]}))
    table = Table(place).open()
    assert table is not None
    sizes = table.sizes()
    assert Table(place).broken_files() == []
    missing, cut, _ = sorted(sizes)
    (place / missing).unlink()
    (place / cut).write_bytes(b"half")
    damages = {place / missing: "is gone", place / cut: f"holds 4 bytes, not {sizes[cut]}"}
    assert dict(Table(place).broken_files()) == damages
    assert {file.path: file.how for file in find_broken(place, sizes, {})} == damages
