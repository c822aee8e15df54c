"""Two topics in one stream over a real broker: ledger, restart, savepoint, proof from archive, restore, a gap, the log re-derived.

The transform over both sources is the tests' own (`histories.two_sources`); all else is the product.
"""

from __future__ import annotations

import json
import random
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from histories import two_sources as two
from homes.project import TO_RUN, make_project
from rivertwice.backfill.model import BackfillRequest
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.recompute import Recompute
from rivertwice.core.instants import EPOCH, TimeRange, from_ms, to_iso, utc_now
from rivertwice.definition.bundle import load_bundle_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.log.addresses import Part
from rivertwice.log.archive import extend_archive
from rivertwice.log.gaps import Gap, accepted_gaps
from rivertwice.reconcile.assess import RederivedLedger, rederive_ledger
from rivertwice.reconcile.derive import DerivedLog
from rivertwice.reconcile.observe import observe_head
from rivertwice.reconcile.recorded import check_dead_letters, check_emitted, count_by_batch
from rivertwice.reconcile.rederive import derive_ranges
from rivertwice.retention.accept import accept_gap
from rivertwice.retention.view import view_retention
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.savepoint.feed import session_of
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.plan import load_state_definition
from rivertwice.savepoint.proof import describe_difference, read_state
from rivertwice.savepoint.prove import prove_savepoint
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.counts import total_of
from rivertwice.timeline.dead_summary import read_letters
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head
from running.warm_spark import own_session, run_driver_warm

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
PARTITIONS = {"a": 2, "b": 1}


class World:
    """A project with one pipeline over two topics of its own, and what was sent to them.

    With a pattern, the partitions of the first source are those of two topics.
    """

    def __init__(self, folder: Path, bootstrap: str, *, pattern: bool = False) -> None:
        ending = uuid.uuid4().hex[:10]
        self.topics = {view: f"several-{view}-{ending}" for view in PARTITIONS}
        self.parts = {view: [Part(topic, p) for p in range(PARTITIONS[view])] for view, topic in self.topics.items()}
        if pattern:
            self.parts["a"] = [Part(f"{self.topics['a']}.{name}", 0) for name in ("eu", "us")]
            self.topics["a"] += ".*"
        one = two.source(self.topics["a"], partitions=PARTITIONS["a"])
        sources = {
            "a": {name: said for name, said in one.items() if not pattern or name != "partitions"},
            "b": two.source(self.topics["b"], partitions=PARTITIONS["b"], watermark="20 s"),
        }
        stream = {"max_offsets_per_trigger": 24, "shuffle_partitions": 1}
        files = two.files(sources=sources, stream=stream)
        self.settings = make_project(folder, {two.NAME: files}, links=TO_RUN, bootstrap=bootstrap)
        self.dice = random.Random(5)
        self.now_s = 1_000
        self.sent = dict.fromkeys(PARTITIONS, 0)
        for parts in self.parts.values():
            for topic in {part.topic for part in parts}:
                kafka.ensure_topic(self.settings, topic, sum(part.topic == topic for part in parts))

    def send(self, view: str, count: int, *, broken: int = 0) -> None:
        """Send records of one source; event time goes on, every sixth is late."""
        producer = kafka.producer(self.settings)
        for number in range(count + broken):
            self.now_s += self.dice.choice([0, 1, 3])
            at = self.now_s - (self.dice.choice([15, 60]) if self.dice.random() < 1 / 6 else 0)
            value = {"k": self.dice.choice("xy"), "at": to_iso(EPOCH + timedelta(seconds=at)), "v": number}
            place = self.parts[view][self.sent[view] % PARTITIONS[view]]
            data = b"broken" if number >= count else json.dumps(value).encode()
            producer.produce(place.topic, value=data, partition=place.partition)
            self.sent[view] += 1
        assert producer.flush(30) == 0

    def run(self) -> list[LedgerRow]:
        """Run the driver until everything in both topics is committed."""
        log = self.settings.home / "driver.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        run_driver_warm(self.settings, two.NAME, log)
        return path_ledger(self.settings.pipeline(two.NAME))

    def moved(self, folder: Path) -> World:
        """Return the same world over a copy of its home."""
        other = object.__new__(World)
        other.__dict__ |= self.__dict__
        shutil.copytree(self.settings.home, folder / "home")
        other.settings = replace(self.settings, home=folder / "home")
        return other


@pytest.fixture(scope="module", autouse=True)
def lifted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        two.lift(patch)
        for module in ("savepoint.replay", "stream.driver"):
            patch.setattr(f"rivertwice.{module}.compile_stream", two.union_stream)
        patch.setattr("rivertwice.stream.driver.Driver._require_checked", lambda *_: None)  # they know no union
        patch.setattr("rivertwice.savepoint.replay.aggregate_functions", lambda *_: set())  # nor does its compiler
        yield


