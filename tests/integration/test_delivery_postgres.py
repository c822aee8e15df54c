"""Delivery to a real PostgreSQL: the table is what is served, whoever is killed, and of two deliverers one is heard."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from homes.delivered_versions import SecondVersion, serve
from homes.delivery import DeliveryHome, fill, hour_rows
from homes.ledger import NOW
from lab.faults.postgres import missing, postgres_server
from rivertwice.core.errors import ConfigError, LedgerError, LostRaceError, ServiceError
from rivertwice.core.plain import to_plain
from rivertwice.core.waits import Deadline
from rivertwice.definition.delivery_section import PostgresDelivery
from rivertwice.deliver.aside import ask
from rivertwice.deliver.deliver import Deliverer
from rivertwice.deliver.model import DeliveryBatch, Position
from rivertwice.deliver.postgres_sink import PostgresSink
from rivertwice.deliver.source import StoredSource
from rivertwice.deliver.status import view_refused
from running.waiting import wait_for

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
SINK = "{pg: {to: postgres, table: totals, dsn_env: TEST_PG, guarantee: effectively_once}}"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as address:
        yield address


@pytest.fixture
def address(server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database of the test's own."""
    name = f"d{abs(hash(request.node.name)) % 10**9}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    found = server.replace("dbname=postgres", f"dbname={name}")
    monkeypatch.setenv("TEST_PG", found)
    yield found
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def world(tmp_path: Path, address: str) -> DeliveryHome:
    return DeliveryHome(tmp_path, SINK)


def deliver(world: DeliveryHome, *, again: bool = False):
    finish = threading.Event()
    finish.set()
    asked = world.definition.deliver["pg"]
    return Deliverer(world.settings, "p", "pg", asked).run(threading.Event(), finish, again=again)


