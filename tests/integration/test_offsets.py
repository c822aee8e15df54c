"""What a stream commits of a topic is the next offset to read, with the state that the records before it make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions

from homes.project import EXAMPLES, TO_RUN, make_project, replace_text
from lab.faults.events import Event, produce_events
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.log.kafka import ensure_topic
from rivertwice.timeline.served import rebuild_served
from running.warm_spark import run_command_warm, run_driver_warm

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
NAME = "sales_per_category"
AT_MS = 1_767_225_600_000


def send(settings: Settings, topic: str, *records: tuple[int, str, int]) -> None:
    """Send sales: partition, category and amount of each."""
    made = [
        Event(
            partition,
            category.encode(),
            json.dumps(
                {
                    "sale_id": f"{category}-{amount}",
                    "category": category,
                    "amount": amount,
                    "at": "2026-01-01T00:00:00Z",
                }
            ).encode(),
            AT_MS,
        )
        for partition, category, amount in records
    ]
    produce_events(settings, topic, made)


def totals(settings: Settings) -> dict[str, float]:
    rebuild_served(settings.pipeline(NAME), load_definition(settings.definition_folder(NAME)))  # the agent's work
    shown = run_command_warm(settings, "show", NAME, "--by-key")
    return {row["category"]: float(row["total"]) for row in shown["rows"]}


def committed(settings: Settings) -> dict[str, int]:
    """Return partition to end offset of the newest row of the ledger, as `rivertwice show` prints it."""
    shown = run_command_warm(settings, "show", NAME, "--table", "ledger", "--limit", "1")
    (row,) = shown["rows"]
    ends = row["end_offsets"] if isinstance(row["end_offsets"], dict) else json.loads(row["end_offsets"])
    (parts,) = ends.values()
    return {partition: int(offset) for partition, offset in parts.items()}


def told_to_kafka(settings: Settings, topic: str) -> dict[int, int]:
    client = kafka.admin(settings)
    (asked,) = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(f"rivertwice.{NAME}")]).values()
    return {place.partition: place.offset for place in asked.result(30).topic_partitions if place.topic == topic}


@pytest.mark.proves("howto-stream.md#lag-in-kafkas-own-tools")
def test_committed_offsets_are_the_next_to_read_and_the_state_is_that_of_the_records_before(
    broker: BrokerInfo, tmp_path: Path, topic: str
) -> None:
    """S14: u7+5 at offset 0 of partition 1, u8+3 at 0 of 2, u7+2 at 1 of 1 give u7 = 7, u8 = 3, committed 2 and 1."""
    settings = make_project(tmp_path, {NAME: EXAMPLES / NAME}, links=TO_RUN, bootstrap=broker.bootstrap)
    file = settings.definitions / NAME / "pipeline.yaml"
    replace_text(file, "topic: sales", f"topic: {topic}")
    replace_text(file, "partitions: 2", "partitions: 3")
    ensure_topic(settings, topic, 3)
    send(settings, topic, (1, "u7", 5), (2, "u8", 3), (1, "u7", 2))
    run_driver_warm(settings, NAME, tmp_path / "first.log")
    assert totals(settings) == {"u7": 7, "u8": 3}
    assert committed(settings) == {"0": 0, "1": 2, "2": 1}
    assert told_to_kafka(settings, topic) == {0: 0, 1: 2, 2: 1}

    # The next driver begins there: nothing is read twice, nothing is left out.
    send(settings, topic, (1, "u7", 1))
    run_driver_warm(settings, NAME, tmp_path / "second.log")
    assert totals(settings) == {"u7": 8, "u8": 3}
    assert committed(settings) == {"0": 0, "1": 3, "2": 1}
