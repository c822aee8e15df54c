"""Catalogs name the files of `served`: a reader finds one of its versions, whatever happens meanwhile and whoever is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner
from moto.server import ThreadedMotoServer
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table as IcebergTable

from homes.catalogs import CatalogHome, catalog_properties, sqlite_catalog, use_catalog
from homes.delivered_versions import SecondVersion, serve
from homes.delivery import fill, hour_rows
from homes.erasure import SECRET, ErasureWorld
from lab.faults import postgres
from rivertwice.agent.delivery import DeliveryKeeper
from rivertwice.cli.main import cli
from rivertwice.core.errors import ConfigError, ServiceError
from rivertwice.core.instants import utc_now
from rivertwice.deliver.note import Note, read_note, write_note
from rivertwice.deliver.registered import Registrar
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.served import rebuild_served
from running.tiers import LANDING
from running.waiting import wait_for
from servers import iceberg
from streams.flights import PIPELINE, StreamedRun, copy_run


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[str, str]]]:
    """Return properties of a catalog of a kind; its server is started when it is first asked for."""
    with ExitStack() as stack:
        known: dict[str, dict[str, str]] = {}

        def find(kind: str) -> dict[str, str]:
            if kind not in known:
                folder = tmp_path_factory.mktemp(kind)
                if kind == "sqlite":
                    known[kind] = sqlite_catalog(folder)
                elif kind == "rest":
                    _skip_if(iceberg.missing())
                    known[kind] = stack.enter_context(iceberg.rest_catalog(folder))
                elif kind == "glue":
                    known[kind] = _glue(stack, folder)
                else:
                    _skip_if(postgres.missing())
                    address = stack.enter_context(postgres.postgres_server())
                    known[kind] = {**sqlite_catalog(folder), "uri": _as_url(address)}
            return known[kind]

        yield find


def _skip_if(reason: str | None) -> None:
    if reason is not None:
        pytest.skip(reason)


def _glue(stack: Any, folder: Path) -> dict[str, str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    stack.callback(server.stop)
    host, port = server.get_host_and_port()
    return {
        "type": "glue",
        "glue.endpoint": f"http://{host}:{port}",
        "glue.region": "us-east-1",
        "glue.access-key-id": "x",
        "glue.secret-access-key": "x",
        "warehouse": sqlite_catalog(folder)["warehouse"],
    }


def _as_url(address: str) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(address)
    return f"postgresql+psycopg://{parts['user']}@/{parts['dbname']}?host={parts['host']}"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogHome:
    """A home with a catalog of its own, in a file."""
    use_catalog(monkeypatch, sqlite_catalog(tmp_path))
    return CatalogHome(tmp_path)


class Killed(BaseException):
    """The registrar ends here."""


class Kills:
    """Ends a registrar before or after any of its effects: a file that is written or deleted, a commit to the catalog."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.at: int | None = None
        self.seen = 0
        for owner, name in ((PyArrowFileIO, "new_output"), (PyArrowFileIO, "delete"), (IcebergTable, "_do_commit")):
            patch.setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*args: Any, **more: Any) -> Any:
            self._pass()
            done = act(*args, **more)
            self._pass()
            return done

        return acted

    def _pass(self) -> None:
        if self.at is not None:
            self.seen += 1
            if self.seen == self.at:
                raise Killed

    def run(self, act: Callable[[], Any], at: int) -> bool:
        """Run something that is killed at its n-th effect; return whether it had so many."""
        self.at, self.seen = at, 0
        try:
            act()
        except Killed:
            return True
        finally:
            self.at = None
        return False


class Reader(threading.Thread):
    """Reads the catalog again and again: the version that it finds, its rows, and the newest one of Delta's log at the end."""

    def __init__(self, world: CatalogHome) -> None:
        super().__init__(daemon=True)
        self.world = world
        self.halt = threading.Event()
        self.found: list[tuple[int, Any, int]] = []
        self.errors: list[Exception] = []

    def run(self) -> None:
        while not self.halt.is_set():
            try:
                self.found.append((*self.world.look(), self.world.newest()))
            except Exception as error:
                self.errors.append(error)

    def await_look(self) -> None:
        """Wait until it has looked once more."""
        before = len(self.found) + len(self.errors)
        wait_for("a look of the reader", lambda: len(self.found) + len(self.errors) > before, 60, every=0.01)

    def end(self) -> None:
        self.halt.set()
        self.join(60)


