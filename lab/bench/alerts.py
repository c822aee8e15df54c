"""S19: from a transaction's record time to its visible alert, at 1,000 transactions a second. Report only.

`python -m lab.bench.alerts [--rate 1000] [--seconds 60] [--warm 60] [--ways score count score+count] [--interval "5 s"]`. Four ways to tell:

- score: the fast path of `fraud_scores` (a score over 0.9: stateless, real-time mode, Kafka to Kafka, at least once).
- count: the stream of `card_counts` (windows of five minutes, early results, micro-batches with a trigger of 0 s), delivered exactly once.
- fold: the stream of `fraud_scores` (the five minutes up to each transaction, in Python), delivered exactly once.
- profile: the stream of `card_alerts` (count, profile by change events and a model's score in one fold), delivered exactly once.

Ways joined by + run beside each other over the same records. Each has processes of its own, as the agent would run them. One
consumer of each topic, committed records only, notes when it saw what; a record's own timestamp is when the producer made it. All on one
machine, so one clock. A count tells of a card's n-th transaction of a window when a row with a count of n or more is visible.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from homes.project import EXAMPLES, TO_RUN, make_project
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.deliver.fast import committed_offsets
from rivertwice.deliver.fast_compare import compare_fast
from rivertwice.engine.session import spark_session
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.log import kafka
from rivertwice.timeline.lineage import path_ledger

TOPIC, PARTITIONS = "transactions", 4
SCORES, COUNTS, PROFILED = "fraud_scores", "card_counts", "card_alerts"
PROFILES = "shop-db.public.card_profiles"
DELIVER = "deliver:\n  folded: {to: kafka, topic: fraud-folded, partitions: 4, guarantee: exactly_once}\nstream: {trigger: 0 s}\n"
FAST = "fast: {topic: fraud-alerts, key: card_id"
WINDOW_S = 300
SHARE = 0.05
CARDS = 2_000
GRACE_S = 60.0

Id = str | tuple[str, int, int]
"""What is told: a transaction, or the n-th one of a card and a window."""


@dataclass(frozen=True)
class Made:
    """A transaction that was sent, and when; `measured` is false of those that warm up."""

    tx: str
    card: str
    score: float
    at: float
    measured: bool


@dataclass(frozen=True)
class Way:
    """A way to tell.

    Attributes:
        label: for the table. pipeline: its name. topic: where it tells.
        commands: module and arguments of its processes.
        expected: what it must show of the transactions, with the time of each.
        told: what a record that is seen tells, of rows whose last count is known.
    """

    label: str
    pipeline: str
    topic: str
    commands: Sequence[Sequence[str]]
    expected: Callable[[Iterable[Made]], dict[Id, float]]
    told: Callable[[Mapping[str, Any], dict[tuple[str, int], int]], list[Id]]


def hot(made: Iterable[Made]) -> dict[Id, float]:
    """Return the transactions that score above 0.9."""
    return {one.tx: one.at for one in made if one.measured and one.score > 0.9}


def every(made: Iterable[Made]) -> dict[Id, float]:
    """Return all transactions."""
    return {one.tx: one.at for one in made if one.measured}


def ranked(made: Iterable[Made]) -> dict[Id, float]:
    """Return all transactions by their number in their card's window; those that warmed up count, too."""
    ranks: dict[tuple[str, int], int] = defaultdict(int)
    found: dict[Id, float] = {}
    for one in made:
        window = int(one.at) // WINDOW_S * WINDOW_S
        ranks[one.card, window] += 1
        if one.measured:
            found[one.card, window, ranks[one.card, window]] = one.at
    return found


def told_tx(body: Mapping[str, Any], _: dict[tuple[str, int], int]) -> list[Id]:
    """Return the transaction that a row is of."""
    return [(body.get("values") or body)["tx"]]


def told_count(body: Mapping[str, Any], counts: dict[tuple[str, int], int]) -> list[Id]:
    """Return the transactions up to a row's count that no row told before."""
    card, window = body["keys"]["card_id"], int(datetime.fromisoformat(body["window"][0]).timestamp())
    before, count = counts.get((card, window), 0), body["values"]["transactions"]
    counts[card, window] = max(before, count)
    return [(card, window, rank) for rank in range(before + 1, count + 1)]


