"""A Kafka source whose ends were set for some batches reads on by itself once it is released, whenever records come."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.stream.source import kafka_stream, release_source, set_polling, steer_source
from running.waiting import wait_for
from running.warm_spark import own_session
from streams.keyed import BEGIN_MS, NAME, PARTITIONS, Keyed, make_keyed_project, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_a_released_source_reads_what_comes_while_it_is_idle(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    settings = make_keyed_project(tmp_path, broker.bootstrap, topic, max_offsets_per_trigger=8)
    definition = load_definition(settings.definitions / NAME)
    records = [Keyed(n % PARTITIONS, "k", BEGIN_MS + n, BEGIN_MS + n) for n in range(40)]
    send(settings, topic, records[:32])
    counts: list[int] = []
    genesis = {topic: {str(partition): 0 for partition in range(PARTITIONS)}}

    with own_session() as spark:
        raw = kafka_stream(spark, settings, definition, genesis=genesis)

        def write(frame: Any, batch: int) -> None:
            counts.append(frame.count())
            execution = query._jsq.streamingQuery()
            if batch < 2:
                ends = {topic: {str(partition): 3 + batch for partition in range(PARTITIONS)}}
                assert steer_source(spark, settings, execution, ends)
            elif batch == 2:
                release_source(execution)

        place = str(tmp_path / "checkpoint")
        query = raw.writeStream.foreachBatch(write).option("checkpointLocation", place).start()
        try:
            wait_for("the records that waited", lambda: sum(counts) == 32, 60)
            time.sleep(2.0)  # many looks that find nothing: each may remember what it saw
            execution = query._jsq.streamingQuery()
            assert set_polling(execution, 500)  # it asks less often, and misses nothing
            assert execution.pollingDelayMs() == 500
            send(settings, topic, records[32:])
            wait_for("the records that came while it was idle", lambda: sum(counts) == 40, 60)
        finally:
            query.stop()
    assert counts[:3] == [8, 4, 4]