@pytest.mark.proves("guarantees.md#registered-tables", "howto-delivery.md#without-a-copy")
@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "rest", "glue"])
def test_a_reader_of_a_catalog_finds_a_version_that_was_served_while_registrars_are_killed(
    kind: str, servers: Callable[[str], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_catalog(monkeypatch, servers(kind))
    world, chance = CatalogHome(tmp_path), random.Random(LANDING)
    kills = Kills(monkeypatch)
    line, batch = "t1", 0

    def more() -> None:
        nonlocal batch
        world.commit(line, batch, batch + 1, hour_rows(batch, chance.randint(1, 4)))
        batch += 1

    def publish() -> None:
        first = chance.randrange(batch)
        world.publish(first, first + 2, [(first, f"k{chance.randrange(3):05d}", chance.randrange(99))])

    def move() -> None:
        nonlocal line, batch
        fork = chance.randrange(max(0, batch - 3), batch)
        name = f"t{int(line[1:]) + 1}"
        world.begin(name, (line, fork))
        line, batch = name, fork + 1
        more()
        world.move_head(name)

    def tidy() -> None:
        TableCare(world.home.tables.served).compact()

    def look_after() -> None:
        TableCare(world.home.tables.served).sweep()

    def erase() -> None:
        """Rewrite the rows of a key, register, delete the files that had them: in the order of an erasure."""
        served = Table(world.home.tables.served)
        rows = served.read()
        assert rows is not None
        keys = pa.array(["erased" if key == "k00000" else key for key in rows["k"].to_pylist()], pa.string())
        served.replace_rows(rows.set_column(rows.schema.get_field_index("k"), "k", keys))
        kills.run(lambda: world.register(again=True), chance.randint(1, 14))
        world.register(again=True)
        world.note_states()
        before = world.states[world.newest()]
        TableCare(served.place).purge()  # its own commits change no row, and cannot be opened any more
        world.states |= dict.fromkeys(range(len(world.states), world.newest() + 1), before)

    ways: list[Callable[[], Any]] = [world.register, world.keep_up, world.keep_up]
    more()
    world.serve()
    world.register()
    reader = Reader(world)
    reader.start()
    met = 0
    acts = [
        more,
        publish,
        erase,
        move,
        tidy,
        *(chance.choice([more, more, publish, move, tidy, look_after]) for _ in range(10)),
    ]
    try:
        for act in acts:
            act()
            world.serve()
            world.note_states()
            if chance.random() < 0.7:
                met += kills.run(chance.choice(ways), chance.randint(1, 14))
            if chance.random() < 0.6:
                chance.choice(ways)()
            reader.await_look()
        world.register()
    finally:
        reader.end()
    # who began to read before an erasure finds its files gone: an error, and no row
    assert [error for error in reader.errors if not isinstance(error, FileNotFoundError)] == []
    assert met > 0
    versions = [version for version, _, _ in reader.found]
    assert versions == sorted(versions)
    assert len(set(versions)) > 3
    for version, rows, newest in reader.found:
        assert version <= newest
        assert rows == world.states[version], version
    assert world.look()[1] == world.states[world.newest()]
    assert checked(world)["state"] == "equal"


def run(world: CatalogHome, *words: str) -> tuple[int, Any]:
    options = ["--output", "json", "--project", str(world.settings.project), "--home", str(world.settings.home)]
    done = CliRunner().invoke(cli, [*options, *words])
    return done.exit_code, json.loads(done.stdout) if done.stdout.strip() else done.stderr


def checked(world: CatalogHome) -> dict[str, Any]:
    _, found = run(world, "deliver", "check", "p", "--sink", "lake")
    (one,) = found
    return dict(one)


@pytest.mark.proves("guarantees.md#registered-tables")
@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "rest", "glue"])
def test_of_two_registrars_the_slower_one_looks_again(
    kind: str, servers: Callable[[str], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_catalog(monkeypatch, servers(kind))
    world = CatalogHome(tmp_path)
    fill(world, "t1", range(2), keys=2)
    world.serve()
    commit, others = IcebergTable._do_commit, []

    def commit_later(*args: Any, **more: Any) -> Any:
        if not others:
            others.append(True)
            fill(world, "t1", range(2, 4), keys=2)
            world.serve()
            world.register()  # another one, which is done while this one is about to commit
        return commit(*args, **more)

    world.register()
    world.publish(0, 1, [(0, "k00000", 5)])
    world.serve()
    monkeypatch.setattr(IcebergTable, "_do_commit", commit_later)
    world.register()
    assert others
    assert world.shows_newest()
    assert len(world.table().metadata.snapshots) == 2


def test_the_changelog_is_named_with_its_days_as_partitions(world: CatalogHome) -> None:
    fill(world, "t1", range(4), keys=2)
    next_day(world)
    world.register("log")
    table = world.table("log")
    assert [field.name for field in table.spec().fields] == ["_day"]
    assert table.scan(row_filter="_day == '1970-01-02'").to_arrow()["k"].to_pylist() == ["late"]
    assert len({task.file.file_path for task in table.scan(row_filter="_day == '1970-01-02'").plan_files()}) == 1
    assert log_rows(table.scan().to_arrow()) == log_rows(changelog(world))
    world.begin("t2", ("t1", 2))
    fill(world, "t2", range(3, 5), keys=1)
    world.register("log")
    assert log_rows(world.table("log").scan().to_arrow()) == log_rows(changelog(world))


def next_day(world: CatalogHome) -> None:
    """Commit a row of the next day's window."""
    rows = changelog(world).slice(0, 1)
    for name, value in {"_day": "1970-01-02", "k": "late", "_batch": 99}.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pa.array([value], rows.schema.field(at).type))
    Table(world.home.tables.changelog, partition_by=["_day"]).append(rows, transactions={"p#t1": 99})


def changelog(world: CatalogHome) -> pa.Table:
    rows = Table(world.home.tables.changelog).read()
    assert rows is not None
    return rows


def log_rows(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in ("_timeline", "_batch", "_day", "k", "n")) for row in rows.to_pylist())


