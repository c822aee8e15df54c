"""Delivery to an Iceberg table: it is what is served, whoever is killed, and of two deliverers one is heard."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.types import StringType

from homes.backfill import HOUR
from homes.delivered_versions import SecondVersion, serve
from homes.delivery import DeliveryHome, fill, hour_rows
from rivertwice.core.errors import ConfigError, LostRaceError
from rivertwice.core.instants import from_ms
from rivertwice.definition.delivery_section import IcebergDelivery
from rivertwice.deliver.deliver import Deliverer
from rivertwice.deliver.iceberg_sink import IcebergSink
from rivertwice.deliver.model import EMIT, DeliveredColumns, DeliveredRecord, DeliveryBatch, Position
from rivertwice.deliver.source import StoredSource

SINK = "{ice: {to: iceberg, table: shop.totals, guarantee: effectively_once}}"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeliveryHome:
    (tmp_path / "warehouse").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__WAREHOUSE", f"file://{tmp_path}/warehouse")
    return DeliveryHome(tmp_path, SINK)


def deliver(world: DeliveryHome, *, again: bool = False) -> Any:
    finish = threading.Event()
    finish.set()
    asked = world.definition.deliver["ice"]
    return Deliverer(world.settings, "p", "ice", asked).run(threading.Event(), finish, again=again)


def table() -> Table:
    names = ("TYPE", "URI", "WAREHOUSE")
    properties = {name.lower(): os.environ[f"PYICEBERG_CATALOG__DEFAULT__{name}"] for name in names}
    return load_catalog("default", **properties).load_table("shop.totals")


def rows(found: Table | None = None) -> dict[tuple[int, str], int]:
    listed = (found or table()).scan().to_arrow().to_pylist()
    by_hour = {(int(row["window_start"].timestamp()) // 3600, row["k"]): row["n"] for row in listed}
    assert len(by_hour) == len(listed)
    return by_hour


@pytest.mark.proves("guarantees.md#iceberg-sink")
def test_the_table_is_what_is_served_over_publications_and_restores(world: DeliveryHome) -> None:
    fill(world, "t1", range(4), keys=3)
    assert deliver(world).records == 12
    assert rows() == world.served()
    world.publish(1, 3, [(1, "k00000", 7), (2, "new", 1)])
    deliver(world)
    assert rows() == world.served()
    world.begin("t2", ("t1", 3))
    world.move_head("t2")
    fill(world, "t2", [4], keys=2)
    assert deliver(world).records == 2
    world.begin("t3", ("t1", 1))
    fill(world, "t3", range(2, 6), keys=1)
    world.move_head("t3")
    deliver(world)
    assert deliver(world).records == 0
    assert rows() == world.served()
    found = table()
    snapshot = found.metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.additional_properties["rivertwice.timeline"] == "t3"
    assert snapshot.summary.additional_properties["rivertwice.batch"] == "5"
    (new,) = found.scan(row_filter="k == 'new'").to_arrow().to_pylist()
    assert (new["_timeline"], new["_batch"], new["_backfill"]) == (None, None, "bf-2")
    assert [field.name for field in found.spec().fields] == ["_day"]
    deliver(world, again=True)
    assert rows() == world.served()


def test_a_correction_rewrites_the_files_of_its_days_alone(world: DeliveryHome) -> None:
    fill(world, "t1", range(0, 96, 12), keys=2)  # four days
    deliver(world)
    before = {task.file.file_path for task in table().scan().plan_files()}
    world.publish(24, 36, [(24, "k00000", 7), (24, "k00001", 8)])
    deliver(world)
    after = {task.file.file_path for task in table().scan().plan_files()}
    assert len(before) == 4
    assert len(before & after) == 3
    assert rows() == world.served()


@pytest.mark.proves("guarantees.md#iceberg-sink")
def test_rolled_back_the_table_is_given_again_what_it_lost(world: DeliveryHome) -> None:
    fill(world, "t1", range(2), keys=3)
    deliver(world)
    earlier = table().metadata.current_snapshot_id
    assert earlier is not None
    fill(world, "t1", range(2, 5), keys=3)
    world.publish(0, 1, [(0, "k00000", 9)])
    deliver(world)
    with table().manage_snapshots() as change:
        change.rollback_to_snapshot(earlier)
    assert len(rows()) == 6
    deliver(world)
    assert rows() == world.served()


def two_sinks(world: DeliveryHome) -> tuple[tuple[IcebergSink, IcebergSink], DeliveredColumns, pa.Schema]:
    """Two deliverers' sinks, not open yet, with what is delivered to them."""
    source = StoredSource(world.home)
    view = source.look(None)
    assert view is not None
    asked = world.definition.deliver["ice"]
    assert isinstance(asked, IcebergDelivery)
    sinks = IcebergSink("p", "ice", asked), IcebergSink("p", "ice", asked)
    return sinks, source.shape(view), source.schema()


