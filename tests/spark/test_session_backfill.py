"""Backfills of sessions over an archive, by Spark: what is served afterwards is what a search in memory says, key by key.

The pipelines in memory (`simulated.sessions`) make the histories: late and dropped records, sessions that came apart, open ones.
"""

from __future__ import annotations

import json
import random
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from homes.sessions import SQL, YAML, make_session_home, served_rows, write_reconcile
from rivertwice.backfill import compute
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.compute import compute_backfill
from rivertwice.backfill.model import BackfillPlan, BackfillRequest
from rivertwice.backfill.prepare import make_plan
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.recompute import make_sessions, of_keys
from rivertwice.backfill.store import chunk_records, load_backfill_plan, save_plan
from rivertwice.core.errors import RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import EPOCH, TimeRange, from_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle
from rivertwice.definition.definition import parse_files
from rivertwice.storage.table import Table
from rivertwice.timeline.digest import key_texts
from rivertwice.timeline.served import read_served, rebuild_served
from simulated.sessions import Row, World, random_batches

pytestmark = pytest.mark.spark
Made = tuple[Settings, PipelineHome, Bundle, World]
SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.faults) for seed in (2, 3)))


@pytest.fixture(autouse=True)
def no_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {})


def make(tmp_path: Path, seed: int, records: int = 300) -> tuple[Made, random.Random]:
    chance = random.Random(seed)
    world = World()
    for batch in random_batches(chance, records):
        world.commit(batch)
    world.commit([])
    return (*make_session_home(tmp_path, world), world), chance


def wrong_rows(world: World) -> list[Row]:
    return sorted(set(world.served()) ^ {row for row in world.truth() if row.end_ms <= world.closed_ms})


def run(spark: SparkSession, made: Made, asked: tuple[int, int] | None, chunk_records: int = 40) -> BackfillPlan:
    settings, home, bundle, _ = made
    wide = None if asked is None else TimeRange(from_ms(asked[0]), from_ms(asked[1]))
    plan = make_plan(settings, BackfillRequest("p", wide, "test"), lambda: spark, chunk_records=chunk_records)
    plan = save_plan(home, plan)
    compute_backfill(spark, settings, plan)
    audit_backfill(settings, plan)
    publish_backfill(settings, plan)
    rebuild_served(home, bundle.definition)
    return plan


def check(made: Made, plan: BackfillPlan, wanted: BackfillPlan) -> None:
    """Compare plan and served rows with those of the pipeline in memory, which publishes the same."""
    assert plan.sessions == wanted.sessions
    assert (plan.ranges, plan.late, plan.windows) == (wanted.ranges, wanted.late, wanted.windows)
    assert set(served_rows(read_served(made[1]))) == set(made[3].served())