def _stream(pipeline: str, sink: str) -> list[list[str]]:
    deliver = ["rivertwice.cli.main", "deliver", "run", pipeline, "--sink", sink]
    return [["rivertwice.stream.driver", "--pipeline", pipeline], deliver]


WAYS = {
    "score": Way(
        "score, fast path (at least once)",
        SCORES,
        "fraud-alerts",
        [["rivertwice.deliver.fast_job", "--pipeline", SCORES]],
        hot,
        told_tx,
    ),
    "count": Way(
        "count, early results (exactly once)", COUNTS, "fraud-counts", _stream(COUNTS, "counts"), ranked, told_count
    ),
    "fold": Way("count, fold (exactly once)", SCORES, "fraud-folded", _stream(SCORES, "folded"), every, told_tx),
    "profile": Way(
        "count, profile and score, fold (exactly once)",
        PROFILED,
        "card-alerts",
        _stream(PROFILED, "alerts"),
        every,
        told_tx,
    ),
}


@dataclass
class Watch:
    """What a consumer saw: when it was told what first, and how many rows told nothing new."""

    way: Way
    consumer: Consumer
    seen: dict[Id, float] = field(default_factory=dict)
    again: int = 0

    def follow(self, stop: threading.Event) -> None:
        """Note each row as it comes."""
        counts: dict[tuple[str, int], int] = {}
        while not stop.is_set():
            for message in self.consumer.consume(500, 0.05):
                now = time.time()
                if message.error() is not None:
                    continue
                fresh = [
                    one for one in self.way.told(json.loads(message.value() or b"{}"), counts) if one not in self.seen
                ]
                self.seen |= dict.fromkeys(fresh, now)
                self.again += not fresh