@pytest.mark.proves("guarantees.md#iceberg-sink")
def test_of_two_deliverers_one_is_turned_away(world: DeliveryHome) -> None:
    fill(world, "t1", range(1), keys=1)
    (first, second), shape, schema = two_sinks(world)
    assert first.open(shape, schema) is None
    assert second.open(shape, schema) is None
    at = Position("t1", 0, 0, "x", 1)
    first.deliver(DeliveryBatch(shape, "ice", (), None, at))
    with pytest.raises(LostRaceError, match="another deliverer"):
        second.deliver(DeliveryBatch(shape, "ice", (), None, Position("t1", 0, 0, "y", 1)))
    assert second.open(shape, schema) == at


@pytest.mark.proves("howto-delivery.md#iceberg", "guarantees.md#iceberg-sink")
def test_of_two_deliverers_one_is_turned_away_though_somebody_allowed_retries(world: DeliveryHome) -> None:
    fill(world, "t1", range(1), keys=2)
    (first, second), shape, schema = two_sinks(world)
    first.open(shape, schema)
    second.open(shape, schema)
    with table().transaction() as change:
        change.set_properties({"commit.retry.num-retries": "4", "commit.retry.min-wait-ms": "1"})
    records = [DeliveredRecord(EMIT, key, (from_ms(0), from_ms(HOUR), key, 1), None) for key in ("k00000", "k00001")]
    parcel = DeliveryBatch(shape, "ice", records, None, Position("t1", 0, 0, "x", 1))

    with pytest.raises(LostRaceError, match="another deliverer"):
        second.deliver(parcel, lambda *_: first.deliver(parcel))  # the first one commits after the second one looked
    assert len(rows()) == 2
    assert table().properties["commit.retry.num-retries"] == "0"


def test_a_switch_between_versions_gives_the_table_their_columns(world: DeliveryHome) -> None:
    fill(world, "t1", range(4), keys=3)
    deliver(world)
    before = table().schema().column_names
    edits = {
        "transform.sql": ("count(*) AS n", "count(*) AS n, 'x' AS note"),
        "pipeline.yaml": ("columns: {n: {compare: exact}}", "columns: {n: {compare: exact}, note: {}}"),
    }
    new = SecondVersion(world, edits)
    for batch in range(4):
        wide = hour_rows(batch, 3)
        new.commit_wide(batch, batch + 1, wide, {"note": [f"n{n}" for _, _, n in wide]})
    serve(world, "p@v2")
    deliver(world)
    assert rows() == new.served()
    assert set(table().schema().column_names) == {*before, "note"}
    assert all(row["note"] == f"n{row['n']}" for row in table().scan().to_arrow().to_pylist())
    serve(world, "p")
    deliver(world)
    assert rows() == world.served()
    assert table().schema().column_names == before


@pytest.mark.proves("guarantees.md#iceberg-sink")
@pytest.mark.long
@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.faults)])
def test_a_deliverer_killed_anywhere_leaves_what_is_served(world: DeliveryHome, tmp_path: Path, kills: int) -> None:
    fill(world, "t1", range(60), keys=400)
    command = [sys.executable, "-m", "rivertwice.cli.main", "deliver", "run", "p", "--until-end"]
    environment, chance, log = {**os.environ, **world.settings.to_env()}, random.Random(kills), tmp_path / "deliver.log"

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    met = 0
    for _ in range(kills):
        process = start()
        warehouse, files = tmp_path / "warehouse", sum(1 for _ in (tmp_path / "warehouse").rglob("*"))
        deadline = time.monotonic() + 60
        wanted = files + chance.randint(1, 6)
        while time.monotonic() < deadline and process.poll() is None:
            if sum(1 for _ in warehouse.rglob("*")) >= wanted:
                break
            time.sleep(0.002)
        met += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert met > 0, log.read_text()[-3000:]
    assert start().wait(120) == 0, log.read_text()[-3000:]
    assert rows() == world.served()


def test_a_catalog_that_is_not_configured_is_named(world: DeliveryHome, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world, "t1", range(1), keys=1)
    for name in ("TYPE", "URI", "WAREHOUSE"):
        monkeypatch.delenv(f"PYICEBERG_CATALOG__DEFAULT__{name}")
    with pytest.raises(ConfigError, match="PYICEBERG_CATALOG__DEFAULT__URI"):
        deliver(world)


@pytest.mark.proves("howto-delivery.md#iceberg", "guarantees.md#iceberg-sink")
def test_a_table_of_other_columns_is_refused(world: DeliveryHome) -> None:
    fill(world, "t1", range(1), keys=1)
    deliver(world)
    found = table()
    with found.update_schema() as change:
        change.add_column("note", StringType())
    with pytest.raises(ConfigError, match="has other columns than p delivers: note; nothing was delivered"):
        deliver(world)
    assert rows() == world.served()