def table(address: str) -> dict[tuple[int, str], int]:
    with psycopg.connect(address) as connection:
        rows = connection.execute("SELECT window_start, k, n FROM totals").fetchall()
    found = {(int(start.timestamp()) // 3600, key): value for start, key, value in rows}
    assert len(found) == len(rows)
    return found


def position(address: str) -> str:
    with psycopg.connect(address) as connection:
        return connection.execute("SELECT position FROM rivertwice_positions").fetchone()[0]


@pytest.mark.proves("guarantees.md#postgresql-sink")
def test_the_table_is_what_is_served_over_publications_and_restores(world: DeliveryHome, address: str) -> None:
    fill(world, "t1", range(4), keys=3)
    assert deliver(world).records == 12
    assert table(address) == world.served()
    world.publish(1, 3, [(1, "k00000", 7), (2, "new", 1)])
    deliver(world)
    assert table(address) == world.served()
    world.begin("t2", ("t1", 3))
    world.move_head("t2")
    fill(world, "t2", [4], keys=2)
    assert deliver(world).records == 2
    world.begin("t3", ("t1", 1))
    fill(world, "t3", range(2, 6), keys=1)
    world.move_head("t3")
    deliver(world)
    assert table(address) == world.served()
    types = columns_of(address)
    with psycopg.connect(address) as connection:
        stamps = connection.execute("SELECT _timeline, _batch, _backfill FROM totals WHERE k = 'new'").fetchall()
    assert types["window_start"] == "timestamp with time zone"
    assert types["n"] == "bigint"
    assert stamps == [(None, None, "bf-2")]


def columns_of(address: str) -> dict[str, str]:
    with psycopg.connect(address) as connection:
        rows = connection.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'totals'"
        ).fetchall()
    return {name: kind for name, kind in rows if not name.startswith("_")}


@pytest.mark.proves("howto-delivery.md#postgresql")
def test_a_switch_between_versions_gives_the_table_their_columns(world: DeliveryHome, address: str) -> None:
    fill(world, "t1", range(4), keys=3)
    served = world.served()
    deliver(world)
    before = columns_of(address)
    edits = {
        "transform.sql": ("count(*) AS n", "count(*) AS n, 'x' AS note"),
        "pipeline.yaml": ("columns: {n: {compare: exact}}", "columns: {n: {compare: exact}, note: {}}"),
    }
    new = SecondVersion(world, edits)
    for batch in range(4):
        rows = hour_rows(batch, 3)
        new.commit_wide(batch, batch + 1, rows, {"note": [f"n{n}" for _, _, n in rows]})
    serve(world, "p@v2")
    deliver(world)
    assert table(address) == new.served()
    assert columns_of(address) == {**before, "note": "text"}
    with psycopg.connect(address) as connection:
        notes = connection.execute("SELECT n, note FROM totals").fetchall()
    assert len(notes) == 12
    assert all(note == f"n{n}" for n, note in notes)

    with psycopg.connect(address) as connection:  # another pipeline's row: its columns may not go
        connection.execute("""INSERT INTO totals (_key) VALUES ('{"pipeline":"q"}')""")
    serve(world, "p")
    with pytest.raises(ConfigError, match="rows of another pipeline than p"):
        deliver(world)
    assert columns_of(address) == {**before, "note": "text"}
    with psycopg.connect(address) as connection:
        connection.execute("""DELETE FROM totals WHERE _key = '{"pipeline":"q"}'""")
    deliver(world)
    assert table(address) == served == world.served()
    assert columns_of(address) == before


def test_the_table_of_a_stream_of_updates_has_every_windows_newest_row(tmp_path: Path, address: str) -> None:
    world = DeliveryHome(tmp_path, SINK, emit="updates")
    world.commit("t1", 0, 0, [(0, "a", 1), (1, "a", 1)])
    world.commit("t1", 1, 1, [(0, "a", 2), (0, "b", 1)])
    world.commit("t1", 2, 1, [(1, "a", 2), (2, "a", 1)])
    assert deliver(world).records == 4  # of three batches in one step the last row of each window alone
    assert table(address) == world.shown() == {(0, "a"): 2, (0, "b"): 1, (1, "a"): 2, (2, "a"): 1}
    world.publish(0, 1, [(0, "a", 3)])
    assert deliver(world).records == 2
    assert table(address) == world.shown() == {(0, "a"): 3, (1, "a"): 2, (2, "a"): 1}
    world.begin("t2", ("t1", 1))  # a rewind: hours 1 and 2 are open, as they were, and hour 0 stays published
    world.move_head("t2")
    world.commit("t2", 2, 2, [(1, "a", 5)])
    deliver(world)
    assert table(address) == world.shown() == {(0, "a"): 3, (1, "a"): 5}


@pytest.mark.proves("guarantees.md#postgresql-sink")
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.faults)])
def test_a_killed_deliverer_leaves_rows_and_position_together(
    world: DeliveryHome, address: str, tmp_path: Path, kills: int
) -> None:
    batches, keys = 40, 750
    fill(world, "t1", range(batches), keys)
    command = [sys.executable, "-m", "rivertwice.cli.main", "deliver", "run", "p", "--until-end"]
    environment = {**os.environ, **world.settings.to_env()}
    chance = random.Random(3)
    log = tmp_path / "deliver.log"
    met = 0
    with psycopg.connect(address, autocommit=True) as watcher:
        ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rivertwice%%' AND query LIKE %s"
        for _ in range(3 * kills):
            if met == kills:
                break
            with log.open("ab") as out:
                process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
            statement = chance.choice(["COPY%", "COPY%", 'INSERT INTO "totals"%', "UPDATE%"])
            deadline = Deadline.after(60)
            while process.poll() is None and deadline.left():
                if watcher.execute(f"{ours} AND xact_start IS NOT NULL", (statement,)).fetchone()[0]:
                    met += 1
                    break
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            wait_for(  # the server's part of a dead client ends by itself
                "the end of the dead client's session", lambda: not watcher.execute(ours, ("%",)).fetchone()[0], 60
            )
            stored = position(address)
            exists = watcher.execute("SELECT to_regclass('totals') IS NOT NULL").fetchone()[0]
            rows = watcher.execute("SELECT count(*) FROM totals").fetchone()[0] if exists else 0
            delivered = 0 if not stored else int(stored.partition('"batch":')[2].partition(",")[0]) + 1
            assert rows == delivered * keys, (stored, rows)
    with log.open("ab") as out:
        assert subprocess.run(command, env=environment, stdout=out, stderr=out, check=False).returncode == 0
    assert table(address) == world.served()
    assert met == kills, "too few kills met an open transaction"


