"""Drivers of a group in one JVM: each is killed, stopped and started alone, and a kill of the JVM takes all, which come back exact."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import ConsumerGroupTopicPartitions

from homes.project import FLIGHTS, TO_RUN, edit_yaml, make_project, rename, replace_text
from rivertwice.agent.launch import agent_status, start_agent
from rivertwice.agent.ring import CURVES, LEVELS
from rivertwice.cli.main import cli
from rivertwice.core.instants import utc_now
from rivertwice.core.processes import started_of
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.log.kafka import ensure_topic
from rivertwice.stream.lease import Owner, lease_owner
from rivertwice.timeline.intent import Heartbeat, write_intent
from rivertwice.timeline.ledger import read_ledger
from running.waiting import wait_for
from servers.groups import end_streams, used_by
from streams.synthetic import flights, produce

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
NAMES = ("first", "second", "third")


@pytest.fixture
def world(broker: BrokerInfo, tmp_path: Path, topic: str) -> Iterator[Settings]:
    """A project with three pipelines of one group over one topic; whatever still runs at the end is ended, by pid."""
    made = make_project(tmp_path, dict.fromkeys(NAMES, FLIGHTS), links=TO_RUN, bootstrap=broker.bootstrap)
    for name in NAMES:
        rename(made, FLIGHTS.name, name)
        replace_text(made.definitions / name / "pipeline.yaml", "topic: flights", f"topic: {topic}")
        edit_yaml(made.definitions / name, lambda document: document.update(stream={"group": "small"}))
    ensure_topic(made, topic, 4, {})
    yield made
    end_streams(made, NAMES)


def seen(world: Settings) -> object:
    """Return what is known when a wait ends too late."""
    logs = [*world.home.glob("pipelines/*/logs/driver.log"), *world.home.glob("groups/*/log")]
    return agent_status(world), {str(log): log.read_text()[-1500:] for log in logs}


def owners(world: Settings) -> dict[str, Owner | None]:
    """Return who drives each pipeline."""
    return {name: lease_owner(world.pipeline(name)) for name in NAMES}


def jvms(world: Settings) -> set[int]:
    """Return the JVMs that the drivers use."""
    return {owner.jvm_pid for owner in owners(world).values() if owner is not None and owner.jvm_pid is not None}


def runs(world: Settings, *names: str) -> bool:
    """Say whether these pipelines have a driver whose query runs."""
    for name in names:
        owner, beat = lease_owner(world.pipeline(name)), Heartbeat.load(world.pipeline(name))
        if owner is None or beat is None or owner.epoch != beat.epoch or beat.state not in {"running", "idle"}:
            return False
    return True


def committed(world: Settings, count: int, *names: str) -> bool:
    """Say whether each of these pipelines has committed that many records."""
    return all(sum(row.read for row in read_ledger(world.pipeline(name))) == count for name in names)


def costs_are_shared(world: Settings) -> bool:
    """Say whether the agent's newest samples have for all drivers together what they and their JVM use, and for each a share of it."""
    (host,) = [json.loads(file.read_text())["pid"] for file in world.home.glob("groups/*/host.json")]
    drivers = {name: used_by(owner.pid)[1] for name, owner in owners(world).items() if owner is not None}
    shared = used_by(host)[1]
    slots = {name: LEVELS[0].read(world.pipeline(name), utc_now())[-1]["most"] for name in NAMES}
    cores, memory = (
        {name: float(each[CURVES.index(what)]) for name, each in slots.items()}
        for what in ("cpu_cores", "memory_bytes")
    )
    return (
        all(each > 0 for each in cores.values()) and sum(cores.values()) <= (os.cpu_count() or 1)
        and memory == {name: pytest.approx(own + shared / len(NAMES), rel=0.2) for name, own in drivers.items()}
    )  # fmt: skip


def epochs(world: Settings) -> dict[str, int | None]:
    """Return the epoch of each driver that lives."""
    return {name: None if owner is None else owner.epoch for name, owner in owners(world).items()}


@pytest.mark.proves(
    "howto-stream.md#many-small-streams-in-one-jvm",
    "howto-stream.md#lag-in-kafkas-own-tools",
    "howto-watch.md#objectives",
)
def test_drivers_of_a_group_share_a_jvm_and_nothing_else(world: Settings, topic: str) -> None:
    def wait(what: str, condition: object, seconds: float = 120) -> None:
        wait_for(what, condition, seconds, every=0.1, seen=lambda: seen(world))  # type: ignore[arg-type]

    start_agent(world)
    for name in NAMES:
        write_intent(world.pipeline(name), "running", "test", utc_now())
    produce(world, topic, flights(40))
    wait("three drivers", lambda: runs(world, *NAMES), 240)
    wait("their first records", lambda: committed(world, 40, *NAMES))
    before = owners(world)
    (jvm,) = jvms(world)
    assert len({owner and owner.pid for owner in before.values()}) == 3
    wait("what each uses", lambda: costs_are_shared(world))

    # One driver is killed: the next one has its query in the same JVM, and the others do not notice.
    assert before["first"] is not None
    os.kill(before["first"].pid, signal.SIGKILL)
    produce(world, topic, flights(30, seed=2))
    wait("the next driver", lambda: epochs(world)["first"] == 2 and runs(world, "first"))
    wait("records after the kill", lambda: committed(world, 70, *NAMES))
    assert epochs(world) == {"first": 2, "second": 1, "third": 1}
    assert jvms(world) == {jvm}

    # One is stopped, and the others read on.
    run(world, "stop", "second", "--wait")
    produce(world, topic, flights(20, seed=3))
    wait("records beside a stopped one", lambda: committed(world, 90, "first", "third"))
    assert committed(world, 70, "second")
    run(world, "start", "second")
    wait("the stopped one", lambda: committed(world, 90, "second"))

    # The JVM is killed: all drivers end, come back in another one, and have lost and doubled nothing.
    os.kill(jvm, signal.SIGKILL)
    produce(world, topic, flights(10, seed=4))
    wait("records after the JVM's end", lambda: committed(world, 100, *NAMES), 240)
    (new,) = jvms(world)
    assert new != jvm
    for name in NAMES:
        report = run(world, "--output", "json", "reconcile", name)
        assert json.loads(report)["counts"].get("DEFECT", 0) == 0, report
    # What Kafka's own tools show of the streams is where they are.
    ends = kafka.end_offsets(world, topic)
    run(world, "down")
    for name in NAMES:
        assert position(world, f"rivertwice.{name}") == {(topic, partition): end for partition, end in ends.items()}
    assert started_of(new) is None


def position(world: Settings, group: str) -> dict[tuple[str, int], int]:
    """Return what Kafka has as the position of a consumer group: topic and partition to the next offset."""
    client = kafka.admin(world)  # kept until it has answered
    (asked,) = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {(place.topic, place.partition): place.offset for place in asked.result(30).topic_partitions}


def run(world: Settings, *words: str) -> str:
    """Run a verb that must succeed; return its output."""
    address = {"RIVERTWICE_BOOTSTRAP": world.bootstrap}
    result = CliRunner().invoke(cli, ["--project", str(world.project), "--home", str(world.home), *words], env=address)
    assert result.exit_code == 0, result.output
    return result.stdout