@pytest.mark.proves("howto-delivery.md#without-a-copy")
def test_no_file_is_read_or_written_but_metadata_and_the_cost_follows_the_change(
    world: CatalogHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(world, "t1", range(8), keys=2)
    world.serve()
    world.register()
    opened: list[str] = []
    for name in ("new_input", "new_output"):
        act = getattr(PyArrowFileIO, name)
        monkeypatch.setattr(PyArrowFileIO, name, lambda self, path, act=act: (opened.append(path), act(self, path))[1])
    fill(world, "t1", [8], keys=2)
    world.serve()
    world.register()
    assert [path for path in opened if path.endswith(".parquet")] == []
    assert not list((tmp_path / "warehouse").rglob("*.parquet"))
    opened.clear()
    world.register()
    assert not [path for path in opened if path.endswith(".avro") and "-m" in path] or len(opened) <= 4


@pytest.mark.long
def test_one_registrar_follows_replaced_windows_for_long_and_manifests_stay_few(world: CatalogHome) -> None:
    fill(world, "t1", range(2), keys=2)
    for number in range(40):
        if number % 3:
            world.publish(0, 1, [(0, "k00000", number)])
        else:
            fill(world, "t1", [2 + number // 3], keys=1)
        world.serve()
        world.keep_up()
        assert world.shows_newest()
    snapshot = world.table().metadata.current_snapshot()
    assert len(snapshot.manifests(world.table().io)) <= 16


@pytest.mark.proves("guarantees.md#registered-tables")
def test_a_snapshot_goes_before_the_files_that_it_names(world: CatalogHome, tmp_path: Path) -> None:
    now = utc_now()
    finish = threading.Event()
    finish.set()
    hours = []
    for hour in range(8):
        fill(world, "t1", [hour], keys=1)
        world.publish(0, 1, [(0, "k00000", hour)])
        world.serve()
        hours.append(now + timedelta(hours=hour))
        Registrar(world.settings, "p", "lake", world.asked(), now=lambda: hours[-1] + timedelta(seconds=1)).run(
            threading.Event(), finish
        )
    assert len(world.table().metadata.snapshots) == 1, "all but the current one were made more than five hours ago"
    named = {
        manifest.manifest_path for manifest in world.table().metadata.current_snapshot().manifests(world.table().io)
    }
    kept = {f"file://{path}" for path in (tmp_path / "warehouse").rglob("*-m*.avro")}
    assert named == kept
    assert world.shows_newest()


def test_a_stopped_streams_table_is_followed_too(world: CatalogHome) -> None:
    fill(world, "t1", range(60), keys=1)
    world.serve()
    write_intent(world.home, "stopped", by="test", now=utc_now())
    keeper = DeliveryKeeper(world.settings, lambda: ["p"], threading.Event())
    try:

        def is_registered() -> bool:
            keeper.look("p", utc_now())
            return read_note(world.home, "lake").position is not None

        wait_for("the registration", is_registered, 60, every=0.5, seen=lambda: read_note(world.home, "lake").error)
        assert world.shows_newest()
        assert not keeper.workers["p", "lake"].finish.is_set()
    finally:
        keeper.end()


@pytest.mark.proves("guarantees.md#registered-tables")
def test_while_a_catalog_does_not_answer_upkeep_keeps_the_files_that_it_names(
    world: CatalogHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, "t1", range(3), keys=1)
    world.serve()
    world.register()
    world.note_states()
    table = world.home.tables.served
    TableCare(table).set_retention(timedelta(0), timedelta(0))
    write_note(world.home, "lake", Note(position=read_note(world.home, "lake").position, failures=1, error="no answer"))
    world.publish(0, 3, [(0, "k00000", 9)])
    world.serve()
    code, done = run(world, "admin", "upkeep", "p")
    assert code == 0
    (served,) = (each for each in done if each["table"] == "served")
    assert served["deleted"] == 0
    assert "stay until a catalog" in served["note"]
    assert world.look() == (0, world.states[0])
    world.register()
    assert read_note(world.home, "lake").failures == 0
    _, done = run(world, "admin", "upkeep", "p")
    (served,) = (each for each in done if each["table"] == "served")
    assert served["deleted"] > 0
    assert world.shows_newest()


@pytest.mark.proves("howto-delivery.md#without-a-copy")
def test_what_another_program_changes_through_the_catalog_is_put_back(world: CatalogHome) -> None:
    fill(world, "t1", range(3), keys=2)
    world.serve()
    world.register()
    earlier = world.table().metadata.current_snapshot_id
    fill(world, "t1", range(3, 5), keys=2)
    world.serve()
    world.register()
    world.table().delete("k == 'k00000'")
    assert checked(world)["state"] == "differs"
    world.register()
    assert world.shows_newest()
    with world.table().manage_snapshots() as change:
        change.rollback_to_snapshot(earlier)
    world.register()
    assert world.shows_newest()
    assert checked(world)["state"] == "equal"


@pytest.mark.proves("guarantees.md#registered-tables")
def test_a_table_that_was_there_before_is_not_touched(world: CatalogHome) -> None:
    fill(world, "t1", range(2), keys=1)
    world.serve()
    catalog = load_catalog("default", **catalog_properties())
    catalog.create_namespace(world.namespace)
    other = catalog.create_table(f"{world.namespace}.totals", pa.schema([("x", pa.int64())]))
    other.append(pa.table({"x": [1]}))
    for again in (False, True):
        with pytest.raises(
            ConfigError, match="was there before, and is not made of files of p; nothing was registered"
        ):
            world.register(again=again)
    assert world.table().scan().to_arrow().to_pylist() == [{"x": 1}]


def test_a_table_of_another_home_is_named_anew_only_when_a_person_asks(world: CatalogHome, tmp_path: Path) -> None:
    fill(world, "t1", range(2), keys=1)
    world.serve()
    world.register()
    second = CatalogHome(tmp_path / "second")
    second.namespace, second.definition = world.namespace, world.definition
    fill(second, "t1", range(4), keys=2)
    second.serve()
    with pytest.raises(
        ConfigError, match=r"names files of another table .*; nothing was registered; .*--until-end --again"
    ):
        second.register()
    second.register(again=True)
    assert second.shows_newest()
    with pytest.raises(ConfigError, match="names files of another table"):
        world.register()


@pytest.mark.proves("howto-delivery.md#without-a-copy")
def test_a_switch_between_versions_gives_the_table_their_columns_in_one_snapshot(world: CatalogHome) -> None:
    fill(world, "t1", range(4), keys=3)
    world.serve()
    world.register()
    before = world.table().schema().column_names
    edits = {
        "transform.sql": ("count(*) AS n", "count(*) AS n, 'x' AS note"),
        "pipeline.yaml": ("columns: {n: {compare: exact}}", "columns: {n: {compare: exact}, note: {}}"),
    }
    new = SecondVersion(world, edits)
    for batch in range(4):
        wide = hour_rows(batch, 3)
        new.commit_wide(batch, batch + 1, wide, {"note": [f"n{n}" for _, _, n in wide]})
    serve(world, "p@v2")
    rebuild_served(new.home, new.definition)
    world.register()
    table = world.table()
    assert set(table.schema().column_names) == {*before, "note"}
    assert [row["note"] for row in table.scan().to_arrow().to_pylist()] == [
        f"n{row['n']}" for row in table.scan().to_arrow().to_pylist()
    ]
    old = table.metadata.snapshots[0].snapshot_id
    assert table.scan(snapshot_id=old).to_arrow().num_rows == 12
    serve(world, "p")
    world.serve()
    world.register()
    assert world.table().schema().column_names == before
    assert world.shows_newest()


def test_a_column_of_another_type_is_a_new_column_and_earlier_snapshots_go(world: CatalogHome) -> None:
    fill(world, "t1", range(2), keys=2)
    world.serve()
    world.register()
    served = Table(world.home.tables.served)
    rows = served.read()
    assert rows is not None
    n = rows.schema.get_field_index("n")
    served.overwrite(rows.set_column(n, "n", rows["n"].cast(pa.string())))
    world.register()
    table = world.table()
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == sorted(rows["n"].cast(pa.string()).to_pylist())
    assert len(table.metadata.snapshots) == 1


def test_values_of_every_type_are_read_as_they_are_stored(world: CatalogHome) -> None:
    fill(world, "t1", range(1), keys=1)
    world.serve()
    served = Table(world.home.tables.served)
    rows = served.read()
    assert rows is not None
    more = {
        "small": pa.array([-3], pa.int8()),
        "price": pa.array([Decimal("12.3400")], pa.decimal128(20, 4)),
        "at": pa.array([None], pa.timestamp("us", "UTC")),
        "local": pa.array([1_000_001], pa.timestamp("us")),
        "day": pa.array([3], pa.date32()),
        "ratio": pa.array([float("nan")], pa.float32()),
        "tags": pa.array([["a", None]], pa.list_(pa.string())),
        "counts": pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64())),
        "nested": pa.array([{"a": 1, "b": [{"c": "d"}]}]),
        "raw": pa.array([b"\x00\xff"], pa.binary()),
        "yes": pa.array([True]),
    }
    wide = rows
    for name, values in more.items():
        wide = wide.append_column(name, values)
    served.overwrite(wide)
    world.register()
    (found,) = world.table().scan().to_arrow().to_pylist()
    now = served.read()
    assert now is not None
    (stored,) = now.to_pylist()
    assert str(found) == str(stored)
    assert world.table().scan(row_filter="window_start < '1970-01-01T01:00:00+00:00'").to_arrow().num_rows == 1
    assert world.table().scan(row_filter="window_start >= '1970-01-01T01:00:00+00:00'").to_arrow().num_rows == 0


def registered_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ErasureWorld:
    """Make a world with a value to erase, whose `served` a catalog names."""
    use_catalog(monkeypatch, sqlite_catalog(tmp_path))
    world = ErasureWorld(tmp_path, monkeypatch)
    definition = world.hosts[0].definitions / "p" / "pipeline.yaml"
    sink = "\ndeliver: {lake: {to: iceberg, table: shop.totals, files: served, guarantee: effectively_once}}\n"
    definition.write_text(definition.read_text() + sink)
    assert world.rivertwice("admin", "rebuild", "p").exit_code == 0
    assert world.rivertwice("deliver", "run", "p", "--until-end").exit_code == 0
    return world


@pytest.mark.proves("howto-privacy.md#what-happens")
def test_an_erasure_lets_the_catalog_name_the_new_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = registered_world(tmp_path, monkeypatch)
    catalog = load_catalog("default", **catalog_properties())
    table = catalog.load_table("shop.totals")
    with table.manage_snapshots() as change:
        change.create_tag(table.metadata.current_snapshot_id, "month-end")
    assert SECRET in table.scan().to_arrow()["k"].to_pylist()
    outcome = world.erase()
    table = catalog.load_table("shop.totals")
    keys = table.scan().to_arrow()["k"].to_pylist()
    assert SECRET not in keys
    assert len(keys) == 8
    assert len(table.metadata.snapshots) == 1
    assert not [
        path for path in (tmp_path / "warehouse").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert not [line for line in outcome["left"] if "lake" in line or "shop.totals" in line]


def test_an_erasure_says_of_a_catalog_that_does_not_answer_how_it_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = registered_world(tmp_path, monkeypatch)
    use_catalog(monkeypatch, {"type": "rest", "uri": "http://127.0.0.1:9"})
    (left,) = (line for line in world.erase()["left"] if "shop.totals" in line)
    assert "until `rivertwice deliver run p --sink lake --until-end --again` is done" in left
    use_catalog(monkeypatch, sqlite_catalog(tmp_path))
    done = world.rivertwice("deliver", "run", "p", "--sink", "lake", "--until-end", "--again")
    assert done.exit_code == 0, done.output
    table = load_catalog("default", **catalog_properties()).load_table("shop.totals")
    assert SECRET not in table.scan().to_arrow()["k"].to_pylist()
    assert len(table.metadata.snapshots) == 1


def test_a_catalog_that_does_not_answer_is_an_error_with_the_remedy(
    world: CatalogHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, "t1", range(2), keys=1)
    world.serve()
    use_catalog(
        monkeypatch, {"type": "sql", "uri": "postgresql+psycopg://nobody@127.0.0.1:9/none", "warehouse": "file:///x"}
    )
    with pytest.raises(ServiceError, match="failed at registering"):
        world.register()


@pytest.mark.proves("howto-delivery.md#without-a-copy")
@pytest.mark.long
@pytest.mark.parametrize("reader", ["duckdb", "spark"])
def test_other_programs_read_the_rows_of_the_newest_version(
    reader: str, servers: Callable[[str], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _skip_if(iceberg.why_no_reader(reader))
    rest = servers("rest")
    use_catalog(monkeypatch, rest)
    world = CatalogHome(tmp_path)
    fill(world, "t1", range(30), keys=2)
    world.serve()
    world.register()
    world.publish(2, 4, [(2, "k00000", 7), (3, "new", 1)])
    world.begin("t2", ("t1", 25))
    fill(world, "t2", range(26, 28), keys=1)
    world.move_head("t2")
    world.serve()
    world.register()
    next_day(world)
    world.register("log")
    served: list[list[Any]] = [[hour * 3600, key, n] for (hour, key), n in world.served().items()]
    totals, log = world.asked().table, world.asked("log").table
    evening = "TIMESTAMPTZ '1970-01-01 20:00:00+00'" if reader == "duckdb" else "TIMESTAMP '1970-01-01 20:00:00'"
    found = iceberg.read_by(
        reader,
        rest["uri"],
        (totals, "true"),
        (totals, f"window_start >= {evening}"),
        (log, "_day = '1970-01-02'"),
        (log, "_day = '1970-01-01'"),
    )
    assert found[0] == sorted(served)
    assert found[1] == sorted(row for row in served if row[0] >= 20 * 3600)
    assert [row[1] for row in found[2]] == ["late"]
    assert len(found[3]) == changelog(world).num_rows - 1


@pytest.mark.proves("guarantees.md#registered-tables")
@pytest.mark.long
@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.faults)])
def test_a_command_killed_anywhere_leaves_a_version_and_the_next_one_the_newest(
    world: CatalogHome, tmp_path: Path, kills: int
) -> None:
    command = [sys.executable, "-m", "rivertwice.cli.main", "deliver", "run", "p", "--until-end", "--sink", "lake"]
    environment, chance, log = {**os.environ, **world.settings.to_env()}, random.Random(kills), tmp_path / "deliver.log"

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    fill(world, "t1", range(4), keys=3)
    world.serve()
    world.register()
    met = 0
    for number in range(kills):
        world.publish(0, 2, [(0, "k00000", number)])
        fill(world, "t1", [4 + number], keys=2)
        world.serve()
        world.note_states()
        process = start()
        before = sum(1 for _ in (tmp_path / "warehouse").rglob("*"))
        wanted, deadline = before + chance.randint(1, 4), time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if sum(1 for _ in (tmp_path / "warehouse").rglob("*")) >= wanted:
                break
            time.sleep(0.002)
        met += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        version, rows = world.look()
        assert rows == world.states[version]
    assert met > 0, log.read_text()[-3000:]
    assert start().wait(120) == 0, log.read_text()[-3000:]
    assert world.shows_newest()


def test_the_sinks_status_says_how_far_the_catalog_is(world: CatalogHome) -> None:
    fill(world, "t1", range(3), keys=2)
    world.serve()
    code, done = run(world, "deliver", "run", "p", "--sink", "lake", "--until-end")
    assert code == 0
    (delivered,) = done
    assert (delivered["steps"], delivered["records"]) == (1, 6)
    fill(world, "t1", range(3, 5), keys=2)
    code, status = run(world, "deliver", "status", "p")
    (lake,) = (each for each in status["p"] if each["sink"] == "lake")
    assert (lake["timeline"], lake["batch"], lake["lag_batches"], lake["error"]) == ("t1", 2, 2, None)
    world.serve()
    assert checked(world)["state"] == "unfinished"
    run(world, "deliver", "run", "p", "--sink", "lake", "--until-end")
    assert checked(world)["state"] == "equal"


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.proves("howto-delivery.md#without-a-copy")
def test_a_catalog_names_what_a_stream_of_spark_made(
    streamed_two_days: StreamedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_catalog(monkeypatch, sqlite_catalog(tmp_path))
    run = copy_run(streamed_two_days, tmp_path)
    project = tmp_path / "project"
    shutil.copytree(run.settings.definitions / PIPELINE, project / "pipelines" / PIPELINE)
    sinks = (
        "\ndeliver:\n  lake: {to: iceberg, table: air.delays, files: served, guarantee: effectively_once}\n"
        "  log: {to: iceberg, table: air.log, files: changelog, guarantee: effectively_once}\n"
    )
    file = project / "pipelines" / PIPELINE / "pipeline.yaml"
    file.write_text(file.read_text() + sinks)
    settings = replace(run.settings, project=project)
    options = ["--output", "json", "--project", str(project), "--home", str(settings.home)]

    def rivertwice(*words: str) -> Any:
        done = CliRunner().invoke(cli, [*options, *words])
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)

    rivertwice("admin", "rebuild", PIPELINE)
    rivertwice("deliver", "run", PIPELINE, "--until-end")
    catalog = load_catalog("default", **catalog_properties())
    for name, place in (("air.delays", run.home.tables.served), ("air.log", run.home.tables.changelog)):
        rows = Table(place).read()
        assert rows is not None
        assert rows.num_rows > 100
        found = catalog.load_table(name).scan().to_arrow()
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, rows.to_pylist()))
    (lake, log) = rivertwice("deliver", "status", PIPELINE)[PIPELINE]
    assert (lake["lag_batches"], log["lag_batches"]) == (0, 0)
    assert [each["state"] for each in rivertwice("deliver", "check", PIPELINE)] == ["equal", "equal"]
