"""F28, F29, F33: clocks that are wrong, records that nobody can read, records that come twice; each with kills too."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

import yaml

from lab.faults.cases import case, require
from lab.faults.events import LAB_1, Event, EventPlan, encode_event
from lab.faults.lab import PIPELINE, Lab
from lab.faults.poison import POISON
from lab.faults.steps import DeltaLog
from lab.flights.plan import Flight
from lab.flights.poison import KINDS, make_poison
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.stream.begin import FIRST
from rivertwice.timeline.lineage import path_ledger


def one_kill(lab: Lab) -> None:
    """Kill a driver in a drawn batch, then run to the end of the log."""
    driver, steps = lab.start_driver(), lab.steps()
    batch = lab.random.randrange(2, 7)
    require(lab.kill_when(driver, lambda: steps.planned(batch)), lab.log_end())
    lab.run_to_end()


@case("F28", "event times a year ahead", kills=1)
def events_from_the_future(lab: Lab) -> None:
    """They are dead letters and never move the watermark: one accepted would close every window of the year."""
    plan = lab.next_plan(records=320, future_share=0.15)
    lab.produce(plan)
    one_kill(lab)
    highest = max(row.batch_watermark_ms for row in path_ledger(lab.home))
    require(highest < plan.end_ms, f"the watermark is at {highest}, the story ends at {plan.end_ms}")


@case(
    "F28/clock",
    "the driver's clock an hour fast, then an hour slow, with kills between",
    kills=2,
    proves=("guarantees.md#what-everything-needs",),
)
def clock_steps(lab: Lab) -> None:
    """Lease, ledger and heartbeat read a clock that jumps back two hours; order comes from epochs and batches."""
    lab.produce()
    for hours in (1, -1):
        driver = lab.start_driver(program=(sys.executable, "-m", "lab.faults.shifted", str(hours * 3600)))
        steps = lab.steps()
        batch = steps.last_planned() + lab.random.randrange(2, 5)
        require(lab.kill_when(driver, lambda at=steps, n=batch: at.finished(n)), lab.log_end())  # type: ignore[misc]
    lab.run_to_end()
    rows = path_ledger(lab.home)
    steps_back = sum(later.committed_at < sooner.committed_at for sooner, later in pairwise(rows))
    require(steps_back == 1, f"the recorded clock went back {steps_back} times, it was set back once")
    lab.fact("clock_steps_back", steps_back)


def foreign_poison(plan: EventPlan) -> list[Event]:
    """Return every kind of the flights' poison as records of this topic: another producer's mistakes."""
    at = datetime.fromtimestamp(plan.begin_ms / 1000, UTC)
    flight = Flight(at.date(), at, 5, "UA", 1545, "N14228", "EWR", "IAH", 1400)
    draw = random.Random(plan.seed)  # noqa: S311 (test data, not a secret)
    made = [make_poison(kind, flight, draw.randrange(plan.partitions), draw).record for kind in KINDS]
    return [Event(each.partition, each.key, each.value, each.timestamp_ms) for each in made]


@case(
    "F29", "a third of all records poison, of every kind", kills=1, proves=("definitions.md#what-makes-a-dead-letter",)
)
def poison(lab: Lab) -> None:
    """Each is a dead letter with its address, its reason and its bytes; none stops the stream or moves the watermark."""
    plan = lab.next_plan(records=320, poison_share=0.35)
    require(plan.records * plan.poison_share > 3 * len(POISON), "the plan is too short to hold every kind")
    lab.produce_events(foreign_poison(plan))
    lab.produce(plan)
    one_kill(lab)


JUNK_BYTES = 900_000
RESULT_LIMIT = "12m"
"""The limit of Spark, instead of its 1g: forty junk records are three times as much."""


@case(
    "F29/hostile",
    "records made to stop a stream: a batch of junk above Spark's result limit, values that exhaust a regular expression",
    kills=1,
    proves=("definitions.md#what-makes-a-dead-letter",),
)
def hostile_records(lab: Lab) -> None:
    """No record stops the stream: each is a dead letter once, also when the driver is killed between two pieces of them."""
    _judge_keys_by_a_repeated_group(lab)
    conf = lab.folder / "spark-conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(f"spark.driver.maxResultSize {RESULT_LIMIT}\n")
    env = {"SPARK_CONF_DIR": str(conf)}
    plan = lab.next_plan(records=200)
    lab.produce(plan)
    lab.produce_events(_hostile_events(plan, lab.random))
    lab.produce(lab.next_plan(records=120))
    driver, letters = lab.start_driver(env=env), DeltaLog(Path(str(lab.home.tables.dead_letters)))
    pieces = partial(_last_piece, letters)
    require(
        lab.kill_when(driver, lambda: pieces() >= 0), f"no batch had several pieces of dead letters; {lab.log_end()}"
    )
    lab.run_to_end(env=env)
    lab.fact("junk_megabytes", 40 * JUNK_BYTES // 1_000_000)


def _last_piece(letters: DeltaLog) -> int:
    version = letters.transaction(f"{PIPELINE}#{FIRST}/dead/pieces")
    return -1 if version is None else version


def _judge_keys_by_a_repeated_group(lab: Lab) -> None:
    """Add a rule whose pattern Java cannot match on a long value; it refuses no record that the other rules accept."""
    path = lab.settings.definitions / PIPELINE / "pipeline.yaml"
    document = yaml.safe_load(path.read_text())
    rule = {"name": "key_is_plain", "rule": "pattern", "field": "k", "pattern": "[a-z]([a-z]|[0-9])*"}
    document["sources"]["events"]["rules"].insert(0, rule)
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def _hostile_events(plan: EventPlan, draw: random.Random) -> list[Event]:
    """Return junk that fills a batch, and records whose key is long, odd or both."""
    junk = [
        Event(draw.randrange(plan.partitions), b"junk", bytes([33 + number]) * JUNK_BYTES, plan.begin_ms)
        for number in range(40)
    ]
    keys = [
        "a" * 3_500,
        "a1" * 1_700,
        "a" * 3_500 + "!",
        "\x00" * 500,
        "a\x00b",
        "😀a" * 250,
        "a\n" * 900,
        "\u2028",
        "z" * 17,
    ]
    fields = {"id": "hostile", "at": to_iso(from_ms(plan.begin_ms)), "amount": 1}
    odd = [
        Event(draw.randrange(plan.partitions), b"odd", encode_event({**fields, "k": key}), plan.begin_ms, LAB_1)
        for key in keys
    ]
    made = [*junk, *odd]
    draw.shuffle(made)
    return made


@case("F33", "a fifth of all records twice, byte for byte", kills=1)
def duplicates(lab: Lab) -> None:
    """A record is its address: repeats count as often as the log holds them, across a restart too."""
    lab.produce(lab.next_plan(duplicate_share=0.2))
    one_kill(lab)
