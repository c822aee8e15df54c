"""A source whose topic is a pattern: what its definition may say."""

from __future__ import annotations

import pytest

from homes.one_source import WINDOWS_YAML
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.definition import Definition, parse_files

SQL = "SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n FROM events GROUP BY window(at, '1 hour'), k"


def define(topic: str, *more: tuple[str, str]) -> Definition:
    text = WINDOWS_YAML.replace("WINDOW", "{size: 1 hour}").replace("KEYS", "[k]")
    text = text.replace("topic: events\n    partitions: 1\n", f"topic: {topic}\n")
    for old, new in more:
        assert old in text
        text = text.replace(old, new)
    return parse_files({"pipeline.yaml": text.encode(), "transform.sql": SQL.encode()}, "p")


def test_a_pattern_declares_no_partitions_and_a_topic_must() -> None:
    assert define("'orders.*'").topics == ["orders.*"]
    assert define("'*'").topics == ["*"]
    with pytest.raises(DefinitionError, match=r"'orders\.\*' is a pattern of topics.*remove partitions"):
        define("'orders.*'\n    partitions: 2")
    with pytest.raises(DefinitionError, match="partitions is missing: with how many topic 'orders' is created"):
        define("orders")


@pytest.mark.parametrize("topic", ["'orders\\.*'", "'(a|b)*'", "'a/*'", "'a?*'", "'[ab]*'", "'-a*'"])
def test_a_pattern_has_no_other_signs_than_stars(topic: str) -> None:
    with pytest.raises(DefinitionError, match=r"in a pattern \* stands for any characters"):
        define(topic)


def test_a_pattern_that_reads_what_the_pipeline_writes_is_refused() -> None:
    delivery = "deliver:\n  out: {to: kafka, topic: TOPIC, guarantee: exactly_once}\nwindow:"
    define("'orders.*'", ("window:", delivery.replace("TOPIC", "results")))
    with pytest.raises(DefinitionError, match=r"writes to orders\.sums, which the pipeline reads"):
        define("'orders.*'", ("window:", delivery.replace("TOPIC", "orders.sums")))
    with pytest.raises(DefinitionError, match="only a source reads several topics"):
        define("'orders.*'", ("window:", delivery.replace("TOPIC", "'sums.*'")))


def test_a_pattern_has_no_heartbeat() -> None:
    with pytest.raises(DefinitionError, match="heartbeat is sent to one topic"):
        define("'orders.*'", ("    max_future", "    heartbeat: {k: beat}\n    max_future"))
