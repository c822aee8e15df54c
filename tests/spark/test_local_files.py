"""How Spark sees local files: by Java's own calls, with what Spark and our tools expect of a checkpoint."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rivertwice.core.spark_versions import SparkVersion
from rivertwice.stream.checkpoint import checksum_of


def checkpoint_files(spark: SparkSession, place: Path) -> Any:
    """Return what Spark writes a checkpoint's files with."""
    jvm: Any = spark._jvm
    name = SparkVersion(spark.version).streaming_class("checkpointing", "CheckpointFileManager$")
    companion = jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    return companion.create(path_of(spark, place), conf)


def path_of(spark: SparkSession, place: Path) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(str(place))


def write(files: Any, path: Any, text: bytes, *, over: bool = False) -> None:
    stream = files.createAtomic(path, over)
    stream.write(bytearray(text))
    stream.close()


def test_a_local_session_sees_files_without_starting_programs(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    files = jvm.org.apache.hadoop.fs.FileSystem.get(path_of(spark, tmp_path).toUri(), conf)
    assert files.getClass().getSimpleName() == "BareLocalFileSystem"
    assert checkpoint_files(spark, tmp_path).getClass().getSimpleName() == "FileSystemBasedCheckpointFileManager"


def test_a_checkpoint_below_a_linked_home_is_written_whole(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    offsets = tmp_path / "home" / "checkpoint" / "offsets"
    files = checkpoint_files(spark, offsets)
    files.mkdirs(path_of(spark, offsets))
    write(files, path_of(spark, offsets / "0"), b"first")
    write(files, path_of(spark, offsets / "0"), b"second", over=True)
    assert sorted(path.name for path in offsets.iterdir()) == [".0.crc", "0"]
    assert (offsets / "0").read_bytes() == b"second"
    assert (offsets / ".0.crc").read_bytes() == checksum_of(b"second")
    assert [status.getPath().getName() for status in files.list(path_of(spark, offsets))] == ["0"]
    assert stat.S_IMODE((offsets / "0").stat().st_mode) & stat.S_IRUSR
