"""S26, S27: a real PostgreSQL, Debezium's connector as docker/debezium configures it, killed on the way, and the tables made of its topics."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition

from homes.delivery import read_topic
from homes.project import EXAMPLES, REPOSITORY, TO_RUN, make_project
from lab.faults.postgres import missing as no_server
from lab.faults.postgres import postgres_server
from rivertwice.core.ports import held_ports
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import end_offsets, ensure_topic
from rivertwice.timeline.served import rebuild_served
from running.waiting import wait_for
from running.warm_spark import run_command_warm, run_driver_warm
from servers.connect_worker import ConnectWorker
from servers.connect_worker import missing as no_worker

MISSING = no_server() or no_worker()
pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
CONNECTOR = REPOSITORY / "docker" / "debezium" / "prod-db.json"
PASSWORD = "c4n4ry-0f-the-d4t4b4se"
TABLES = {
    "prod_orders": "SELECT id, product_id, quantity FROM orders ORDER BY id",
    "prod_products": "SELECT id, name FROM products ORDER BY id",
}
PATIENCE_S = 120


@pytest.fixture(scope="module")
def database() -> Iterator[tuple[str, int]]:
    """The database `prod`, its tables with their first rows, and the connector's user with the rights it needs and no more."""
    with held_ports(1) as (port,), postgres_server(port) as server:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("CREATE DATABASE prod")
            connection.execute("CREATE DATABASE copies")
            connection.execute(f"CREATE ROLE debezium LOGIN REPLICATION PASSWORD '{PASSWORD}'")
        address = server.replace("dbname=postgres", "dbname=prod")
        with psycopg.connect(address) as connection:
            connection.execute("CREATE TABLE products (id bigint PRIMARY KEY, name text)")
            connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, product_id bigint, quantity int)")
            connection.execute("CREATE TABLE secrets (id bigint PRIMARY KEY)")
            connection.execute("INSERT INTO products SELECT n, 'product ' || n FROM generate_series(1, 10) n")
            connection.execute("INSERT INTO orders SELECT n, n % 10 + 1, n FROM generate_series(1, 200) n")
            connection.execute("GRANT SELECT ON orders, products TO debezium")
            connection.execute("CREATE PUBLICATION dbz_publication FOR TABLE orders, products")
        yield address, port


def work(address: str, first: int, seconds: float) -> int:
    """Change orders and products for a while, a transaction each, renamed keys and a rollback among them; return how many."""
    deadline, done = Deadline.after(seconds), 0
    with psycopg.connect(address) as connection:
        while deadline.left():
            number = first + done
            connection.execute("INSERT INTO orders VALUES (%s, %s, 1)", (number, number % 10 + 1))
            connection.execute("UPDATE orders SET quantity = quantity + 1 WHERE id = %s", (done % 200 + 1,))
            if done % 5 == 0:
                connection.execute("DELETE FROM orders WHERE id = %s", (number - 3,))
            if done % 7 == 0:
                connection.execute("UPDATE orders SET id = %s WHERE id = %s", (number + 100_000, number))
                connection.execute("UPDATE products SET name = name || '!' WHERE id = %s", (done % 10 + 1,))
            if done % 11 == 0:
                connection.rollback()
            else:
                connection.commit()
            done += 1
            time.sleep(0.02)
    return done


def wait_for_end(settings: Settings, address: str, marker: int, worker: ConnectWorker) -> dict[str, int]:
    """Write a row to both tables and delete it, and wait until that stands at the topics' ends; return how many records there are."""
    found: dict[str, int] = {}
    for name in ("products", "orders"):
        with psycopg.connect(address) as connection:
            connection.execute(f"INSERT INTO {name} (id) VALUES (%s)", (marker,))
            connection.execute(f"DELETE FROM {name} WHERE id = %s", (marker,))
        topic = f"prod-db.public.{name}"

        def is_marked(topic: str = topic) -> bool:
            return last_record(settings, topic) == ({"id": marker}, None)

        wait_for(
            f"the marker in {topic}",
            is_marked,
            PATIENCE_S,
            every=0.2,
            seen=lambda: f"{worker.state()}: {worker.log.read_text()[-3000:]}",
        )
        found[name] = sum(end_offsets(settings, topic).values())
    return found


def last_record(settings: Settings, topic: str) -> tuple[Any, bytes | None] | None:
    """Return key and value of a topic's newest record."""
    end = end_offsets(settings, topic)[0]
    reader = Consumer({"bootstrap.servers": settings.bootstrap_servers(), "group.id": "test"})
    try:
        reader.assign([TopicPartition(topic, 0, max(end - 1, 0))])
        message = reader.poll(10) if end else None
    finally:
        reader.close()
    return None if message is None or message.error() else (json.loads(message.key()), message.value())


