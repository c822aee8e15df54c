"""What the first load of a long history costs by batch and by stream: CPU-seconds of the whole process trees, over the same log.

`PYTHONPATH=tests .venv/bin/python -m lab.bench.first_load [RECORDS ...]` starts a broker of its own. The story: JSON records of 200 keys,
a thousand records an hour of event time, one in a hundred late by up to six hours; one-hour windows of a key under a watermark of one hour. Both
sides have batches of 20,000 records that are split by what waits. The load is one process with one session of Spark, as its command
is, and a driver beside it; what each step costs is measured in that process, whose JVM starts in the first step.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lab.bench.measure import Cost, own_cpu_s, run_measured
from lab.faults.events import Event, produce_events
from rivertwice.backfill.load import begin_load, publish_load
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.instants import from_ms, to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import build_bundle
from rivertwice.engine.session import spark_on_demand
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.log.archive import extend_archive
from rivertwice.log.kafka import ensure_topic
from rivertwice.storage.local import read_json, replace_json
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.lineage import path_ledger
from streams.first_load import served_rows_sha256
from streams.keyed import BEGIN_MS, HOUR_MS, NAME, PARTITIONS, make_keyed_project

SIZES = (300_000, 1_000_000)
LIMIT = 20_000
KEYS, PER_HOUR, LATE_HOURS = 200, 1_000, 6
SLICE = 100_000
DRIVER = ("rivertwice.stream.driver", "--pipeline", NAME, "--until-end")
STEPS = "steps.json"
"""File of the loaded home: step to CPU-seconds and seconds."""


def events_of(records: int) -> Iterator[list[Event]]:
    """Yield the log in slices, in the order of sending."""
    chance = random.Random(records)
    for first in range(0, records, SLICE):
        events = []
        for number in range(first, min(records, first + SLICE)):
            sent_ms = BEGIN_MS + number * HOUR_MS // PER_HOUR
            late_ms = chance.randrange(LATE_HOURS * HOUR_MS) if chance.random() < 0.01 else chance.randrange(60_000)
            key = f"k{chance.randrange(KEYS)}"
            value = json.dumps({"k": key, "at": to_iso(from_ms(sent_ms - late_ms))}).encode()
            events.append(Event(chance.randrange(PARTITIONS), key.encode(), value, sent_ms))
        yield events


def python(settings: Settings, log: Path, *arguments: str) -> Cost:
    """Run a module of Python with the settings as its environment, and measure it."""
    return run_measured([sys.executable, "-m", *arguments], {**os.environ, **settings.to_env()}, log)


def report(records: int, settings: Settings, root: Path) -> None:
    """Load one log both ways, and print what each part cost."""
    topic = f"first-load-{records}"
    ensure_topic(settings, topic, PARTITIONS)
    for events in events_of(records):
        produce_events(settings, topic, events)
    sides = {
        name: make_keyed_project(
            root / f"{name}-{records}",
            settings.bootstrap_servers(),
            topic,
            max_offsets_per_trigger=LIMIT,
            catch_up_share=0,
        )
        for name in ("stream", "batch")
    }
    costs: dict[str, Cost] = {}
    streamed, loaded = sides["stream"], sides["batch"]
    for side in sides.values():
        side.home.mkdir(parents=True, exist_ok=True)
    costs["stream: the whole log"] = python(streamed, streamed.home / "lab.bench.log", *DRIVER)
    whole = python(loaded, loaded.home / "lab.bench.log", "lab.bench.first_load", "--load", topic)
    steps = {f"batch: {what}": Cost(*pair) for what, pair in (read_json(loaded.home / STEPS) or {}).items()}
    cpu_s, wall_s = (sum(getattr(cost, each) for cost in steps.values()) for each in ("cpu_s", "wall_s"))
    costs |= steps
    costs["batch: start and end of its process"] = Cost(whole.cpu_s - cpu_s, whole.wall_s - wall_s)
    costs["stream: its late windows"] = python(
        streamed,
        streamed.home / "lab.bench.log",
        "rivertwice.cli.main", "backfill", "run", NAME, "--yes", "--from", to_iso(from_ms(BEGIN_MS - 12 * HOUR_MS)), "--to",
        to_iso(from_ms(BEGIN_MS + records * HOUR_MS // PER_HOUR)),
    )  # fmt: skip
    for what, cost in costs.items():
        print(f"| {records:,} | {what} | {cost.cpu_s:.1f} | {cost.wall_s:.1f} |", flush=True)
    share = whole.cpu_s / costs["stream: the whole log"].cpu_s
    archive = costs["batch: archive"].cpu_s / costs["stream: the whole log"].cpu_s
    print(f"| {records:,} | batch: all of it | {whole.cpu_s:.1f} | {whole.wall_s:.1f} |")
    print(f"| {records:,} | batch / stream | {share:.2f} | archive left out {share - archive:.2f} |")
    read = sum(row.read for row in path_ledger(loaded.pipeline(NAME)))
    equal = served_rows_sha256(loaded) == served_rows_sha256(streamed)
    print(f"| {records:,} | streamed after the load: {read:,} records | served equal: {equal} | |", flush=True)


def load(topic: str) -> None:
    """Do what `rivertwice start NAME --from-batch` does, with a driver that ends in place of the agent's; note what each step costs."""
    settings = Settings.from_env()
    bundle = build_bundle(settings.definitions / NAME)
    costs: dict[str, tuple[float, float]] = {}

    def note(what: str, act: Callable[[], object]) -> None:
        begun = time.monotonic()
        cpu_s = own_cpu_s(act)
        costs[what] = (cpu_s, time.monotonic() - begun)

    with spark_on_demand(settings, "bench") as spark:
        note("archive", lambda: extend_archive(spark(), settings, topic))
        note("look and record", lambda: begin_load(settings, bundle, spark, by="bench", now=utc_now(), progress=print))
        recorded = FirstLoad.load(settings.pipeline(NAME))
        if recorded is None:
            raise RivertwiceError("there is nothing to load")
        streamed = python(settings, settings.home / "driver.log", *DRIVER)
        costs["stream from there"] = (streamed.cpu_s, streamed.wall_s)
        note("backfill and publish", lambda: list(publish_load(settings, recorded, spark, print)))
    replace_json(settings.home / STEPS, costs)


def main(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as folder:
        root = Path(folder)
        settings = Settings(project=Settings.from_env().project, home=root / "home", spark_master="local[2]")
        start_broker(settings)
        try:
            print("| records | part | CPU-s | wall s |\n|---|---|---|---|")
            for records in sizes:
                report(records, settings, root)
        finally:
            stop_broker(settings)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        load(sys.argv[2])
    else:
        main([int(text) for text in sys.argv[1:]] or list(SIZES))
