"""Where a driver listens: on loopback alone, unless executors of a cluster have to reach it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rivertwice.core.settings import Settings
from rivertwice.engine.jvm import NO_HELPER, WIDE_HEAP, WIDE_REGIONS, in_java, start_confs

LOCAL = Settings(Path("/p"), Path("/h"))
ADDRESSES = ("spark.driver.host", "spark.driver.bindAddress")


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local-cluster[1,1,1024]"])
def test_a_driver_with_local_executors_listens_on_loopback(master: str) -> None:
    confs = start_confs(replace(LOCAL, spark_master=master), [])
    assert [confs[name] for name in ADDRESSES] == ["127.0.0.1", "127.0.0.1"]


def test_a_driver_of_a_cluster_listens_where_spark_says_and_brings_jars() -> None:
    jar = Path("/jars/spark-sql-kafka.jar")
    confs = start_confs(replace(LOCAL, spark_master="spark://master:7077"), [jar])
    assert not set(ADDRESSES) & set(confs)
    assert confs["spark.jars"] == str(jar)
    assert "spark.jars" not in start_confs(LOCAL, [jar])


def test_a_jvm_starts_hadoops_programs_without_a_helper() -> None:
    confs = start_confs(LOCAL, [])
    assert {NO_HELPER, WIDE_REGIONS, *WIDE_HEAP.split()} < set(confs["spark.driver.extraJavaOptions"].split())
    assert NO_HELPER in confs["spark.executor.extraJavaOptions"].split()


@pytest.mark.parametrize(
    ("master", "jar", "is_set"),
    [
        ("local[2]", "hadoop-bare-naked-local-fs-0.1.0.jar", True),
        ("local", "hadoop-bare-naked-local-fs-0.1.0.jar", True),
        ("local[2]", "commons-pool2-2.13.1.jar", False),
        ("local-cluster[1,1,1024]", "hadoop-bare-naked-local-fs-0.1.0.jar", False),
        ("spark://master:7077", "hadoop-bare-naked-local-fs-0.1.0.jar", False),
    ],
)
def test_files_are_seen_by_java_only_where_every_task_has_its_jar(master: str, jar: str, is_set: bool) -> None:
    confs = start_confs(replace(LOCAL, spark_master=master), [Path("/jars") / jar])
    assert (set(in_java()) < set(confs)) == is_set
    assert bool(set(in_java()) & set(confs)) == is_set


def test_sparks_own_file_says_how_large_the_heap_of_a_driver_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_confs(LOCAL, [])["spark.driver.memory"] == "2g"
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.memory 5g\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    confs = start_confs(LOCAL, [])
    assert "spark.driver.memory" not in confs
    assert confs["spark.driver.maxResultSize"] == "512m"
