"""The log of a pattern of topics: who may join, which numbers partitions get, and offsets by either name."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rivertwice.core.errors import LogGapError
from rivertwice.core.homes import TopicName
from rivertwice.core.settings import Settings
from rivertwice.log.addresses import Part
from rivertwice.log.topic_sets import Joined, TopicSet, TopicSets
from rivertwice.stream.checkpoint import note_sets, read_initial_offsets, read_planned, read_sets

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = "orders.*"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, home=tmp_path / "home")


def join(settings: Settings, **found: tuple[str, list[int]]) -> TopicSet:
    known = TopicSet.load(settings, ORDERS)
    new = known.find_new({f"orders.{name}": value for name, value in found.items()})
    assert not new or known.record(settings, new, NOW)
    return TopicSet.load(settings, ORDERS)


@pytest.mark.parametrize(
    ("pattern", "topic", "read"),
    [
        (ORDERS, "orders.eu", True),
        (ORDERS, "orders.", True),
        (ORDERS, "orders", False),
        (ORDERS, "ordersXeu", False),  # a dot is a dot
        ("*.orders", "eu.orders", True),
        ("a*c*e", "abcde", True),
        ("a*c*e", "ace", True),
        ("a*c*e", "aec", False),
        ("*", "__consumer_offsets", False),
        ("*", "rivertwice-replay-x", False),
        ("*", "rivertwice-positions", False),
        ("orders", "orders", True),
        ("orders", "orders2", False),
    ],
)
def test_a_star_stands_for_any_characters_and_internal_topics_match_nothing(
    pattern: str, topic: str, read: bool
) -> None:
    assert TopicName(pattern).reads(topic) is read


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (ORDERS, "orders.eu", True),
        ("orders.eu", ORDERS, True),
        (ORDERS, "payments", False),
        (ORDERS, "payments.*", False),
        (ORDERS, "orders.e*", True),
        ("*.eu", ORDERS, True),
        ("a", "b", False),
    ],
)
def test_two_sources_may_share_a_topic_unless_their_patterns_begin_differently(
    one: str, other: str, both: bool
) -> None:
    assert TopicName(one).may_share(TopicName(other)) is both


def test_what_joins_gets_the_next_numbers_and_keeps_them(settings: Settings) -> None:
    assert join(settings).parts == ()
    begun = join(settings, us=("id-us", [0]), eu=("id-eu", [1, 0]))
    assert begun.parts == (Part("orders.eu", 0), Part("orders.eu", 1), Part("orders.us", 0))
    grown = join(settings, us=("id-us", [0, 1]), eu=("id-eu", [0, 1]), asia=("id-asia", [0]))
    assert grown.parts == (*begun.parts, Part("orders.asia", 0), Part("orders.us", 1))
    assert grown.id == begun.id
    assert join(settings, us=("id-us", [0, 1])).records == 2  # nothing new: nothing is recorded


def test_a_topic_under_another_id_adds_nothing(settings: Settings) -> None:
    join(settings, eu=("id-eu", [0]))
    assert join(settings, eu=("another", [0, 1])).parts == (Part("orders.eu", 0),)


def test_of_two_that_join_at_once_one_numbers(settings: Settings) -> None:
    seen = TopicSet.load(settings, ORDERS)
    assert seen.record(settings, [Joined("orders.eu", "id-eu", (0,))], NOW)
    assert not seen.record(settings, [Joined("orders.us", "id-us", (0,))], NOW)
    assert TopicSet.load(settings, ORDERS).parts == (Part("orders.eu", 0),)


def test_another_process_sees_what_joined(settings: Settings, tmp_path: Path) -> None:
    join(settings, eu=("id-eu", [0]))
    names = [path.name for path in sorted((tmp_path / "home" / "topics" / "orders.~").iterdir())]
    assert names == ["0.json"]


def test_offsets_have_the_names_of_the_log_or_of_kafka(settings: Settings) -> None:
    join(settings, us=("id-us", [0]), eu=("id-eu", [0, 1]))
    sets = TopicSets.load(settings, [ORDERS, "plain"])
    log = {ORDERS: {"0": 5, "1": 6, "2": 7}, "plain": {"0": 1}}
    kafka = {"orders.eu": {"0": 5, "1": 6}, "orders.us": {"0": 7}, "plain": {"0": 1}}
    assert sets.to_kafka(log) == kafka
    assert sets.to_log(kafka) == log
    assert TopicSets.from_plain(sets.to_plain()).to_kafka(log) == kafka
    with pytest.raises(LogGapError, match=r"orders\.\* has no partition 3: 3 have joined"):
        sets.to_kafka({ORDERS: {"3": 0}})


def test_a_checkpoint_is_read_by_the_numbers_that_its_query_began_with(settings: Settings, tmp_path: Path) -> None:
    join(settings, us=("id-us", [0]), eu=("id-eu", [0]))
    checkpoint = tmp_path / "checkpoint"
    note_sets(checkpoint, settings, [ORDERS])
    join(settings, us=("id-us", [0]), eu=("id-eu", [0]), asia=("id-asia", [0]))
    kafka = {"orders.us": {"0": 4}, "orders.eu": {"0": 3}}
    text = "\n".join(["v1", '{"batchWatermarkMs":7,"batchTimestampMs":8}', json.dumps(kafka)])
    for name, content in (("offsets/2", text.encode()), ("sources/0/0", b"\0v1\n" + json.dumps(kafka).encode())):
        path = checkpoint / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    log = {ORDERS: {"0": 3, "1": 4}}
    planned = read_planned(checkpoint, 2)
    assert planned is not None
    assert planned.end_offsets == read_initial_offsets(checkpoint) == log
    assert json.loads(planned.text.split("\n")[2]) == log
    assert json.loads(read_sets(checkpoint).text_to_kafka(planned.text).split("\n")[2]) == kafka


def test_without_a_pattern_a_checkpoint_is_as_spark_wrote_it(settings: Settings, tmp_path: Path) -> None:
    assert not note_sets(tmp_path / "checkpoint", settings, ["orders"])
    assert not (tmp_path / "checkpoint").exists()
    text = "v1\n{}\n" + '{"orders": {"0": 3}}'
    assert read_sets(tmp_path / "checkpoint").text_to_log(text) == text
