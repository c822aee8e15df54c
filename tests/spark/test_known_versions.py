"""What a window sees of a table is the same from the versions that are held and the news as from all versions; only news is read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from histories.kinds import definition_files, make_definition
from homes.ledger import NOW
from homes.project import make_project
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.core.spark_versions import SparkVersion
from rivertwice.engine.interval_rows import all_versions, current_versions
from rivertwice.engine.relations import rows_schema
from rivertwice.storage.table import Table
from rivertwice.storage.table_files import TableFiles
from rivertwice.stream.versions import KnownVersions
from rivertwice.timeline.lineage import Fork, Timeline, create_timeline

pytestmark = pytest.mark.spark
KIND, VIEW = "as-of intervals", "names"
DEFINITION = make_definition(KIND)
ZERO = datetime(2026, 1, 1, tzinfo=UTC)
FORK = 4
"""The last batch of t1 on the path of t2."""


@dataclass(frozen=True)
class Version:
    """A version that a batch of a timeline stored, valid from a second on; a delete has no value."""

    timeline: str
    batch: int
    offset: int
    key: str
    second: int
    deletes: bool = False


def random_versions(chance: random.Random, batches: int) -> list[Version]:
    """Return versions of each batch: most of about its own minute, some much older, some at the same moment, some deletes."""
    made: list[Version] = []
    for batch in range(batches):
        for timeline in ("t1", "t2") if batch > FORK else ("t1",):
            for _ in range(chance.randrange(7)):
                age = chance.randrange(60) if chance.random() < 0.7 else chance.randrange(60 * (batch + 1))
                second = max(0, 60 * batch + 59 - age) // 10 * 10
                key, deletes = f"k{chance.randrange(5)}", chance.random() < 0.2
                made.append(Version(timeline, batch, len(made), key, second, deletes))
    return made


def is_on_path(version: Version) -> bool:
    return version.timeline == ("t2" if version.batch > FORK else "t1")


def frame_of(spark: SparkSession, versions: Sequence[Version], *, stamped: bool = False) -> DataFrame:
    """Return versions as accepted rows of the table's source; `stamped`: as they are stored."""
    more = ", _timeline string, _batch bigint" if stamped else ""
    schema = spark.createDataFrame([], rows_schema(DEFINITION.sources[VIEW]) + more).schema
    values: dict[str, Any] = {"_partition": 0, "_record_time": ZERO}
    rows = [
        values
        | {
            "k": one.key,
            "v": one.offset,
            "at": ZERO + timedelta(seconds=one.second),
            "_op": "d" if one.deletes else "u",
        }
        | {"_offset": one.offset, "_timeline": one.timeline, "_batch": one.batch}
        for one in versions
    ]
    columns = to_arrow_schema(schema, **SparkVersion.installed().arrow_in_utc)
    table = pa.Table.from_pylist([{name: row.get(name) for name in columns.names} for row in rows], schema=columns)
    return spark.createDataFrame(table, schema)


def windows_of(spark: SparkSession, minutes: Sequence[int]) -> DataFrame:
    starts = [ZERO + timedelta(minutes=minute) for minute in minutes]
    stamp = pa.timestamp("us", "UTC")
    ends = [start + DEFINITION.window.length for start in starts]
    table = pa.table({"window_start": pa.array(starts, stamp), "window_end": pa.array(ends, stamp)})
    return spark.createDataFrame(table)


