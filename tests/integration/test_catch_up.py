"""After downtime: what waits, and its oldest part left to batch; the stream continues with the newest, and nothing is lost."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from homes.project import TO_RUN, make_project
from rivertwice.core.instants import to_ms, utc_now
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.reconcile.run import reconcile
from rivertwice.storage.table import Table
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import rebuild_served
from running.warm_spark import invoke_warm, own_session, run_command_warm, run_driver_warm
from streams.amounts import MINUTE_MS, NAME, SQL, YAML, amounts, send, totals

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]


def test_the_oldest_part_of_a_backlog_is_left_to_batch(tmp_path: Path, broker: BrokerInfo) -> None:
    topic, log = f"t-{uuid.uuid4().hex[:12]}", tmp_path / "driver.log"
    files = {"pipeline.yaml": YAML.replace("TOPIC", topic), "transform.sql": SQL}
    settings = make_project(tmp_path, {NAME: files}, links=TO_RUN, bootstrap=broker.bootstrap)
    ensure_topic(settings, topic, 1)
    records = amounts()
    send(settings, topic, records[:200])
    run_driver_warm(settings, NAME, log)
    assert "nothing waits for amounts" in invoke_warm(settings, "backfill", "catch-up", NAME).output
    send(settings, topic, records[200:])  # while it was down

    shown = run_command_warm(settings, "backfill", "catch-up", NAME, "--check")["topics"][topic]
    assert shown["records"] == 400
    assert shown["is_outrun"] is False
    shown = invoke_warm(settings, "backfill", "catch-up", NAME, "--by-batch", "--dry-run")
    assert shown.exit_code == 0
    refused = invoke_warm(settings, "backfill", "catch-up", NAME, "--by-batch")
    assert refused.exit_code == 1
    assert "nothing was changed: it needs a yes" in refused.stderr
    plan = refused.output
    assert "nothing was done" in plan
    assert "rivertwice backfill catch-up amounts --by-batch --yes" in plan
    few = invoke_warm(settings, "backfill", "catch-up", NAME, "--by-batch", "--keep", "10 hours")
    assert few.exit_code == 1
    assert "is of the newest 10:00:00" in few.output

    done = run_command_warm(settings, "backfill", "catch-up", NAME, "--by-batch", "--yes")
    assert 200 < done["records"] < 400
    run_driver_warm(settings, NAME, log)
    home = settings.pipeline(NAME)
    assert sum(row.read for row in path_ledger(home)) == 600 - done["records"]

    definition = load_definition(settings.definitions / NAME)
    rebuild_served(home, definition)
    report = run_command_warm(settings, "reconcile", NAME)
    assert report["counts"]["served"]["DEFECT"] == 0
    assert report["counts"]["served"]["NOT_COMPARABLE"] > 0
    refused = invoke_warm(settings, "backfill", "run", NAME)
    assert refused.exit_code == 1
    assert f"to do it: rivertwice backfill run {NAME} --yes" in refused.stderr
    assert run_command_warm(settings, "backfill", "list", NAME) == []
    published = run_command_warm(settings, "backfill", "run", NAME, "--yes")
    assert published["windows"] > 0
    rebuild_served(home, definition)
    repaired = run_command_warm(settings, "reconcile", NAME)
    assert (repaired["counts"]["served"]["DEFECT"], repaired["counts"]["served"]["NOT_COMPARABLE"]) == (0, 0)
    table = Table(home.tables.served).read()
    assert table is not None
    served = {(to_ms(row["window_start"]), row["k"]): (row["records"], row["total"]) for row in table.to_pylist()}
    truth = totals(records)
    late = {row for row, values in served.items() if values != truth[row][:2]}
    assert len(late) == repaired["counts"]["served"]["LATE"]
    assert len(served) > 60

    # The gap is behind a seal now: a look judges only what is new, and finds the same as one that judges everything. That holds for
    # records of new windows, and for late ones of windows that hold skipped records and were published since.
    for minutes in (300, 5):
        send(settings, topic, [replace(one, at_ms=one.at_ms + minutes * MINUTE_MS) for one in records[:60]])
        run_driver_warm(settings, NAME, log)
        rebuild_served(home, definition)
        with own_session() as spark:
            grown = reconcile(spark, settings, NAME, now=utc_now())
            whole = reconcile(spark, settings, NAME, full=True, now=utc_now())
        assert grown.increment is not None, grown.why
        assert (grown.gate.passed, grown.sealed, whole.gate.passed, whole.sealed) == (True, True, True, True), whole.why
        assert whole.counts == grown.counts
    assert whole.counts["served"]["LATE"] > len(late)
    assert whole.counts["served"]["NOT_COMPARABLE"] == 0