@pytest.fixture(scope="module", params=["topics", pytest.param("pattern", marks=pytest.mark.faults)])
def ran(
    broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[World, str]:
    """A stream that ran three times, with a savepoint taken behind the first; b is silent in the second run. All archived."""
    world = World(tmp_path_factory.mktemp("several"), broker.bootstrap, pattern=request.param == "pattern")
    world.send("a", 30)
    world.send("b", 20, broken=2)
    world.run()
    taken = take_savepoint(world.settings, two.NAME, now=utc_now())
    world.send("a", 40, broken=1)
    world.run()
    world.send("b", 30)
    world.send("a", 20)
    world.run()
    for topic in world.topics.values():  # before any test deletes from the topics, which all of them share
        extend_archive(None, world.settings, topic)
    return world, taken.id


@pytest.fixture(scope="module")
def spark(ran: tuple[World, str]) -> Iterator[SparkSession]:
    world, savepoint = ran
    home = world.settings.pipeline(two.NAME)
    with own_session():
        yield session_of(world.settings, load_state_definition(home, load_savepoint(home, savepoint).manifest))


def rederived(spark: SparkSession, world: World) -> RederivedLedger:
    """Re-derive the ledger of the head's path as a reconcile does; dead letters and emitted rows must be right."""
    view = observe_head(world.settings.pipeline(two.NAME))
    jumps = {jump.index: jump.start for jump in view.jumps}
    ranges, defects = derive_ranges(view.rows, view.topics, view.genesis, jumps)
    with DerivedLog(spark, world.settings, view.newest.definition, ranges, view.last.topic_ids, view.jumps) as log:
        derived = rederive_ledger(view, ranges, defects, log.counts(), log.missing)
        rows = log.accepted_by_view(derived.chain, view.groups)
        counted = {name: frame.where("_index >= 0").count() for name, frame in rows.items()}
        assert check_dead_letters(view, log.dead(), derived.missing)[0] == []
    by_topic = {topic: total_of(row.by_topic[topic] for row in view.rows) for topic in view.topics}
    gone = {
        topic: sum(end - start for part, start, end in derived.missing if part.topic == topic) for topic in view.topics
    }
    skipped = {
        t: sum(sum(e - s for s, e in j.skipped.ranges.values()) for j in view.jumps if j.skipped.topic == t)
        for t in gone
    }
    assert counted == {
        name: by_topic[topic].accepted - (gone[topic] - skipped[topic]) for name, topic in world.topics.items()
    }
    assert view.stream is not None
    emitted = count_by_batch(view.stream, view.newest.definition.result_columns)
    assert check_emitted(view, emitted) == []
    return derived


def check_goes_on(spark: SparkSession, world: World, before: list[LedgerRow]) -> None:
    """Send to both topics, run what was restored, and re-derive everything."""
    world.send("a", 10)
    world.send("b", 10)
    rows = world.run()
    assert rows[: len(before)] == before
    assert rows[-1].timeline == "t2"
    assert rederived(spark, world).defects == []


def test_the_ledger_tells_the_topics_apart_and_the_log_agrees(ran: tuple[World, str], spark: SparkSession) -> None:
    world, _ = ran
    rows = path_ledger(world.settings.pipeline(two.NAME))
    assert len({row.epoch for row in rows}) == 3
    for row in rows:
        assert (
            total_of(row.by_topic.values()).read == row.read == sum(end - start for start, end in row.parts().values())
        )
        first, *more = row.offsets_text.split("\n")[2:]
        assert all(line == first for line in more)
    total = {view: total_of(row.by_topic[topic] for row in rows) for view, topic in world.topics.items()}
    assert {view: (one.read, one.bad) for view, one in total.items()} == {"a": (91, 1), "b": (52, 2)}
    derived = rederived(spark, world)
    assert derived.defects == []
    assert {part.topic for _, part in derived.by_partition} == set(world.topics.values())
    assert derived.chain.closed_ms > 0


def test_dead_letters_name_their_topic(ran: tuple[World, str]) -> None:
    world, _ = ran
    letters = read_letters(world.settings.pipeline(two.NAME))
    assert sorted(one.topic for one in letters) == sorted([world.topics["a"], *[world.topics["b"]] * 2])
    assert all(one.place.startswith(f"{one.topic}/") for one in letters)


def test_retention_sees_both_topics(ran: tuple[World, str]) -> None:
    world, savepoint = ran
    view = view_retention(world.settings, two.NAME, utc_now())
    assert [one.log.topic for one in view.topics] == list(world.topics.values())
    holders = {(lease.holder, lease.topic) for lease in view.leases}
    assert {(f"savepoint {savepoint}", topic) for topic in world.topics.values()} <= holders


def test_a_backfill_reads_every_view(ran: tuple[World, str], spark: SparkSession) -> None:
    world, _ = ran
    seen = observe_backfill(world.settings, two.NAME)
    asked = BackfillRequest(two.NAME, TimeRange(from_ms(0), from_ms(seen.closed_ms or 0)))
    plan = plan_backfill(asked, seen)
    definition = load_bundle_definition(world.settings.pipeline(two.NAME).bundles, plan.bundle)
    found = Recompute(spark, world.settings, definition, plan).records()
    assert set(plan.offsets) == set(world.topics.values())
    assert {view: rows.count() > 0 for view, rows in found.items()} == {"a": True, "b": True}


def test_a_savepoint_is_proved_over_both_topics_and_across_restarts(
    ran: tuple[World, str], spark: SparkSession, tmp_path: Path
) -> None:
    world, savepoint = ran
    world = world.moved(tmp_path)
    proof = prove_savepoint(world.settings, two.NAME, savepoint, batches=1000, spark=spark)
    rows = path_ledger(world.settings.pipeline(two.NAME))
    assert (proof.proved, proof.last_batch, proof.source) == (True, rows[-1].batch, "kafka")


def test_a_restore_replays_what_kafka_lost_of_one_topic_of_several(
    ran: tuple[World, str], spark: SparkSession, tmp_path: Path
) -> None:
    world, savepoint = ran
    world = world.moved(tmp_path)
    home = world.settings.pipeline(two.NAME)
    manifest = load_savepoint(home, savepoint).manifest
    lost = {int(p): offset + 3 for p, offset in manifest.offsets[world.topics["b"]].items()}
    kafka.delete_records(world.settings, world.topics["b"], lost)
    proof = prove_savepoint(world.settings, two.NAME, savepoint, batches=1000, spark=spark)
    assert (proof.proved, proof.source) == (True, "replay topic")
    before = path_ledger(home)
    report = restore_savepoint(world.settings, two.NAME, savepoint, spark=spark)
    assert (head(home), report.forked_at) == ("t2", before[-1].batch)
    check_goes_on(spark, world, before)


def test_a_state_is_made_from_the_beginning_across_archive_and_log(
    ran: tuple[World, str], spark: SparkSession, tmp_path: Path
) -> None:
    world, savepoint = ran
    world = world.moved(tmp_path)
    home = world.settings.pipeline(two.NAME)
    kafka.delete_records(world.settings, world.topics["a"], {0: 5, 1: 5})  # t1 began at 0
    before = path_ledger(home)

    report = restore_savepoint(world.settings, two.NAME, StateBase.BEGINNING, spark=spark)

    assert (report.savepoint, report.timeline, report.forked_at) == (StateBase.BEGINNING, "t2", before[-1].batch)
    assert report.replayed == len(before)
    assert head(home) == "t2"
    last = before[-1].batch
    states = [read_state(spark, home.checkpoint(timeline), last) for timeline in ("t1", "t2")]
    assert describe_difference(*states) is None
    assert states[0].rows > 0
    assert load_savepoint(home, savepoint).leases == ()
    check_goes_on(spark, world, before)


@pytest.mark.proves("howto-log.md#a-gap-records-that-the-stream-had-not-read-are-gone")
def test_a_gap_of_one_topic_is_passed_and_the_other_loses_nothing(
    broker: BrokerInfo, spark: SparkSession, tmp_path: Path
) -> None:
    world = World(tmp_path, broker.bootstrap)
    home, topic = world.settings.pipeline(two.NAME), world.topics["a"]
    world.send("a", 20)
    world.send("b", 10)
    last = world.run()[-1]
    world.send("a", 20)
    world.send("b", 5)
    ends = kafka.end_offsets(world.settings, topic)
    cut = {0: ends[0] - 2}
    kafka.delete_records(world.settings, topic, cut)
    with pytest.raises(AssertionError, match="Kafka deleted records that the stream of two had not read"):
        world.run()
    (gap,) = Gap.recorded(home)
    assert (gap.topic, gap.ranges) == (topic, {0: (int(last.end_offsets[topic]["0"]), cut[0])})
    accept_gap(world.settings, two.NAME, gap.id, by="test", now=utc_now())
    rows = world.run()
    assert set(accepted_gaps(home)) == {rows[-1].timeline}
    read = [row for row in rows if row.timeline == rows[-1].timeline]
    assert read[0].parts()[Part(topic, 0)][0] == cut[0]
    assert total_of(row.by_topic[world.topics["b"]] for row in read).read == 5
    derived = rederived(spark, world)
    assert derived.defects == []
    assert [part.topic for part, _, _ in derived.missing] == [topic]
    assert f"{topic} partition 0" in derived.doubts.doubts[0].reason
