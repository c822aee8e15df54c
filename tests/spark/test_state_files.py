"""Files of a state are unpacked to the keys and values that RocksDB and Spark wrote into them."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rivertwice.upkeep.remains import unpacked

pytestmark = pytest.mark.spark


def table_of(spark: SparkSession, path: Path, rows: dict[bytes, bytes], packing: str) -> bytes:
    """Return a table that RocksDB wrote, with the settings that Spark gives it."""
    jvm: Any = spark._jvm
    rocks = jvm.org.rocksdb
    rocks.RocksDB.loadLibrary()
    form = rocks.BlockBasedTableConfig().setFormatVersion(5).setBlockSize(4096)
    options = rocks.Options().setTableFormatConfig(form).setCompressionType(getattr(rocks.CompressionType, packing))
    writer = rocks.SstFileWriter(rocks.EnvOptions(), options)
    writer.open(str(path))
    for key, value in sorted(rows.items()):
        writer.put(key, value)
    writer.finish()
    return path.read_bytes()


@pytest.mark.parametrize("packing", ["NO_COMPRESSION", "LZ4_COMPRESSION", "SNAPPY_COMPRESSION", "ZSTD_COMPRESSION"])
def test_every_key_and_value_of_a_table_comes_out(spark: SparkSession, tmp_path: Path, packing: str) -> None:
    draw = random.Random(packing)
    rows = {f"customer {n:05}".encode(): draw.randbytes(draw.randint(0, 90)) for n in range(2_000)}
    data = table_of(spark, tmp_path / "000008-x.sst", rows, packing)
    pieces = list(unpacked("000008-x.sst", data))
    assert set(rows.values()) <= set(pieces)
    assert set(rows) <= {piece[:14] for piece in pieces}

    with zipfile.ZipFile(tmp_path / "10_a.zip", "w", zipfile.ZIP_DEFLATED) as snapshot:
        snapshot.writestr("000008.sst", data)
        snapshot.writestr("MANIFEST-000005", b"from customer 00000")
    inside = list(unpacked("state/0/0/10_a.zip", (tmp_path / "10_a.zip").read_bytes()))
    assert inside == [*pieces, b"from customer 00000"]


def test_a_changelog_comes_out_as_spark_wrote_it(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    content = random.Random(1).randbytes(50_000) + b"customer 42" * 9_000
    out = jvm.java.io.ByteArrayOutputStream()
    stream = jvm.net.jpountz.lz4.LZ4BlockOutputStream(out)
    stream.write(content)
    stream.close()
    assert list(unpacked("3_a.changelog", bytes(out.toByteArray()))) == [content]


@pytest.mark.parametrize("name", ["3_a.changelog", "000008-x.sst", "10_a.zip"])
@pytest.mark.parametrize(
    "data", [b"", b"x" * 20, b"LZ4Block" * 9, b"\xff" * 99], ids=["empty", "short", "blocks", "long"]
)
def test_a_damaged_file_is_said_to_be_one(name: str, data: bytes) -> None:
    if name == "3_a.changelog" and not data:
        assert list(unpacked(name, data)) == [b""]
        return
    with pytest.raises(ValueError, match="is not a state file"):
        list(unpacked(name, data))
