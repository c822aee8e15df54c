"""A driver that is killed in the middle of its very first plan is followed by one that begins, and loses nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from histories.random_histories import random_batches
from rivertwice.embedded.broker import BrokerInfo
from rivertwice.instants import utc_now
from rivertwice.pipeline.bundle import build_bundle, save_bundle
from rivertwice.pipeline.definition import load_definition
from rivertwice.stream.begin import resolve_timeline
from running.warm_spark import run_command_warm
from streams.kinds import NAME, check_explained, make_kind_project, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_the_remains_of_a_first_plan_do_not_keep_a_stream_from_beginning(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings = make_kind_project(tmp_path, broker, topic, "tumbling")
    folder = settings.definitions / NAME
    definition, home = load_definition(folder), settings.pipeline(NAME)
    records = [record for batch in random_batches(random.Random("first plan"), 2) for record in batch][:120]
    send(settings, definition, records)
    bundle = build_bundle(folder)
    save_bundle(bundle, home.bundles)
    line = resolve_timeline(settings, home, definition, bundle, utc_now())
    # As found behind a kill -9: Spark had written the source's beginning, and half of its plan. It refuses to start beside it.
    remains = home.checkpoint(line.timeline) / "offsets"
    remains.mkdir(parents=True)
    for name in (".0.49d55e5d-ef93-4974-b6eb-4b0897b99453.tmp", "..0.49d55e5d-ef93-4974-b6eb-4b0897b99453.tmp.crc"):
        (remains / name).touch()
    run_to_end(settings, tmp_path / "driver.log")
    report = run_command_warm(settings, "reconcile", NAME)
    check_explained(report)
    assert report["balance"]["total"]["read"] == len(records)