def stream(settings: Settings, name: str, log: Path) -> None:
    run_driver_warm(settings, name, log)


def table(address: str, query: str) -> list[dict[str, Any]]:
    with psycopg.connect(address, row_factory=psycopg.rows.dict_row) as connection:
        return connection.execute(query).fetchall()


def view(settings: Settings, name: str) -> list[dict[str, Any]]:
    own = {"prod_orders": ("id", "product_id", "quantity"), "prod_products": ("id", "name")}[name]
    rows = run_command_warm(settings, "show", name, "--by-key", "--limit", "100000")["rows"]
    return sorted(({field: row[field] for field in own} for row in rows), key=lambda row: row["id"])


def test_a_database_and_its_tables_by_the_log_are_one(
    tmp_path: Path, broker: BrokerInfo, database: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, port = database
    examples = {name: EXAMPLES / name for name in TABLES}
    settings = make_project(tmp_path, examples, links=TO_RUN, bootstrap=broker.bootstrap)
    monkeypatch.setenv("COPIES", address.replace("dbname=prod", "dbname=copies"))
    with (settings.definitions / "prod_orders" / "pipeline.yaml").open("a") as file:
        copies = {"dsn_env": "COPIES", "guarantee": "effectively_once"}
        sinks = {
            "cache": {"to": "postgres", "table": "orders", "rows": "newest", **copies},
            "history": {"to": "postgres", "table": "history", **copies},
            "search": {"to": "kafka", "topic": "search-orders", "guarantee": "exactly_once"},
        }
        file.write(f"\ndeliver: {json.dumps(sinks)}\n")
    for name in ("orders", "products"):
        ensure_topic(settings, f"prod-db.public.{name}", 1)
    env = {
        "PROD_DB_HOST": "127.0.0.1",
        "PROD_DB_PORT": str(port),
        "PROD_DB_USER": "debezium",
        "PROD_DB_PASSWORD": PASSWORD,
    }
    worker = ConnectWorker(broker.bootstrap, tmp_path / "connect", CONNECTOR, env)
    worker.start()
    try:
        # The snapshot, then the tail; the stream reads what is there of both.
        before = wait_for_end(settings, address, 7_000_001, worker)
        assert before["orders"] >= 200
        assert before["products"] == 13  # with the marker: insert, delete, tombstone
        stream(settings, "prod_orders", tmp_path / "driver.log")
        run_command_warm(settings, "deliver", "run", "prod_orders", "--until-end")
        copied = "SELECT id, product_id, quantity FROM orders ORDER BY id"
        assert len(table(os.environ["COPIES"], copied)) >= 200
        work(address, 1000, 3)
        # Killed in the middle of changes: the slot holds what it has not confirmed, and it is told again.
        worker.kill()
        changed = work(address, 10_000, 1)
        worker.start()
        changed += work(address, 20_000, 2)
        after = wait_for_end(settings, address, 7_000_002, worker)
        assert after["orders"] > before["orders"] + changed
    finally:
        worker.kill()
    for name, query in TABLES.items():
        stream(settings, name, tmp_path / "driver.log")
        rebuild_served(settings.pipeline(name), load_definition(settings.definitions / name))
        assert view(settings, name) == table(address, query)
    balance = run_command_warm(settings, "reconcile", "prod_orders")["balance"]["total"]
    assert (balance["unexplained"], balance["dead"], balance["late"]) == (0, 0, 0)
    assert balance["read"] == after["orders"]
    # S26: the same changes where others read them: the table itself, its history, and a topic.
    run_command_warm(settings, "deliver", "run", "prod_orders", "--until-end")
    newest = "SELECT DISTINCT ON (id) * FROM history ORDER BY id, record DESC"
    kept = f"SELECT id, product_id, quantity FROM ({newest}) newest WHERE NOT deleted ORDER BY id"
    wanted = table(address, TABLES["prod_orders"])
    assert table(os.environ["COPIES"], kept) == wanted
    assert table(os.environ["COPIES"], copied) == wanted
    told = [{**record["keys"], **record["values"]} for record in read_topic(settings, "search-orders")]
    found = {row["id"]: row for row in sorted(told, key=lambda row: (row["record"], row["row"]))}
    fields = ("id", "product_id", "quantity")
    assert [{name: found[key][name] for name in fields} for key in sorted(found) if not found[key]["deleted"]] == wanted
    assert PASSWORD not in worker.log.read_text()