@pytest.mark.proves("guarantees.md#postgresql-sink")
def test_of_two_deliverers_with_one_position_the_second_takes_nothing(world: DeliveryHome, address: str) -> None:
    fill(world, "t1", range(1), keys=1)
    source = StoredSource(world.home)
    view = source.look(None)
    shape, schema = source.shape(view), source.schema()
    delivery = world.definition.deliver["pg"]
    assert isinstance(delivery, PostgresDelivery)
    first, second = (PostgresSink("p", "pg", delivery) for _ in range(2))
    assert first.open(shape, schema) is None
    assert second.open(shape, schema) is None
    after = Position("t1", 0, 1, "x", 1)
    first.deliver(DeliveryBatch(shape, "pg", (), None, after))
    with pytest.raises(LostRaceError, match="another deliverer was here"):
        second.deliver(DeliveryBatch(shape, "pg", (), None, Position("t1", 0, 1, "x", 1)))
    assert second.open(shape, schema) == after
    first.close()
    second.close()


@pytest.mark.proves("guarantees.md#postgresql-sink")
def test_a_table_that_is_gone_or_another_is_refused_and_again_fills_it(world: DeliveryHome, address: str) -> None:
    fill(world, "t1", range(2), keys=2)
    deliver(world)
    with psycopg.connect(address) as connection:
        connection.execute("DROP TABLE totals")
    fill(world, "t1", [2], keys=2)
    with pytest.raises(LedgerError, match="--again"):
        deliver(world)
    assert deliver(world, again=True).records == 6
    assert table(address) == world.served()
    with psycopg.connect(address) as connection:
        connection.execute("ALTER TABLE totals ALTER COLUMN n TYPE integer")
    with pytest.raises(ConfigError, match="n is integer, not bigint"):
        deliver(world)


@pytest.mark.proves("guarantees.md#all-sinks")
def test_a_lost_position_is_not_taken_for_a_new_sink(world: DeliveryHome, address: str) -> None:
    fill(world, "t1", range(2), keys=2)
    deliver(world)
    with psycopg.connect(address) as connection:
        connection.execute("DELETE FROM rivertwice_positions")
    with pytest.raises(LedgerError, match="holds no position, but 1 steps were delivered"):
        deliver(world)


@pytest.mark.proves("guarantees.md#postgresql-sink")
def test_a_database_that_is_put_back_from_a_backup_gets_what_it_lost(world: DeliveryHome, address: str) -> None:
    fill(world, "t1", range(2), keys=3)
    deliver(world)
    tables = ("totals", "rivertwice_positions")
    with psycopg.connect(address) as connection:
        for name in tables:
            connection.execute(f"CREATE TABLE kept_{name} AS TABLE {name}")
    fill(world, "t1", range(2, 5), keys=3)
    world.publish(0, 1, [(0, "k00000", 9)])
    deliver(world)
    with psycopg.connect(address) as connection:
        for name in tables:
            connection.execute(f"TRUNCATE {name}")
            connection.execute(f"INSERT INTO {name} TABLE kept_{name}")
    assert len(table(address)) == 6
    deliver(world)
    assert table(address) == world.served()


