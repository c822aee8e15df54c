"""A batch whose result is more than the driver may collect: executors write it, and it means what the driver's commit would."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lab.faults.events import Event, produce_events
from rivertwice.core.instants import EPOCH, to_iso
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.storage.table import Table
from rivertwice.stream.result_rows import changelog_rows
from rivertwice.stream.sink import is_noted, write_rows
from rivertwice.timeline.digest import digest_rows
from rivertwice.timeline.lineage import path_ledger
from running.warm_spark import run_command_warm
from streams.kinds import DRIVER, NAME, check_explained, make_kind_project

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
KEYS = 20_000
LIMIT = "spark.driver.maxResultSize 400k\n"


def events(first_s: int, keys: int) -> list[Event]:
    """Return a record of each key, in one window."""
    at = to_iso(EPOCH + timedelta(seconds=first_s))
    return [
        Event(0, str(key).encode(), json.dumps({"k": f"key{key}", "at": at, "v": key}).encode(), 1_767_225_600_000)
        for key in range(keys)
    ]


def run_cold(settings: Settings, conf: Path, log: Path) -> int:
    """Run a driver to the end of the log, with Spark's own file of defaults; return its exit code."""
    env = {**os.environ, **settings.to_env(), "SPARK_CONF_DIR": str(conf)}
    with log.open("ab") as out:
        return subprocess.run(DRIVER, env=env, stdout=out, stderr=out, timeout=240).returncode


@pytest.mark.faults
def test_a_result_above_the_limit_is_written_by_executors_and_counts_once(
    spark: SparkSession, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings = make_kind_project(tmp_path, broker, topic, "tumbling", batch=2 * KEYS)
    definition = load_definition(settings.definitions / NAME)
    source = definition.source[1]
    ensure_topic(settings, source.topic, source.partitions)
    produce_events(settings, source.topic, [*events(100_000, KEYS), *events(200_000, 1), *events(300_000, 1)])
    conf, log, home = tmp_path / "conf", tmp_path / "driver.log", settings.pipeline(NAME)
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(LIMIT)
    assert run_cold(settings, conf, log) != 0, "the driver must not collect it"
    assert "maxResultSize" in log.read_text()
    before = len(path_ledger(home))
    assert is_noted(home, "t1", before)
    assert run_cold(settings, conf, log) == 0, log.read_text()[-3000:]
    rows = path_ledger(home)
    assert max(row.emitted for row in rows) == KEYS
    changelog = Table(home.tables.changelog).read()
    assert changelog is not None
    assert changelog.num_rows == sum(row.emitted for row in rows)
    names = definition.result_columns
    large = next(row for row in rows if row.emitted >= KEYS)
    own = changelog.filter(pa.compute.equal(changelog["_batch"], large.batch))
    assert digest_rows(own, names) == large.digest
    report = run_command_warm(settings, "reconcile", NAME)
    check_explained(report)
    assert report["counts"]["stream"]["AGREES"] == changelog.num_rows


@pytest.mark.parametrize("days", [1, 3])
def test_both_ways_of_writing_give_the_same_rows_and_digest(
    spark: SparkSession, tmp_path: Path, broker: BrokerInfo, topic: str, days: int
) -> None:
    settings = make_kind_project(tmp_path, broker, topic, "tumbling")
    definition, home = load_definition(settings.definitions / NAME), settings.pipeline(NAME)
    size = definition.window.length
    start = f"timestamp'2026-01-01 00:00:00' + make_interval(0, 0, 0, cast(id % {days} as int))"
    columns = {
        definition.window.start_column: start,
        definition.window.end_column: f"{start} + make_interval(0, 0, 0, 0, 0, 0, {size.total_seconds()})",
        **dict.fromkeys(definition.keys, "concat('k', id)"),
    }
    others = [f"cast(id as bigint) AS {name}" for name in definition.columns]
    frame = spark.range(0, 500, 1, 3).selectExpr(*(f"{text} AS {name}" for name, text in columns.items()), *others)
    written = write_rows(frame, home, "t1", 7, definition)
    Table(home.tables.changelog, partition_by=["_day"]).append_files(
        written.files, written.schema, transactions={"app": 7}
    )
    collected = frame.toArrow()
    wanted = changelog_rows(collected, "t1", 7)
    found = Table(home.tables.changelog).read()
    assert found is not None
    order = [(name, "ascending") for name in wanted.column_names]
    assert found.select(wanted.column_names).sort_by(order).to_pylist() == wanted.sort_by(order).to_pylist()
    assert (written.count, written.digest) == (500, digest_rows(collected, collected.column_names))
    assert len({file.partition["_day"] for file in written.files}) == days
