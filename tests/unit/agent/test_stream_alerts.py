"""Two facts of one kind: a driver that ended because records were deleted, and a topic that is about to lose some."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from rivertwice.agent.act import page
from rivertwice.agent.agent import Agent
from rivertwice.agent.alert_store import alerts_of
from rivertwice.agent.alerting import end_stream_alerts
from rivertwice.agent.archiver import RetentionKeeper
from rivertwice.agent.decide import Action, ActionKind
from rivertwice.agent.disk import KIND, DiskWatch
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.timeline.intent import write_intent


def lasting(settings: Settings) -> list[str]:
    return [one.cause.subject for one in alerts_of(settings).state().alerts if one.resolved_at is None]


def test_a_safe_topic_and_a_stream_given_up_do_not_end_each_others_alert(
    settings: Settings,
) -> None:
    keeper = RetentionKeeper(settings, lambda: ["p"], threading.Event())
    safe: Any = SimpleNamespace(leases=())
    page(settings, "retention", "p", "given up: records were deleted", utc_now())
    page(settings, "retention", "p", "flights runs out", utc_now(), subject="flights")
    end_stream_alerts(settings, "p", Action(ActionKind.WAIT, "a driver runs"), well=True, now=utc_now())
    assert lasting(settings) == ["flights"]
    page(settings, "retention", "p", "given up: records were deleted", utc_now())
    keeper._page("p", safe, utc_now())
    assert lasting(settings) == [""]


def test_an_earlier_agents_report_is_over_when_the_next_finds_all_well(settings: Settings) -> None:
    now = utc_now()
    page(settings, KIND, None, "the disk is full", now)
    page(settings, "damaged_file", "p", "intent.json cannot be decoded", now)
    write_intent(settings.pipeline("p"), "stopped", "test", now)
    DiskWatch(settings).wrote(now)
    Agent(settings).run_pass(now)
    assert lasting(settings) == []
