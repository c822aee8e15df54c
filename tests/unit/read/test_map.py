"""The map: parts and ways of one pipeline, with what waits on each, and the state of a sink."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from homes.project import FLIGHTS
from rivertwice.definition.definition import load_definition
from rivertwice.definition.delivery_section import KafkaDelivery
from rivertwice.definition.model import Definition
from rivertwice.deliver.status import SinkView
from rivertwice.read.facts import Facts
from rivertwice.read.map import MapEdge, MapNode, parts_of, state_of_sink
from rivertwice.read.now import decide_now
from rivertwice.read.overview import Snapshot
from rivertwice.read.problems import BAD, GOOD, NONE, WARN
from simulated.facts import BEAT, NOW, WELL, with_stream

SINK = SinkView(
    sink="loads", to="kafka topic loads", guarantee="exactly_once", version="p", timeline="t1", batch=120, sequence=3, steps=9,
    part=None, rows=400, lag_batches=0, waits_since=None, on_head_path=True, delivered_at=NOW, consecutive_failures=0,
    next_attempt=None, refused=0, error=None,
)  # fmt: skip


def flights() -> Definition:
    sink = KafkaDelivery.model_validate({"to": "kafka", "topic": "loads", "guarantee": "exactly_once"})
    return load_definition(FLIGHTS).model_copy(update={"deliver": {"loads": sink}})


def drawn(facts: Facts, view: SinkView = SINK) -> tuple[dict[str, MapNode], dict[tuple[str, str], MapEdge]]:
    definition = flights()
    parts = list(
        parts_of(definition, Snapshot(facts, decide_now(facts, NOW), (), NOW), [(definition.deliver["loads"], view)])
    )
    nodes = {part.id: part for part in parts if isinstance(part, MapNode)}
    return nodes, {(part.source, part.target): part for part in parts if isinstance(part, MapEdge)}


def test_a_pipeline_leads_from_its_topic_over_what_it_serves_to_its_sinks() -> None:
    nodes, edges = drawn(WELL)
    name = flights().name
    assert list(nodes) == ["topic:flights", f"pipeline:{name}", f"table:{name}", f"sink:{name}/loads", "topic:loads"]
    assert list(edges) == [
        ("topic:flights", f"pipeline:{name}"),
        (f"pipeline:{name}", f"table:{name}"),
        (f"table:{name}", f"sink:{name}/loads"),
        (f"sink:{name}/loads", "topic:loads"),
    ]
    assert [(each.text, each.tone) for each in edges.values()] == [
        ("lag 4", GOOD),
        ("until 2026-11-27 02:50", GOOD),
        ("", GOOD),
        ("", NONE),
    ]


def test_a_lag_that_does_not_shrink_colours_the_way_and_an_old_one_is_grey() -> None:
    way = ("topic:flights", f"pipeline:{flights().name}")
    grows = with_stream(
        {"heartbeat": replace(BEAT, lag_parts={"flights": {"0": 4000, "1": 5000}})}, {"lag": 9000, "catch_up_s": None}
    )
    assert (drawn(grows)[1][way].text, drawn(grows)[1][way].tone) == ("lag 9,000", WARN)
    old = with_stream({}, {"lag_age_s": 40.0})
    assert (drawn(old)[1][way].text, drawn(old)[1][way].tone) == ("lag was 4", NONE)


def test_a_version_that_does_not_serve_leads_to_no_table() -> None:
    nodes, _ = drawn(with_stream({}, {"serves": False}))
    assert [node.kind for node in nodes.values()] == ["topic", "pipeline"]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, (GOOD, "up to date")),
        ({"lag_batches": 3}, (GOOD, "delivers")),
        ({"batch": None, "sequence": None}, (NONE, "nothing delivered yet")),
        ({"refused": 2}, (WARN, "2 deliveries refused")),
        ({"consecutive_failures": 4, "error": "no broker\nat all"}, (BAD, "no broker")),
        ({"on_head_path": False}, (BAD, "it has rows that the head left")),
    ],
)
def test_the_state_of_a_sink_is_a_tone_and_words(changes: dict[str, Any], state: tuple[str, str]) -> None:
    assert state_of_sink(replace(SINK, **changes)) == state
