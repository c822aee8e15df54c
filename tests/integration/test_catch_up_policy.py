"""A definition's policy lets the agent leave a long backlog to batch and publish it: once, said aloud, and sealed afterwards."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from homes.project import TO_RUN, edit_yaml, make_project
from rivertwice.agent.alert_store import alerts_of
from rivertwice.agent.leave import BY
from rivertwice.agent.leaver import LEFT, LeaveKeeper
from rivertwice.core.instants import to_ms, utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import build_bundle
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.gaps import accepted_gaps, read_acceptance
from rivertwice.log.kafka import ensure_topic
from rivertwice.reconcile.run import reconcile
from rivertwice.reconcile.unchanged import reconcile_unchanged
from rivertwice.retention.backlog import FILL, HAND_OVER, WAIT
from rivertwice.storage import delta
from rivertwice.timeline.intent import read_intent, write_intent
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import rebuild_served
from running.waiting import wait_for
from running.warm_spark import own_session, run_driver_warm
from streams.amounts import NAME, SQL, YAML, amounts, send, totals

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]


def events(settings: Settings) -> list[str]:
    path = settings.home / "agent" / "events.jsonl"
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()] if path.exists() else []


def open_alerts(settings: Settings) -> list[str]:
    return [
        alert.message
        for alert in alerts_of(settings).state().alerts
        if alert.cause.kind == LEFT and alert.resolved_at is None
    ]


def wait_for_job(settings: Settings, keeper: LeaveKeeper, seconds: float = 240) -> Any:
    """Let the job at work end; return the decision of the look that noticed it."""
    known = keeper._known[NAME]
    assert known.job is not None
    log = settings.pipeline(NAME).logs / "catch-up.log"
    wait_for("the job", lambda: known.job.poll() is not None, seconds, every=0.2, seen=lambda: log.read_text()[-3000:])
    return known.job.returncode


def test_the_agent_leaves_a_long_backlog_to_batch_once_and_publishes_it(tmp_path: Path, broker: BrokerInfo) -> None:
    topic, log = f"t-{uuid.uuid4().hex[:12]}", tmp_path / "driver.log"
    files = {"pipeline.yaml": YAML.replace("TOPIC", topic), "transform.sql": SQL}
    settings = make_project(tmp_path, {NAME: files}, links=TO_RUN, bootstrap=broker.bootstrap)
    home = settings.pipeline(NAME)
    ensure_topic(settings, topic, 1)
    records = amounts()
    send(settings, topic, records[:200])
    run_driver_warm(settings, NAME, log)
    before = build_bundle(settings.definitions / NAME).fingerprint.hashes()
    send(settings, topic, records[200:])  # while it was down
    write_intent(home, "running", "test", utc_now())
    keeper = LeaveKeeper(settings, lambda: [NAME], threading.Event())
    assert keeper.look(NAME, utc_now()).reason == "no policy"

    policy = {"by_batch_when": "1 second"}
    edit_yaml(settings.definitions / NAME, lambda document: document["stream"].update(catch_up=policy))
    assert build_bundle(settings.definitions / NAME).fingerprint.hashes() == before
    decision = keeper.look(NAME, utc_now())
    assert decision.kind == HAND_OVER
    assert "400 records wait" in decision.reason
    assert keeper.look(NAME, utc_now()).kind == WAIT  # a job is at work
    assert wait_for_job(settings, keeper) == 0, (home.logs / "catch-up.log").read_text()
    ((timeline, gap),) = accepted_gaps(home).items()
    accepted = read_acceptance(home, gap.id)
    assert accepted is not None
    assert (accepted.by, timeline, gap.lost) == (BY, "t2", 0)
    intent = read_intent(home)
    assert intent is not None
    assert (intent.desired, intent.by) == ("running", BY)

    # More waits, but nothing more is left while the gap is not published; an alert says so.
    decision = keeper.look(NAME, utc_now())
    assert (decision.kind, gap.id in decision.reason) == (WAIT, True)
    assert gap.id in open_alerts(settings)[0]
    assert "the stream has not closed their windows yet" in open_alerts(settings)[0]
    run_driver_warm(settings, NAME, log)
    assert sum(row.read for row in path_ledger(home)) < 600
    definition = load_definition(settings.definitions / NAME)
    rebuild_served(home, definition)

    # Once the windows are closed, a job publishes them; the next one finds them served, and the gap is filled.
    for code in (4, 0):
        assert keeper.look(NAME, utc_now()).kind == FILL
        assert wait_for_job(settings, keeper) == code, (home.logs / "catch-up.log").read_text()
        rebuild_served(home, definition)
    assert keeper.look(NAME, utc_now()).reason == "nothing waits"
    assert open_alerts(settings) == []
    assert [kind for kind in events(settings) if kind.startswith("catch_up")] == [
        "catch_up_by_batch",
        "catch_up_done",
        "catch_up_fill",
        "catch_up_done",
        "catch_up_fill",
        "catch_up_done",
    ]
    table = delta.read(home.tables.served)
    assert table is not None
    served = {(to_ms(row["window_start"]), row["k"]): (row["records"], row["total"]) for row in table.to_pylist()}
    truth = totals(records)
    late = {row for row, values in served.items() if values != truth[row][:2]}

    # The gap is behind a seal now: with nothing new, nothing is judged; with new records, only what is new.
    same = reconcile_unchanged(settings, NAME, now=utc_now())  # it has no Spark
    assert same is not None
    assert same.counts["served"].get("NOT_COMPARABLE", 0) == 0
    assert same.counts["served"]["LATE"] == len(late)
    send(settings, topic, [replace_time(one, 5 * 60) for one in records[:60]])
    run_driver_warm(settings, NAME, log)
    rebuild_served(home, definition)
    with own_session() as spark:
        grown = reconcile(spark, settings, NAME, now=utc_now())
        whole = reconcile(spark, settings, NAME, full=True, now=utc_now())
    assert grown.increment is not None, grown.why
    assert (grown.gate.passed, grown.sealed) == (True, True)
    assert whole.gate.passed
    assert whole.counts == grown.counts


def replace_time(one: Any, minutes: int) -> Any:
    return type(one)(one.k, one.at_ms + minutes * 60_000, one.delta)
