"""S19: from a transaction's record time to its visible alert, at 1,000 transactions a second. Report only.

`python -m bench.alerts [--seconds 60] [--rate 1000]`. Two ways of one pipeline, `fraud_scores`, beside each other over the same records:
the fast path (score over 0.9: stateless, real-time mode, Kafka to Kafka), and the stream (count of five minutes: state per card,
micro-batches with a trigger of 0 s, delivered to Kafka exactly once). One consumer of each topic, committed records only, notes when it
saw an alert; the record's own timestamp is when the producer made it. All on this one machine, so one clock.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from rivertwice.config import Settings
from rivertwice.delivery.deliver import Deliverer
from rivertwice.fast.compare import compare_fast
from rivertwice.fast.runs import committed_offsets
from rivertwice.log import kafka
from rivertwice.log.broker import start_broker, stop_broker
from rivertwice.pipeline.definition import load_definition
from rivertwice.pipeline.engine import spark_session

PROJECT = Path(__file__).resolve().parents[1]
NAME = "fraud_scores"
DELIVER = "deliver:\n  counts: {to: kafka, topic: fraud-counts, partitions: 4, guarantee: exactly_once}\nstream: {trigger: 0 s}\n"
WARM_S = 15.0
SHARE = 0.05
CARDS = 2_000


@dataclass
class Watch:
    """What a consumer saw: transaction to seconds from its record time, and how often it saw it."""

    consumer: Consumer
    field_of: str
    seen: dict[str, float] = field(default_factory=dict)
    again: int = 0

    def follow(self, stop: threading.Event, made: dict[str, float]) -> None:
        """Note each row as it comes."""
        while not stop.is_set():
            for message in self.consumer.consume(500, 0.05):
                now = time.time()
                if message.error() is not None:
                    continue
                body = json.loads(message.value() or b"{}")
                tx = (body.get("values") or body).get(self.field_of)
                if tx in self.seen:
                    self.again += 1
                elif tx in made:
                    self.seen[tx] = now - made[tx]


@contextmanager
def running(settings: Settings, module: str, log: Path) -> Iterator[None]:
    """Run one of the pipeline's processes, and end it by SIGTERM."""
    env = {**os.environ, **settings.to_env()}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--pipeline", NAME], env=env, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def produce(settings: Settings, seconds: float, rate: int, made: dict[str, float]) -> tuple[int, int]:
    """Send `rate` transactions a second, spread over each; return how many were sent and how many of them score above 0.9."""
    config = {
        "bootstrap.servers": settings.bootstrap_servers(),
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 1,
    }
    client, chance = Producer(config), random.Random("alerts")
    began, sent, hot = time.time(), 0, 0
    while sent < seconds * rate:
        due = min(int((time.time() - began) * rate), int(seconds * rate))
        for number in range(sent, due):
            now = time.time()
            score = chance.uniform(0.901, 1) if chance.random() < SHARE else chance.uniform(0, 0.9)
            hot += score > 0.9
            at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            card = f"c{chance.randrange(CARDS)}"
            body = {"tx": f"t{number}", "card_id": card, "amount": 10, "score": score, "at": at}
            made[f"t{number}"] = now
            client.produce("transactions", json.dumps(body).encode(), card, timestamp=int(now * 1000))
        sent = due
        client.poll(0.001)
    client.flush(30)
    return sent, hot


def consumer_of(settings: Settings, topic: str, partitions: int) -> Consumer:
    """Return a reader of a topic's committed records, from its end on, that waits for nothing."""
    kafka.ensure_topic(settings, topic, partitions)
    config = {
        "bootstrap.servers": settings.bootstrap_servers(),
        "group.id": f"bench-{topic}",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 10,
        "auto.offset.reset": "error",
    }
    reader = Consumer(config)
    reader.assign([TopicPartition(topic, part, end) for part, end in kafka.end_offsets(settings, topic).items()])
    return reader


def told(name: str, seconds: list[float], wanted: int, again: int) -> str:
    """Return one row of the table, in milliseconds."""
    if len(seconds) < 2:
        return f"{name:<34} {len(seconds)} seen of {wanted}"
    cuts = statistics.quantiles([1000 * each for each in seconds], n=100)
    shown = "  ".join(f"{cuts[at]:8.0f}" for at in (49, 94, 98))
    return f"{name:<34} {shown}  {1000 * max(seconds):8.0f}   {len(seconds)} of {wanted}, {again} again"


def main() -> None:
    """Run both ways and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.alerts", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rivertwice-alerts-") as folder:
        settings = prepare(Path(folder))
        try:
            measure(settings, Path(folder), arguments.seconds, arguments.rate)
        finally:
            stop_broker(settings)


def prepare(folder: Path) -> Settings:
    """Return a project of the one pipeline, with a broker that runs."""
    target = folder / "project" / "pipelines" / NAME
    shutil.copytree(PROJECT / "pipelines" / "examples" / NAME, target)
    with (target / "pipeline.yaml").open("a") as file:
        file.write(DELIVER)
    for name in (".build", "expectations"):
        (folder / "project" / name).symlink_to(PROJECT / name)
    settings = Settings(folder / "project", folder / "home", spark_master="local[2]")
    start_broker(settings)
    kafka.ensure_topic(settings, "transactions", 4)
    return settings


def measure(settings: Settings, folder: Path, seconds: float, rate: int) -> None:
    """Run driver, fast path and delivery, feed them, and print what consumers saw."""
    made: dict[str, float] = {}
    stop, finish = threading.Event(), threading.Event()
    watches = {
        "fast": Watch(consumer_of(settings, "fraud-alerts", 4), "tx"),
        "counts": Watch(consumer_of(settings, "fraud-counts", 4), "tx"),
    }
    asked = load_definition(settings.definitions / NAME).deliver["counts"]
    deliverer = threading.Thread(target=Deliverer(settings, NAME, "counts", asked).run, args=(stop, finish))
    readers = [threading.Thread(target=watch.follow, args=(stop, made)) for watch in watches.values()]
    with (
        running(settings, "rivertwice.stream.driver", folder / "driver.log"),
        running(settings, "rivertwice.fast.job", folder / "fast.log"),
    ):
        wait_for(lambda: committed_offsets(settings.pipeline(NAME), "transactions") is not None, folder / "fast.log")
        deliverer.start()
        for reader in readers:
            reader.start()
        produce(settings, WARM_S, rate, {})
        sent, hot = produce(settings, seconds, rate, made)
        time.sleep(12.0)
    stop.set()
    for thread in (*readers, deliverer):
        thread.join(30)
    print(
        f"{rate} transactions a second for {seconds:.0f} s ({WARM_S:.0f} s before it to warm up), {sent} sent, {hot} of them above 0.9"
    )
    print(f"{'record time to visible alert, ms':<34} {'p50':>8}  {'p95':>8}  {'p99':>8}  {'max':>8}")
    print(told("score, fast path (at least once)", list(watches["fast"].seen.values()), hot, watches["fast"].again))
    print(told("count, stream (exactly once)", list(watches["counts"].seen.values()), sent, watches["counts"].again))
    spark = spark_session(settings, "bench-alerts")
    try:
        print(compare_fast(spark, settings, NAME))
    finally:
        spark.stop()


def wait_for(condition: object, log: Path) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise RuntimeError(log.read_text()[-3000:])
        time.sleep(0.1)


if __name__ == "__main__":
    main()