@contextmanager
def running(settings: Settings, command: Sequence[str], log: Path) -> Iterator[None]:
    """Run one of a pipeline's processes, and end it by SIGTERM."""
    env = {**os.environ, **settings.to_env()}
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=env, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def produce(settings: Settings, warm: float, seconds: float, rate: int) -> list[Made]:
    """Send `rate` transactions a second, spread over each; return them."""
    config = {
        "bootstrap.servers": settings.bootstrap_servers(),
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 1,
    }
    client, chance = Producer(config), random.Random("alerts")
    began, made = time.time(), list[Made]()
    while len(made) < (warm + seconds) * rate:
        due = min(int((time.time() - began) * rate), int((warm + seconds) * rate))
        for number in range(len(made), due):
            score = chance.uniform(0.901, 1) if chance.random() < SHARE else chance.uniform(0, 0.9)
            ms = int(time.time() * 1000)
            one = Made(f"t{number}", f"c{chance.randrange(CARDS)}", score, ms / 1000, number >= warm * rate)
            at = datetime.fromtimestamp(one.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            body = {"tx": one.tx, "card_id": one.card, "amount": 10, "score": score, "country": "DE", "at": at}
            client.produce(TOPIC, json.dumps(body).encode(), one.card, timestamp=ms)
            made.append(one)
        client.poll(0.001)
    client.flush(30)
    return made


def consumer_of(settings: Settings, topic: str) -> Consumer:
    """Return a reader of a topic's committed records, from its end on, that waits for nothing."""
    kafka.ensure_topic(settings, topic, PARTITIONS)
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


def told_row(watch: Watch, expected: Mapping[Id, float], beside: str) -> str:
    """Return one row of the table, in milliseconds."""
    waits = [1000 * (watch.seen[one] - at) for one, at in expected.items() if one in watch.seen]
    name = f"{watch.way.label}{beside}"
    if len(waits) < 2:
        return f"{name:<52} {len(waits)} seen of {len(expected)}"
    cuts = statistics.quantiles(waits, n=100)
    shown = "  ".join(f"{cuts[at]:8.0f}" for at in (49, 94, 98))
    return f"{name:<52} {shown}  {max(waits):8.0f}   {len(waits)} of {len(expected)}, {watch.again} again"


def prepare(folder: Path, interval: str) -> Settings:
    """Return a project of the pipelines, with a broker that runs and profiles; the fast path writes its place down once in an interval."""
    settings = make_project(folder, {name: EXAMPLES / name for name in (SCORES, COUNTS, PROFILED)}, links=TO_RUN)
    profiled = settings.definitions / PROFILED / "pipeline.yaml"
    profiled.write_text(profiled.read_text().replace("topic: card-transactions", f"topic: {TOPIC}"))
    file = settings.definitions / SCORES / "pipeline.yaml"
    text = file.read_text().replace(FAST, f"{FAST}, interval: {interval}")
    file.write_text(text + DELIVER)
    start_broker(settings)
    for topic in (TOPIC, PROFILES):
        kafka.ensure_topic(settings, topic, PARTITIONS)
    client, ms = Producer({"bootstrap.servers": settings.bootstrap_servers()}), int(time.time() * 1000)
    for card in range(CARDS):
        row = {"card_id": f"c{card}", "home": "DE", "usual": "10.00"}
        change = {"before": None, "after": row, "op": "r", "ts_ms": ms}
        client.produce(PROFILES, json.dumps(change).encode(), json.dumps({"card_id": f"c{card}"}), timestamp=ms)
    client.flush(30)
    return settings


def measure(settings: Settings, folder: Path, ways: Sequence[Way], *, warm: float, seconds: float, rate: int) -> None:
    """Run some ways beside each other, feed them, and print what consumers saw."""
    stop = threading.Event()
    watches = [Watch(way, consumer_of(settings, way.topic)) for way in ways]
    readers = [threading.Thread(target=watch.follow, args=(stop,)) for watch in watches]
    with ExitStack() as stack:
        for way in ways:
            for number, command in enumerate(way.commands):
                stack.enter_context(running(settings, command, folder / f"{way.topic}-{number}.log"))
                _wait_for_start(settings, way, command)
        for reader in readers:
            reader.start()
        made = produce(settings, warm, seconds, rate)
        expected = [watch.way.expected(made) for watch in watches]
        Deadline.after(GRACE_S).wait_until(
            lambda: all(each.keys() <= watch.seen.keys() for each, watch in zip(expected, watches, strict=True)),
            every=0.2,
        )
    stop.set()
    for reader in readers:
        reader.join(30)
    for watch, each in zip(watches, expected, strict=True):
        others = "+".join(other.topic for other in ways if other is not watch.way)
        print(told_row(watch, each, f", beside {others}" if others else ""), flush=True)
        _print_batches(settings, watch.way)
    if any(way.expected is hot for way in ways):
        spark = spark_session(settings, "bench-alerts")
        try:
            print(compare_fast(spark, settings, SCORES), flush=True)
        finally:
            spark.stop()


def _wait_for_start(settings: Settings, way: Way, command: Sequence[str]) -> None:
    """Wait for the fast path to have a position, and for a driver to have a head."""
    home = settings.pipeline(way.pipeline)

    def has_started() -> bool:
        if command[0].endswith("fast.job"):
            return committed_offsets(home, TOPIC) is not None
        return (home.root / "timelines").exists()

    if not Deadline.after(120).wait_until(has_started, every=0.1):
        message = f"{' '.join(command)} did not start in time"
        raise RuntimeError(message)


def _print_batches(settings: Settings, way: Way) -> None:
    rows = path_ledger(settings.pipeline(way.pipeline)) if way.expected is not hot else []
    if len(rows) > 1:
        halves = rows[len(rows) // 2 :]
        records = statistics.median(row.read for row in halves)
        print(f"  {len(rows)} batches; {records:.0f} records in a batch of the second half (median)")


def main() -> None:
    """Run the ways and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.alerts", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm", type=float, default=60.0, help="seconds of the same load before it")
    parser.add_argument("--ways", nargs="*", default=["score", "count", "score+count"])
    parser.add_argument("--interval", default="5 s", help="of the fast path: how often it writes its place down")
    arguments = parser.parse_args()
    print(
        f"{arguments.rate} transactions a second, {arguments.warm:.0f} s to warm up and {arguments.seconds:.0f} s measured"
    )
    print(f"{'record time to visible alert, ms':<52} {'p50':>8}  {'p95':>8}  {'p99':>8}  {'max':>8}", flush=True)
    for asked in arguments.ways:
        ways = [WAYS[name] for name in asked.split("+")]
        with tempfile.TemporaryDirectory(prefix="rivertwice-alerts-") as name:
            settings = prepare(Path(name), arguments.interval)
            try:
                measure(
                    settings,
                    Path(name),
                    ways,
                    warm=arguments.warm,
                    seconds=arguments.seconds,
                    rate=arguments.rate,
                )
            finally:
                stop_broker(settings)


if __name__ == "__main__":
    main()
