"""Throughput of each kind of windows: events per CPU-second of the stream's whole process tree, start-up left out. Report only.

`python -m lab.bench.kinds [--only KIND ...] [--format FORMAT ...] [--events 120000]`. The definitions are those of the random histories in `tests/`: count, sum and
maximum per key, or what is like it of the kind. Each runs twice over the same topic, once over a sixth of it: the difference is
what the events cost, without JVM and Python starting. `--format` runs tumbling windows over records in other formats too. 1,000 keys, ten events a second of event time, one in a hundred out of order.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

from histories.formats import WRITTEN_AS
from histories.kinds import KINDS
from histories.random_histories import Record, places_of, record_bytes
from homes.project import REPOSITORY
from lab.bench.measure import run_measured
from lab.faults.events import Event, produce_events
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo, start_broker, stop_broker
from rivertwice.log.kafka import ensure_topic
from rivertwice.timeline.lineage import path_ledger
from streams.kinds import NAME, make_kind_project

KEYS = 1_000
PER_BATCH = 10_000
START_S = 1_767_225_600


def events_of(count: int) -> list[Record]:
    """Return the records, by turns of the two partitions, each in order of its own offsets."""
    chance = random.Random("kinds")
    found, offsets = [], [0, 0]
    for number in range(count):
        event_s = START_S + number / 10 - (15 if chance.random() < 0.01 else 0)
        partition = number % 2
        found.append(
            Record(partition, offsets[partition], f"k{chance.randrange(KEYS)}", event_s, chance.randrange(100))
        )
        offsets[partition] += 1
    return found


def run_once(broker: BrokerInfo, folder: Path, kind: str, records: list[Record]) -> tuple[float, int]:
    """Stream the records under a kind, or under tumbling windows in a format; return the CPU-seconds and how many rows were emitted."""
    folder.mkdir()
    topic = f"bench-{kind.replace(' ', '-')}-{len(records)}"
    settings = make_kind_project(folder, broker, topic, "tumbling" if kind in WRITTEN_AS else kind)
    if kind in WRITTEN_AS:
        WRITTEN_AS[kind](settings.definitions / NAME)
    path = settings.definitions / NAME / "pipeline.yaml"
    path.write_text(path.read_text().replace("max_offsets_per_trigger: 50", f"max_offsets_per_trigger: {PER_BATCH}"))
    definition = load_definition(path.parent)
    places = places_of(definition)
    for source in definition.sources.values():
        ensure_topic(settings, source.topic, source.partitions)
        mine = [one for one in records if places[one.partition].topic == source.topic]
        events = [
            Event(
                places[one.partition].partition,
                one.key.encode(),
                record_bytes(one, definition),
                int((one.event_s or 0) * 1000),
            )
            for one in mine
        ]
        produce_events(settings, source.topic, events)
    command = [sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", NAME, "--until-end"]
    cost = run_measured(command, {**os.environ, **settings.to_env()}, folder / "log")
    rows = path_ledger(settings.pipeline(NAME))
    assert sum(row.read for row in rows) == len(records)
    return cost.cpu_s, sum(row.emitted for row in rows)


def main() -> None:
    """Run every kind and print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.kinds", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=tuple(KINDS), help="these kinds")
    parser.add_argument(
        "--format", nargs="*", choices=tuple(WRITTEN_AS), default=[], help="tumbling windows, in these formats too"
    )
    parser.add_argument("--events", type=int, default=120_000)
    arguments = parser.parse_args()
    records = events_of(arguments.events)
    with tempfile.TemporaryDirectory(prefix="rivertwice-kinds-") as name:
        root = Path(name)
        own = Settings(REPOSITORY, root / "home")
        broker = start_broker(own)
        try:
            print(f"{'kind':<20} {'CPU-s':>7} {'CPU-s of a sixth':>17} {'rows':>9} {'events per CPU-s':>17}")
            for kind in [*(arguments.only or KINDS), *arguments.format]:
                few = records[: len(records) // 6]
                small, _ = run_once(broker, root / f"{kind}-few", kind, few)
                large, rows = run_once(broker, root / f"{kind}-all", kind, records)
                rate = (len(records) - len(few)) / (large - small)
                print(f"{kind:<20} {large:>7.1f} {small:>17.1f} {rows:>9} {rate:>17.0f}", flush=True)
        finally:
            stop_broker(own)


if __name__ == "__main__":
    main()