@pytest.mark.parametrize("seed", SEEDS)
def test_random_ranges_of_random_histories_are_served_as_a_search_says(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    made, chance = make(tmp_path, seed)
    world = made[3]
    wrong = wrong_rows(world)
    assert wrong
    middle = chance.choice(wrong)
    times = [one.at_ms for one in world.records]
    for asked in (
        (middle.end_ms - 1, middle.end_ms),
        (middle.start_ms - 5000, middle.end_ms + 20_000),
        (min(times), max(times)),
    ):
        if not any(world.chosen(lambda hull: hull.start_ms < asked[1] and asked[0] < hull.end_ms)):  # noqa: B023
            with pytest.raises(RequestError, match="is settled"):
                run(spark, made, asked)
            continue
        check(made, run(spark, made, asked), world.backfill(asked, chunk_records=40))
    settled = {row for row in world.truth() if row.end_ms + 1000 <= world.closed_ms}
    assert settled <= set(served_rows(read_served(made[1])))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_reconcile_found_late_is_published_and_nothing_else(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    made, _ = make(tmp_path, seed)
    world = made[3]
    wrong = wrong_rows(world)
    write_reconcile(made[1], [("LATE", row) for row in wrong])
    plan = run(spark, made, None)
    check(made, plan, world.backfill(stale=wrong, chunk_records=40))
    assert plan.late > 0


def test_a_killed_session_backfill_resumes_and_any_chunks_give_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make(tmp_path, 5, 120)
    settings, home, _, world = made
    times = [one.at_ms for one in world.records]
    request = BackfillRequest("p", TimeRange(from_ms(min(times)), from_ms(max(times))), "test")
    plan = save_plan(home, make_plan(settings, request, lambda: spark, chunk_records=25))
    total = len(plan.chunks)
    assert total > 2
    monkeypatch.setattr(compute, "READ_ONCE", 0)

    def die(_line: str) -> None:
        raise KeyboardInterrupt

    for done in range(1, total):
        with pytest.raises(KeyboardInterrupt):
            compute_backfill(spark, settings, plan, die)
        assert [one.chunk for one in chunk_records(home, plan.id)] == list(range(done))
    report = compute_backfill(spark, settings, load_backfill_plan(home, plan.id))
    assert (report.computed, report.skipped) == (1, total - 1)
    assert audit_backfill(settings, plan).rows == plan.windows
    rows = Table(home.tables.corrections).read()
    assert rows is not None
    made_rows = served_rows(rows.filter(pc.equal(rows["_backfill"], plan.id)))
    assert set(made_rows) == {row for _, _, row in world.compute(plan)}


def test_a_plan_whose_sessions_the_log_does_not_give_any_more_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    made, _ = make(tmp_path, 6, 60)
    settings, home, _, world = made
    times = [one.at_ms for one in world.records]
    request = BackfillRequest("p", TimeRange(from_ms(min(times)), from_ms(max(times))), "test")
    plan = save_plan(home, make_plan(settings, request, lambda: spark))
    archive = settings.archive("flights")
    rows = Table(archive).read()
    assert rows is not None
    values = [value.replace(b'"k": "a"', b'"k": "erased"') for value in rows["value"].to_pylist()]
    place = rows.schema.get_field_index("value")
    Table(archive).overwrite(rows.set_column(place, "value", pa.array(values, pa.binary())), metadata={})
    with pytest.raises(RequestError, match=r"that a chunk of backfill .* was planned with"):
        compute_backfill(spark, settings, plan)


def test_sessions_are_told_apart_by_keys_of_every_kind_null_among_them(spark: SparkSession) -> None:
    yaml = YAML.replace(
        "schema: {k: string, at: timestamp, v: bigint}",
        'schema: {k: string, at: timestamp, v: bigint, day: timestamp, price: "decimal(6,2)", ok: boolean}',
    ).replace("keys: [k]", "keys: [k, day, price, ok]")
    sql = SQL.replace("'1 second'), k", "'1 second'), k, day, price, ok").replace(
        " k, count", " k, day, price, ok, count"
    )
    definition = parse_files({"pipeline.yaml": yaml.encode(), "transform.sql": sql.encode()}, "p")
    day = EPOCH + timedelta(days=3, microseconds=7)
    keys = [("a", day, Decimal("1.50"), True), (None, None, None, None), ("a", day, Decimal("1.50"), False)]
    rows = [(*key, EPOCH + timedelta(milliseconds=at)) for key in keys for at in (0, 1000, 2001, 2500)]
    frame = spark.createDataFrame(rows, "k string, day timestamp, price decimal(6,2), ok boolean, at timestamp")
    found = make_sessions(frame, definition).toArrow()
    spans = sorted(zip(*(found[name].to_pylist() for name in ("_start_us", "_end_us", "_records")), strict=True))
    assert spans == sorted([(0, 2_000_000, 2), (2_001_000, 3_500_000, 2)] * 3)
    texts = sorted(set(key_texts(found, definition.keys)))
    assert len(texts) == 3
    for text in texts:
        mine = of_keys(spark, frame, definition, [text]).toArrow()
        assert mine.num_rows == 4
        assert set(key_texts(mine, definition.keys)) == {text}
        assert json.loads(text).keys() == set(definition.keys)
