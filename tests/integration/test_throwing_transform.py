"""Records that the transform's SQL throws on stop a stream by name, and a rule of an upgrade brings it on: nothing is lost."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from histories.random_histories import random_batches
from lab.faults.events import Event, produce_events
from rivertwice.embedded.broker import BrokerInfo
from rivertwice.instants import EPOCH, to_iso, utc_now
from rivertwice.log.kafka import end_offsets
from rivertwice.pipeline.definition import load_definition
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.intent import read_exit
from rivertwice.timeline.lineage import path_ledger
from running.warm_spark import run_command_warm
from streams.kinds import NAME, make_kind_project, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
LARGEST = 2**63 - 1


def test_a_rule_rejects_what_the_transform_throws_on(
    spark: SparkSession, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings = make_kind_project(tmp_path, broker, topic, "tumbling", batch=200)
    definition = load_definition(settings.definitions / NAME)
    records = [one for batch in random_batches(random.Random(3), 8) for one in batch]
    send(settings, definition, records)
    log = tmp_path / "driver.log"
    run_to_end(settings, log)
    home = settings.pipeline(NAME)
    taken = take_savepoint(settings, NAME, now=utc_now(), reason="test")
    run_command_warm(settings, "savepoint", "prove", NAME, taken.id)
    before = path_ledger(home)

    # Each of them is a bigint; their sum is not.
    last_s = max(one.event_s for one in records if one.event_s is not None)
    at = to_iso(EPOCH + timedelta(seconds=last_s + 100))
    values = [5, LARGEST, 5, LARGEST, 5]
    sent = [Event(0, b"a", json.dumps({"k": "a", "at": at, "v": one}).encode(), 1_767_225_600_000) for one in values]
    source = definition.source[1]
    culprit = f"{source.topic}/0@{end_offsets(settings, source.topic)[0] + 1}"  # 5 and the largest are too much already
    produce_events(settings, source.topic, sent)
    with pytest.raises(AssertionError, match="ARITHMETIC_OVERFLOW"):
        run_to_end(settings, log)
    end = read_exit(home)
    assert end is not None
    assert end.failure == "poison"
    assert (
        f"throws on the record {culprit}, after those before it in the batch, with [ARITHMETIC_OVERFLOW]" in end.message
    )
    assert f"`rivertwice upgrade {NAME} --yes`" in end.message
    assert [row.digest for row in path_ledger(home)] == [row.digest for row in before]

    path = settings.definitions / NAME / "pipeline.yaml"
    rule = "    rules: [{name: v_in_range, rule: range, field: v, min: 0, max: 1000000}]\n"
    path.write_text(path.read_text().replace("    required: [k, v]\n", f"    required: [k, v]\n{rule}", 1))
    assert run_command_warm(settings, "upgrade", NAME, "--yes")["changed"] == ["rules"]
    run_to_end(settings, log)
    rows = path_ledger(home)
    assert sum(row.bad for row in rows) - sum(row.bad for row in before) == 2
    assert sum(row.read for row in rows) == len(records) + len(values)
    # Windows that were open at the upgrade are of two definitions; no other is without a verdict, and no record without a cause.
    report = run_command_warm(settings, "reconcile", NAME)
    assert report["gate"]["passed"]
    assert {one["unexplained"] for one in (report["balance"]["total"], *report["balance"]["partitions"].values())} == {
        0
    }
    for counts in report["counts"].values():
        assert counts["DEFECT"] == 0
        assert counts["AGREES"] > counts["NOT_COMPARABLE"]
