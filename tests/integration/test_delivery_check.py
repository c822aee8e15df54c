"""`rivertwice deliver check`: a sink that lacks rows, has others or too many is named, and what the command prints mends it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.catalog import load_catalog

from homes.delivery import DeliveryHome, fill
from lab.faults.postgres import missing, postgres_server
from rivertwice.cli.main import cli
from rivertwice.definition.delivery_section import IcebergDelivery, PostgresDelivery
from rivertwice.deliver.iceberg_sink import IcebergSink
from rivertwice.deliver.model import DeliveredColumns, DeliveredRecord, DeliveryBatch, Position, RowOrigin, StepPart
from rivertwice.deliver.postgres_sink import PostgresSink
from rivertwice.deliver.wire import plain, position_to_json
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import delete_records, delete_topic, end_offsets, producer

needs_postgres = pytest.mark.skipif(missing() is not None, reason=str(missing()))
POSTGRES = "{pg: {to: postgres, table: totals, dsn_env: TEST_PG, guarantee: effectively_once}}"
ICEBERG = "{ice: {to: iceberg, table: shop.totals, guarantee: effectively_once}}"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as address:
        yield address


@pytest.fixture
def address(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS totals, rivertwice_positions")
    monkeypatch.setenv("TEST_PG", server)
    return server


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    (tmp_path / "warehouse").mkdir()
    found = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    for name, value in found.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{name.upper()}", value)
    return found


class Tried:
    """A pipeline `p` with one sink, and its command line."""

    def __init__(self, world: DeliveryHome) -> None:
        self.world = world
        (self.sink,) = world.definition.deliver

    def run(self, words: str, code: int = 0) -> Any:
        found = CliRunner().invoke(cli, ["--output", "json", *shlex.split(words)], env=self.world.settings.to_env())
        assert found.exit_code == code, found.output
        return json.loads(found.stdout) if found.stdout else found.stderr

    def deliver(self) -> None:
        self.run("deliver run p --until-end")

    def check(self, code: int = 0) -> dict[str, Any]:
        (found,) = self.run("deliver check p", code)
        return dict(found)

    def mended(self, found: dict[str, Any]) -> dict[str, Any]:
        """Run the command that a check prints, and check again."""
        command = re.search(r"`rivertwice (deliver run [^`]*)`", found["told"])
        assert command is not None, found
        self.run(command[1])
        return self.check()


def counts(found: dict[str, Any]) -> tuple[int, ...]:
    return tuple(found[name] for name in ("served", "held", "missing", "extra", "different"))


def filled(world: DeliveryHome) -> Tried:
    """Two days of windows, a publication, a rewind behind it, and a row that waits."""
    fill(world, "t1", range(30), keys=3)
    world.publish(1, 3, [(1, "k00000", 7), (2, "new", 1)])
    tried = Tried(world)
    tried.deliver()
    world.begin("t2", ("t1", 25))
    world.move_head("t2")
    fill(world, "t2", range(26, 28), keys=2)
    tried.deliver()
    fill(world, "t2", [28], keys=2)  # it waits, and is not missing: what was not delivered is `deliver status`' subject
    return tried


def key(hour: int, name: str) -> str:
    start, end = (f"1970-01-{1 + at // 24:02}T{at % 24:02}:00:00Z" for at in (hour, hour + 1))
    return f'{{"pipeline":"p","window":["{start}","{end}"],"keys":{{"k":"{name}"}}}}'


@needs_postgres
@pytest.mark.proves("guarantees.md#all-sinks", "howto-delivery.md#check-a-sink")
def test_a_table_that_is_truncated_or_edited_is_named_and_mended(tmp_path: Path, address: str) -> None:
    tried = filled(DeliveryHome(tmp_path, POSTGRES))
    fine = tried.check()
    assert (fine["state"], *counts(fine)) == ("equal", 78, 78, 0, 0, 0)
    with psycopg.connect(address) as connection:
        connection.execute("UPDATE totals SET n = n + 1 WHERE _key = %s", (key(4, "k00001"),))
        connection.execute("DELETE FROM totals WHERE _key = %s", (key(27, "k00000"),))
        connection.execute("INSERT INTO totals (_key, n) VALUES (%s, 1)", (key(99, "k"),))
        connection.execute("""INSERT INTO totals (_key, n) VALUES ('{"pipeline":"q",', 1)""")  # another pipeline's
    edited = tried.check(code=3)
    assert (edited["state"], *counts(edited)) == ("differs", 78, 78, 1, 1, 1)
    assert edited["named"] == [["missing", key(27, "k00000")], ["extra", key(99, "k")], ["different", key(4, "k00001")]]
    assert tried.mended(edited)["state"] == "equal"
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT count(*) FROM totals WHERE _key LIKE '%\"q\"%'").fetchone() == (1,)
        connection.execute("TRUNCATE totals")
    empty = tried.check(code=3)
    assert (counts(empty)[1:3], len(empty["named"])) == ((0, counts(empty)[0]), 10)
    assert tried.mended(empty)["state"] == "equal"
    for statement in ("DROP TABLE totals", "DELETE FROM rivertwice_positions"):
        with psycopg.connect(address) as connection:
            connection.execute(statement)
        assert tried.mended(tried.check(code=3))["state"] == "equal"


@pytest.mark.proves("howto-delivery.md#check-a-sink")
def test_an_iceberg_table_that_is_edited_is_named_and_mended(tmp_path: Path, catalog: dict[str, str]) -> None:
    tried = filled(DeliveryHome(tmp_path, ICEBERG))
    assert (tried.check()["state"], *counts(tried.check())) == ("equal", 78, 78, 0, 0, 0)
    load_catalog("default", **catalog).load_table("shop.totals").delete("k = 'k00001'")
    edited = tried.check(code=3)
    assert counts(edited) == (78, 52, 26, 0, 0)
    assert tried.mended(edited)["state"] == "equal"


@pytest.mark.kafka
@pytest.mark.proves("guarantees.md#all-sinks", "howto-delivery.md#check-a-sink")
def test_a_topic_with_other_records_is_named_and_mended(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    sink = f"{{{topic}: {{to: kafka, topic: {topic}, partitions: 2, guarantee: exactly_once}}}}"
    tried = filled(DeliveryHome(tmp_path, sink, broker.bootstrap))
    settings = tried.world.settings
    fine = tried.check()
    assert (fine["state"], *counts(fine)) == ("equal", 78, 78, 0, 0, 0)
    foreign = producer(settings, transactional_id=f"foreign-{topic}")
    foreign.init_transactions(30)
    foreign.begin_transaction()  # records that were never committed count for nobody
    foreign.produce(topic, key=key(98, "k"), value=b"{}")
    assert foreign.flush(30) == 0
    foreign.abort_transaction(30)
    assert tried.check()["state"] == "equal"
    window = {"window": ["1970-01-05T03:00:00Z", "1970-01-05T04:00:00Z"], "keys": {"k": "k"}, "values": {"n": 1}}
    foreign.begin_transaction()
    foreign.produce(topic, key=key(99, "k"), value=json.dumps({"op": "emit", **window}).encode())
    foreign.commit_transaction(30)
    extra = tried.check(code=3)
    assert counts(extra) == (78, 79, 0, 1, 0)
    assert f"delete topic {topic} first" in extra["told"]
    delete_topic(settings, topic)
    assert tried.mended(extra)["state"] == "equal"
    delete_records(settings, topic, {partition: end - 5 for partition, end in end_offsets(settings, topic).items()})
    cut = tried.check(code=3)
    assert cut["missing"] > 0
    assert "Kafka has deleted the oldest records" in cut["told"]
    assert tried.mended(cut)["state"] == "equal"


@needs_postgres
def test_what_was_refused_is_left_out_and_what_cannot_be_compared_says_so(tmp_path: Path, address: str) -> None:
    world = DeliveryHome(tmp_path, POSTGRES)
    tried = Tried(world)
    assert tried.check()["state"] == "empty"
    world.commit("t1", 0, 1, [(0, "a\x00b", 1), (0, "c", 2)])
    tried.deliver()
    found = tried.check()
    assert (found["state"], found["set_aside"], *counts(found)) == ("equal", 1, 1, 1, 0, 0, 0)
    with psycopg.connect(address) as connection:
        (stored,) = connection.execute("SELECT position FROM rivertwice_positions").fetchone() or ("",)
        names = {name: value for name, value in json.loads(stored).items() if name != "format"}
        part = StepPart(Position(**{**names, "batch": 1}), 1, "x")
        connection.execute(
            "UPDATE rivertwice_positions SET position = %s", (position_to_json(Position(**names, part=part)),)
        )
    assert tried.check()["state"] == "unfinished"


SHAPE = DeliveredColumns("p", "s", "e", ("k",), ("f", "d", "m", "t", "day", "raw", "yes", "n"))
TYPES = pa.schema(
    [
        ("s", pa.timestamp("us", "UTC")), ("e", pa.timestamp("us", "UTC")), ("k", pa.string()), ("f", pa.float32()),
        ("d", pa.float64()), ("m", pa.decimal128(12, 4)), ("t", pa.timestamp("us", "UTC")), ("day", pa.date32()),
        ("raw", pa.binary()), ("yes", pa.bool_()), ("n", pa.int64()),
    ]
)  # fmt: skip
AT = datetime(2013, 7, 1, 5, 6, 7, 123456, UTC)


def iceberg() -> IcebergSink:
    return IcebergSink("p", "x", IcebergDelivery(to="iceberg", table="n.t", guarantee="effectively_once"))


def postgres() -> PostgresSink:
    asked = PostgresDelivery(to="postgres", table="totals", dsn_env="TEST_PG", guarantee="effectively_once")
    return PostgresSink("p", "x", asked)


@pytest.mark.parametrize("make", [iceberg, pytest.param(postgres, marks=needs_postgres)])
def test_a_value_of_each_type_is_equal_to_itself_behind_each_sink(
    make: Callable[[], Any], catalog: dict[str, str], request: pytest.FixtureRequest
) -> None:
    if make is postgres:
        request.getfixturevalue("address")
    single = float(np.float32(0.1))
    rows = [
        (AT, AT, "ä'\"\\", single, 0.1, Decimal("1.5000"), AT, date(2013, 7, 1), b"\x00\xff", True, -(2**63)),
        (AT, AT, "nan", float("nan"), float("inf"), Decimal("-0.0001"), AT, date(1, 1, 1), b"", False, 2**63 - 1),
        (AT, AT, "null", *[None] * 8),
    ]
    keys = [f'{{"pipeline":"p","window":[{number}]}}' for number in range(len(rows))]
    origin = RowOrigin("t1", 0, None)
    records = [DeliveredRecord("emit", name, row, origin) for name, row in zip(keys, rows, strict=True)]
    sink = make()
    assert sink.open(SHAPE, TYPES) is None
    sink.deliver(DeliveryBatch(SHAPE, "x", records, None, Position("t1", 0, 1, "b", 1)))
    sink.close()
    with sink.inspect() as holding:
        assert holding.position == Position("t1", 0, 1, "b", 1)
        held = dict(holding.rows(SHAPE, TYPES))
    assert held == {name: [plain(value) for value in row] for name, row in zip(keys, rows, strict=True)}
