"""Partitions are added to a topic: the agent says so when it sees them, and what it means for a fold."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from rivertwice.agent.alert_store import alerts_of
from rivertwice.agent.archiver import ADDED, RetentionKeeper
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import build_bundle
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.stream.begin import resolve_timeline
from streams.kinds import NAME, make_kind_project

pytestmark = pytest.mark.kafka


def events(settings: Settings) -> list[str]:
    path = settings.home / "agent" / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line["message"] for line in lines if line["kind"] == ADDED]


@pytest.mark.parametrize(("kind", "paged"), [("fold", True), ("session", False)])
def test_added_partitions_are_named_with_what_they_mean(
    kind: str, paged: bool, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings = make_kind_project(tmp_path, broker, topic, kind)
    home = settings.pipeline(NAME)
    definition = load_definition(settings.definitions / NAME)
    kafka.ensure_topic(settings, topic, 3, {"retention.ms": "36000000"})
    bundle = build_bundle(settings.definitions / NAME)
    bundle.save(home.bundles)
    resolve_timeline(settings, home, definition, bundle, utc_now())
    keeper = RetentionKeeper(settings, lambda: [NAME], threading.Event())
    keeper.look(NAME, utc_now())
    assert events(settings) == []
    kafka.add_partitions(settings, topic, 5)
    for _ in range(2):
        keeper.look(NAME, utc_now())
    (said,) = events(settings)
    assert f"{topic} got partitions [3, 4] since t1 began; each is read from its first record" in said
    alerts = [alert for alert in alerts_of(settings).state().alerts if alert.cause.kind == ADDED]
    assert [(alert.cause.subject, alert.severity) for alert in alerts] == ([(topic, "warning")] if paged else [])
    if paged:
        assert "the order of a k ends" in said
        assert "copy it, keyed, to a topic with all partitions" in said
    else:
        assert "do not depend on where a key's records are" in said