def seen(spark: SparkSession, versions: DataFrame, minutes: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return what the windows that start in some minutes see of versions."""
    rows = all_versions(DEFINITION, VIEW, versions.withColumn("_index", F.lit(0)), windows_of(spark, minutes))
    return sorted(map(tuple, rows.select(*sorted(rows.columns)).collect()), key=repr)


def store(spark: SparkSession, home: PipelineHome, versions: Sequence[Version]) -> None:
    """Store a batch's versions as its driver does: without any, too."""
    Table(home.tables.versions(VIEW)).append(frame_of(spark, versions, stamped=True).toArrow())


def micros(minute: int) -> int:
    return int(ZERO.timestamp()) * 1_000_000 + minute * 60_000_000


@pytest.fixture
def home(tmp_path: Path) -> tuple[Settings, PipelineHome]:
    """A pipeline whose t2 left t1 after batch `FORK`."""
    settings = make_project(tmp_path, {"histories": definition_files(KIND)})
    for name, parent in (("t1", None), ("t2", Fork("t1", FORK))):
        line = Timeline(
            "histories", name, parent, 0 if parent is None else FORK + 1, {}, "b", {}, "c", {"names": "id"}, NOW
        )
        create_timeline(settings.pipeline("histories"), line)
    return settings, settings.pipeline("histories")


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each reading of the table took, in order."""
    counts: list[int] = []

    frame = TableFiles.frame

    def counted(*args: Any, uris: Sequence[str], **named: Any) -> DataFrame:
        counts.append(len(uris))
        return frame(*args, uris=uris, **named)

    monkeypatch.setattr(TableFiles, "frame", counted)
    return counts


@pytest.mark.parametrize("seed", range(4))
def test_windows_see_the_same_of_what_is_held_as_of_all_versions(
    seed: int, spark: SparkSession, home: tuple[Settings, PipelineHome]
) -> None:
    settings, pipeline = home
    chance = random.Random(f"known versions {seed}")
    versions = random_versions(chance, 10)
    known = KnownVersions(settings, pipeline, DEFINITION, "t2")
    closed = 0
    for batch in range(10):
        query = (
            spark.newSession() if chance.random() < 0.3 else spark
        )  # each query of a replay has a session of its own
        stored = [one for one in versions if one.batch == batch]
        store(spark, pipeline, stored)
        upto = max(closed, batch + 1 - chance.randrange(3))
        minutes = range(closed, upto)
        if not minutes:
            assert known(query, batch, None)[VIEW].count() == 0
            continue
        rows = known(query, batch, micros(closed))[VIEW].drop("_index")
        whole = [one for one in versions if one.batch <= batch and is_on_path(one)]
        assert seen(spark, rows, minutes) == seen(spark, frame_of(spark, whole), minutes)
        closed = upto
    assert closed > 5


def test_a_batch_reads_the_files_of_the_batches_since_the_last_one(
    spark: SparkSession, home: tuple[Settings, PipelineHome], files_read: list[int]
) -> None:
    settings, pipeline = home
    known = KnownVersions(settings, pipeline, DEFINITION, "t2")
    for batch in range(3):
        store(spark, pipeline, [Version("t1", batch, batch, "k", 60 * batch)])
    assert known(spark, 1, micros(0))[VIEW].count() == 2
    assert known(spark, 2, micros(1))[VIEW].count() == 2
    assert known(spark, 2, micros(2))[VIEW].count() == 1
    store(spark, pipeline, [])
    assert known(spark, 3, micros(2))[VIEW].count() == 1
    store(spark, pipeline, [Version("t1", 4, 3, "k", 240), Version("t1", 4, 4, "other", 30)])
    assert known(spark, 4, micros(3))[VIEW].count() == 3
    assert files_read == [3, 1, 1]


@pytest.mark.parametrize(("batch", "minute"), [(1, 2), (2, 0)], ids=["an earlier batch", "an earlier window"])
def test_what_is_not_held_any_more_is_read_again(
    batch: int, minute: int, spark: SparkSession, home: tuple[Settings, PipelineHome], files_read: list[int]
) -> None:
    settings, pipeline = home
    known = KnownVersions(settings, pipeline, DEFINITION, "t2")
    versions = [Version("t1", number, number, "k", 50 * number) for number in range(3)]
    for one in versions:
        store(spark, pipeline, [one])
    known(spark, 2, micros(2))
    rows = known(spark, batch, micros(minute))[VIEW].drop("_index")
    whole = frame_of(spark, [one for one in versions if one.batch <= batch])
    assert seen(spark, rows, [minute]) == seen(spark, whole, [minute])
    assert files_read == [3, 3]


@pytest.mark.parametrize("seed", range(4))
def test_a_version_that_comes_late_changes_what_is_held_as_it_changes_all(seed: int, spark: SparkSession) -> None:
    chance = random.Random(f"late versions {seed}")
    early, late = random_versions(chance, 5), random_versions(chance, 5)
    late = [Version(one.timeline, 5, 1000 + one.offset, one.key, one.second, one.deletes) for one in late]
    since = chance.randrange(1, 5)
    held = current_versions(DEFINITION, VIEW, frame_of(spark, early), micros(since))
    assert held.count() < len(early)
    with_late = held.unionByName(frame_of(spark, late))
    minutes = range(since, 6)
    assert seen(spark, with_late, minutes) == seen(spark, frame_of(spark, [*early, *late]), minutes)


def test_a_statement_of_the_next_query_finds_what_is_held(
    spark: SparkSession, home: tuple[Settings, PipelineHome], files_read: list[int]
) -> None:
    settings, pipeline = home
    known = KnownVersions(settings, pipeline, DEFINITION, "t2")
    for number in range(3):
        store(spark, pipeline, [Version("t1", number, number, f"k{number}", 50 * number)])
    for session, batch in ((spark.newSession(), 1), (spark.newSession(), 2)):
        known(session, batch, micros(0))[VIEW].createOrReplaceTempView("held")
        assert session.sql("SELECT * FROM held").count() == batch + 1
    assert files_read == [3, 3]  # the second one reads all again
