"""Tables of a lake in every store: what a snapshot names, and what is seen of its files later."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from rivertwice.core.errors import RequestError
from rivertwice.core.homes import Place, is_remote
from rivertwice.storage.lake import LakeFile, LakeSnapshot
from rivertwice.storage.places import open_store
from rivertwice.storage.snapshot import storage_options


def rows(first: int, count: int) -> pa.Table:
    return pa.table(
        {"n": pa.array(range(first, first + count), pa.int64()), "part": pa.array([first] * count, pa.int32())}
    )


def parquet(first: int, count: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows(first, count), sink)
    return sink.getvalue().to_pybytes()


def read(files: list[LakeFile]) -> list[tuple[int, int, int]]:
    """Return (file, row, value of n) of all rows."""
    wanted = pa.schema([("n", pa.int64()), ("part", pa.int32())])
    return [
        (number, at + row, value["n"])
        for number, file in enumerate(files)
        for at, piece in file.read(wanted)
        for row, value in enumerate(piece.to_pylist())
        if value["part"] == value["n"] - row - at
    ]


def test_a_delta_table_is_read_by_the_files_of_its_version_in_every_store(store_place: str) -> None:
    place: Place = store_place if is_remote(store_place) else Path(store_place)
    for first, count in ((0, 3), (10, 2)):
        write_deltalake(
            store_place,
            rows(first, count),
            mode="append",
            partition_by=["part"],
            storage_options=storage_options(place),
        )
    old = LakeSnapshot.open("delta", store_place, 0, "default")
    new = LakeSnapshot.open("delta", store_place, None, "default")
    assert (old.number, new.number) == (0, 1)
    assert read(list(old.files)) == [(0, n, n) for n in range(3)]
    assert sorted(value for _, _, value in read(list(new.files))) == [0, 1, 2, 10, 11]
    write_deltalake(store_place, rows(50, 1), mode="overwrite", storage_options=storage_options(place))
    assert LakeFile.lost(new.files) == {}
    gone = old.files[0]
    open_store(store_place).delete(gone.name.removeprefix(f"{store_place}/"))
    assert LakeFile.lost(new.files) == {gone.name: "is gone"}


def test_a_file_of_a_folder_that_has_another_size_is_seen_on_a_disk_and_on_s3(store_place: str) -> None:
    store = open_store(store_place)
    for number, count in enumerate((3, 2)):
        store.put_if_absent(f"year={number}/rows.parquet", parquet(number * 10, count))
    store.put_if_absent("_SUCCESS", b"")
    store.put_if_absent("_temporary/rows.parquet", b"half")
    if is_remote(store_place) and not store_place.startswith("s3://"):
        with pytest.raises(RequestError, match="read from a disk or from S3"):
            LakeSnapshot.open("parquet", store_place, None, "default")
        return
    snapshot = LakeSnapshot.open("parquet", store_place, None, "default")
    assert (snapshot.number, [file.rows for file in snapshot.files]) == (None, [3, 2])
    assert read(list(snapshot.files)) == [(0, n, n) for n in range(3)] + [(1, n, 10 + n) for n in range(2)]
    assert LakeFile.lost(snapshot.files) == {}
    store.delete("year=1/rows.parquet")
    store.put_if_absent("year=1/rows.parquet", other := parquet(10, 40))
    (name, how), *others = LakeFile.lost(snapshot.files).items()
    assert (name, others) == (snapshot.files[1].name, [])
    assert how == f"has {len(other)} bytes, and had {snapshot.files[1].size}"
