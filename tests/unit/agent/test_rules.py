"""When an alert fires, and what it says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from rivertwice.agent.alerting import select_edges
from rivertwice.agent.figures import Measures
from rivertwice.agent.prometheus import (
    GAUGES,
    OFF,
    OK,
    RULES,
    UNKNOWN,
    alerting_rules,
    exposition,
    firing,
    judge_alerts,
)
from rivertwice.definition.model import AlertLimits

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUIET = Measures(
    "lab_sums", NOW, desired="running", state="running", backpressure_s=0.0, savepoint_age_s=60.0, lag_records=0,
    latency_s=0.5, dead_share=0.0, dead_oldest_s=0.0, recovery_s=30.0, recovery_objective_s=120.0, delivery_wait_s=0.0,
    checkpoint_wait_s=0.0,
)  # fmt: skip
LIMITS = AlertLimits(lag=100, latency=timedelta(seconds=2))


def states(found: Measures, limits: AlertLimits = LIMITS) -> dict[str, str]:
    return {each.rule.name: each.state for each in judge_alerts(found, limits)}


def test_a_healthy_stream_fires_nothing() -> None:
    assert set(states(QUIET).values()) == {OK}


@pytest.mark.parametrize(
    ("rule", "figure", "at", "above"),
    [
        ("backpressure", "backpressure_s", 300.0, 300.1),
        ("checkpoint_slow", "checkpoint_wait_s", 300.0, 300.1),
        ("savepoint_stale", "savepoint_age_s", 7200.0, 7200.1),
        ("recovery", "recovery_s", 120.0, 120.1),
        ("lag", "lag_records", 100, 101),
        ("latency", "latency_s", 2.0, 2.01),
        ("dead_share", "dead_share", 0.01, 0.0101),
        ("dead_unattended", "dead_oldest_s", 86_400.0, 86_401.0),
        ("delivery_lag", "delivery_wait_s", 900.0, 900.1),
    ],
)
def test_each_alert_fires_above_its_limit_and_not_at_it(rule: str, figure: str, at: float, above: float) -> None:
    assert states(replace(QUIET, **{figure: at}))[rule] == OK
    fired = judge_alerts(replace(QUIET, **{figure: above}), LIMITS)
    assert [each.rule.name for each in firing(fired)] == [rule]


def test_every_rule_is_tried_above() -> None:
    assert {rule.name for rule in RULES} == {
        "backpressure",
        "checkpoint_slow",
        "savepoint_stale",
        "recovery",
        "lag",
        "latency",
        "dead_share",
        "dead_unattended",
        "delivery_lag",
    }


def test_a_figure_that_is_not_known_is_unknown_and_not_ok() -> None:
    assert states(replace(QUIET, lag_records=None))["lag"] == UNKNOWN


def test_without_an_objective_a_long_recovery_fires_nothing() -> None:
    assert states(replace(QUIET, recovery_s=1e9, recovery_objective_s=None))["recovery"] == OFF


def test_prometheus_compares_the_recovery_with_its_own_metric() -> None:
    (rule,) = [
        each
        for each in yaml.safe_load(alerting_rules({"p": LIMITS}))["groups"][0]["rules"]
        if "Recovery" in each["alert"]
    ]
    assert (
        rule["expr"]
        == 'rivertwice_recovery_seconds{pipeline="p"} > rivertwice_recovery_objective_seconds{pipeline="p"} and '
        'rivertwice_wanted{pipeline="p"} == 1'
    )


def test_without_a_limit_an_alert_is_off() -> None:
    assert states(replace(QUIET, lag_records=10**9), AlertLimits())["lag"] == OFF


def test_a_stream_that_nobody_wants_running_fires_nothing() -> None:
    stopped = replace(QUIET, desired="stopped", lag_records=10**9, savepoint_age_s=1e9)
    assert set(states(stopped).values()) == {OFF}


def test_the_message_names_fact_value_limit_and_remedy() -> None:
    (found,) = firing(judge_alerts(replace(QUIET, lag_records=5000), LIMITS))
    assert found.message.startswith("5,000 records wait to be read (limit 100); ")
    assert "rivertwice status --why" in found.message


@pytest.mark.parametrize(
    ("figure", "value", "says"),
    [
        ("dead_share", 0.329932, "33 % of the newest records cannot be decoded or break a rule (limit 1 %)"),
        ("savepoint_age_s", 7265.4, "the newest proved savepoint is 2:01:05 old (limit 2:00:00): a damaged"),
        ("latency_s", 93.04, "a record waits 93 s until it is committed (limit 30 s)"),
    ],
)
def test_figures_are_shown_as_people_say_them(figure: str, value: float, says: str) -> None:
    limits = AlertLimits.model_validate({"latency": "30 s"})
    (found,) = firing(judge_alerts(replace(QUIET, **{figure: value}), limits))
    assert found.message.startswith(says)


def test_an_alert_begins_once_and_ends_once() -> None:
    high = judge_alerts(replace(QUIET, lag_records=5000), LIMITS)
    begun, over = select_edges(frozenset(), high)
    assert ([each.rule.name for each in begun], over) == (["lag"], [])
    assert select_edges(frozenset({"lag"}), high) == ([], [])
    begun, over = select_edges(frozenset({"lag"}), judge_alerts(QUIET, LIMITS))
    assert (begun, [each.rule.name for each in over]) == ([], ["lag"])


def test_a_figure_that_is_not_known_neither_begins_nor_ends_an_alert() -> None:
    unknown = judge_alerts(replace(QUIET, lag_records=None), LIMITS)
    assert select_edges(frozenset({"lag"}), unknown) == ([], [])


def test_failing_expectations_are_counted_by_severity() -> None:
    text = exposition([replace(QUIET, quality_failing={"critical": 1, "warning": 0})], {})
    assert 'rivertwice_quality_failing{pipeline="lab_sums",severity="critical"} 1.0' in text
    assert 'rivertwice_quality_failing{pipeline="lab_sums",severity="warning"} 0.0' in text
    assert "rivertwice_quality_failing{" not in exposition([QUIET], {})


@pytest.mark.proves("howto-watch.md#metrics-and-diagnosis")
def test_the_exposition_leaves_out_what_is_not_known() -> None:
    text = exposition([replace(QUIET, lag_s=None)], {"lab_sums": judge_alerts(QUIET, LIMITS)})
    assert 'rivertwice_lag_records{pipeline="lab_sums"} 0.0' in text
    assert "rivertwice_lag_seconds{" not in text
    assert 'rivertwice_up{pipeline="lab_sums"} 1.0' in text
    assert 'rivertwice_alert{alert="lag",pipeline="lab_sums"} 0.0' in text


def test_the_rules_file_has_an_alert_per_limit_over_a_metric_that_exists() -> None:
    document = yaml.safe_load(alerting_rules({"lab_sums": LIMITS, "other": AlertLimits()}))
    rules = document["groups"][0]["rules"]
    assert len(rules) == 9 + 7
    names = {"rivertwice_" + name for _, name, _ in GAUGES}
    assert {rule["expr"].partition("{")[0] for rule in rules} <= names
    assert 'rivertwice_latency_seconds{pipeline="lab_sums"} > 2' in [
        rule["expr"].partition(" and ")[0] for rule in rules
    ]
