"""Delivery: rows per second of a backlog, and the time from a batch's commit until a consumer has its rows.

`python -m lab.bench.delivery [SINK ...]`. A broker and a PostgreSQL server of its own; batches of 1, 100 and 10,000 rows.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, TopicPartition

from homes.delivery import DeliveryHome, fill
from homes.project import REPOSITORY
from lab.faults.postgres import missing, postgres_server
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.deliver.deliver import Deliverer
from rivertwice.local.broker import start_broker, stop_broker

SIZES = {1: (200, 30), 100: (100, 30), 10_000: (8, 10)}
"""Rows of a batch: (batches of the backlog, batches one by one)."""


def run_all(world: DeliveryHome, sink: str) -> tuple[float, int]:
    finish = threading.Event()
    finish.set()
    began = time.perf_counter()
    done = Deliverer(world.settings, "p", sink, world.definition.deliver[sink]).run(threading.Event(), finish)
    return time.perf_counter() - began, done.records


def one_by_one(
    world: DeliveryHome, sink: str, first: int, count: int, rows: int, seen: Callable[[], int]
) -> list[float]:
    """Return for each batch the milliseconds from its commit until its rows were seen."""
    stop = threading.Event()
    worker = threading.Thread(
        target=Deliverer(world.settings, "p", sink, world.definition.deliver[sink]).run, args=(stop, threading.Event())
    )
    worker.start()
    time.sleep(4.0)
    found = []
    for number in range(first, first + count):
        before = seen()
        fill(world, "t1", [number], rows)
        began = time.perf_counter()
        Deadline.after(60).wait_until(partial(_is_new, seen, before), every=0.001)
        found.append((time.perf_counter() - began) * 1000)
        time.sleep(0.15)
    stop.set()
    worker.join()
    return found


def kafka_seen(bootstrap: str, topic: str) -> tuple[Consumer, Callable[[], int]]:
    """Return a consumer, and how much of the topic readers of committed records may see."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "b", "isolation.level": "read_committed"})
    place = TopicPartition(topic, 0)
    return reader, lambda: int(reader.get_watermark_offsets(place, timeout=10)[1])


def _is_new(seen: Callable[[], int], before: int) -> bool:
    return seen() != before


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = Settings(project=REPOSITORY, home=folder / "broker")
        info = start_broker(broker)
        stack.callback(stop_broker, broker)
        sinks = ["kafka"]
        if missing() is None:
            address = os.environ["BENCH_PG"] = stack.enter_context(postgres_server())
            sinks.append("postgres")
        sinks = [sink for sink in sinks if sink in sys.argv[1:] or len(sys.argv) == 1]
        print("sink      rows/batch   backlog rows/s   commit to visible, ms: p50  p95")
        for rows, (backlog, single) in SIZES.items():
            for sink in sinks:
                name = f"{sink}-{rows}"
                asked = {
                    "kafka": f"to: kafka, topic: {name}, partitions: 1, guarantee: exactly_once",
                    "postgres": f"to: postgres, table: t{rows}, dsn_env: BENCH_PG, guarantee: effectively_once",
                }[sink]
                world = DeliveryHome(folder / name, f"{{{name}: {{{asked}}}}}", info.bootstrap)
                fill(world, "t1", range(backlog), rows)
                seconds, records = run_all(world, name)
                if sink == "kafka":
                    reader, seen = kafka_seen(info.bootstrap, name)
                    stack.callback(reader.close)
                else:
                    connection = stack.enter_context(psycopg.connect(address, autocommit=True))
                    query = f"SELECT coalesce(max(_step), 0) FROM t{rows}"

                    def seen(connection: psycopg.Connection = connection, query: str = query) -> int:
                        (step,) = connection.execute(query).fetchone() or (0,)
                        return int(step)

                took = one_by_one(world, name, backlog, single, rows, seen)
                p95 = statistics.quantiles(took, n=20)[18]
                print(
                    f"{sink:<9} {rows:>10,} {records / seconds:>16,.0f} {statistics.median(took):>27.0f} {p95:>5.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