@pytest.mark.proves("guarantees.md#postgresql-sink")
def test_values_that_postgres_refuses_are_set_aside(world: DeliveryHome, address: str) -> None:
    draw = random.Random(3)
    long = "".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(4_000))  # more than an index takes, also packed
    hostile = [(0, "a\x00b", 1), (0, long, 2), (0, "limit", 2**62), (0, "trigger", 13)]
    world.commit("t1", 0, 1, [(0, "k", 1)])
    deliver(world)
    with psycopg.connect(address) as connection:
        connection.execute("ALTER TABLE totals ADD CONSTRAINT small CHECK (n < 1000000000)")
        connection.execute(
            "CREATE FUNCTION unlucky() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN IF NEW.n = 13 THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END$$"
        )
        connection.execute("CREATE TRIGGER t BEFORE INSERT ON totals FOR EACH ROW EXECUTE FUNCTION unlucky()")
    plain = [(0, f"k{number:03d}", number + 100) for number in range(300)]
    world.commit("t1", 1, 1, [*plain[:150], *hostile, *plain[150:]])
    delivered = deliver(world)
    assert (delivered.records, delivered.refused) == (300, 4)
    assert json.loads(position(address))["batch"] == 1
    lacking = {(hour, key) for hour, key, _ in hostile}
    assert table(address) == {at: n for at, n in world.served().items() if at not in lacking}
    reasons = sorted(one["reason"] for one in to_plain(view_refused(world.home, "pg")))
    assert [reason.partition(":")[0] for reason in reasons] == [
        "CheckViolation", "DataError", "ProgramLimitExceeded", "RaiseException",
    ]  # fmt: skip
    with psycopg.connect(address) as connection:
        connection.execute("ALTER TABLE totals DROP CONSTRAINT small")
    limit = next(one["key"] for one in to_plain(view_refused(world.home, "pg")) if "limit" in one["key"])
    ask(world.home, "pg", "retry", [limit], why="", by="", now=NOW)
    assert deliver(world).refused == 3
    assert table(address)[0, "limit"] == 2**62


def test_a_constraint_that_is_checked_at_the_commit_names_its_row_too(world: DeliveryHome, address: str) -> None:
    world.commit("t1", 0, 1, [(0, "k", 1)])
    deliver(world)
    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE allowed (n bigint PRIMARY KEY)")
        connection.execute("INSERT INTO allowed VALUES (1), (3)")
        connection.execute(
            "ALTER TABLE totals ADD FOREIGN KEY (n) REFERENCES allowed (n) DEFERRABLE INITIALLY DEFERRED"
        )
    world.commit("t1", 1, 2, [(1, "a", 3), (1, "b", 4)])
    assert deliver(world).refused == 1
    assert table(address) == {(0, "k"): 1, (1, "a"): 3}


def test_a_table_without_rights_stops_the_sink_and_sets_nothing_aside(world: DeliveryHome, address: str) -> None:
    world.commit("t1", 0, 1, [(0, "k", 1)])
    deliver(world)
    with psycopg.connect(address) as connection:
        connection.execute("ALTER TABLE totals ADD COLUMN extra text NOT NULL DEFAULT 'x'")
    world.commit("t1", 1, 2, [(1, "k", 2)])
    with pytest.raises(ConfigError, match="extra"):
        deliver(world)
    assert to_plain(view_refused(world.home, "pg")) == []


@pytest.mark.proves("security.md#tokens-instead-of-passwords")
def test_no_address_and_no_server_are_named_without_the_password(
    world: DeliveryHome, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit("t1", 0, 1, [(0, "k", 1)])
    monkeypatch.setenv("TEST_PG", "host=127.0.0.1 port=1 user=u password=hunter2-canary dbname=x")
    with pytest.raises(ServiceError) as caught:
        deliver(world)
    assert "canary" not in str(caught.value)
    monkeypatch.delenv("TEST_PG")
    with pytest.raises(ConfigError, match="TEST_PG is not set"):
        deliver(world)
