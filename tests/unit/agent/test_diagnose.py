"""Each symptom with the figures that lead to it, and none without."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lab.faults.lab_project import DEFINITION
from rivertwice.agent.diagnose import Diagnosis, find_causes
from rivertwice.agent.figures import Measures
from rivertwice.definition.definition import load_definition
from rivertwice.definition.delivery_section import KafkaDelivery

LAB = load_definition(DEFINITION)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUIET = Measures("lab_sums", NOW, desired="running", state="running", heartbeat_age_s=0.5, lag_records=0, failures=0)
LAGGING: dict[str, Any] = {"lag_records": 900, "lag_s": 30.0, "partition_lag": {"0": 300, "1": 300, "2": 300}}


def causes(**changes: Any) -> list[Diagnosis]:
    return find_causes(replace(QUIET, **changes), LAB)


def test_a_healthy_stream_has_no_diagnosis() -> None:
    assert causes() == []


@pytest.mark.parametrize(
    ("changes", "symptom", "cause"),
    [
        ({"state": "given_up", "failures": 3}, "silence", "the agent stopped trying"),
        ({"state": "down", "failures": 2}, "silence", "fails again and again"),
        ({"state": "down"}, "silence", "no agent is running"),
        ({"state": "starting", "heartbeat_age_s": 500.0}, "silence", "the start hangs"),
        ({**LAGGING, "backpressure_s": 20.0, "batch_p50_s": 0.5}, "lag", "the cap of a batch is reached"),
        ({**LAGGING, "arriving_per_s": 50.0, "read_per_s": 20.0, "batch_p50_s": 3.0}, "lag", "the batches themselves are too slow"),
        ({**LAGGING, "state": "idle", "catch_up_s": 9.0}, "lag", "an open transaction"),
        ({"late_share": 0.9}, "late", "later than the watermark waits"),
        ({"dead_share": 0.02, "bad_total": 7}, "dead", "cannot be decoded"),
        ({"defects": 1}, "defect", "does not explain"),
        ({"state_bytes": 5 << 30}, "checkpoint", "many keys"),
        ({"checkpoint_s": 7.5}, "checkpoint", "slow or full"),
        ({"checkpoint_s": 0.02, "checkpoint_wait_s": 90.0}, "checkpoint", "slow or full"),
        ({"disorder_s": 45.0, "watermark_lag_s": 70.0}, "disorder", "not read in the order of event time"),
        ({"unproved": 2}, "savepoint", "proofs fail"),
        ({"retention_left_share": 0.2}, "retention", "the archive is behind"),
    ],
)  # fmt: skip
def test_a_symptom_is_traced_to_the_cause_its_figures_support(
    changes: dict[str, Any], symptom: str, cause: str
) -> None:
    found = causes(**changes)
    assert [one.symptom for one in found] == [symptom]
    assert cause in found[0].cause
    assert found[0].evidence
    assert found[0].remedy


def test_a_hot_partition_is_named() -> None:
    found = causes(**(LAGGING | {"partition_lag": {"0": 5, "1": 880, "2": 15}, "catch_up_s": 5.0}))
    assert [one.evidence for one in found] == ["880 of 900 waiting records are in partition 1"]


def test_a_trigger_longer_than_a_batch_is_named_before_the_cap() -> None:
    pins = LAB.stream.model_copy(update={"trigger": timedelta(seconds=10)})
    slow = LAB.model_copy(update={"stream": pins})
    (found,) = find_causes(replace(QUIET, **LAGGING, backpressure_s=60.0, batch_p50_s=0.5), slow)
    assert found.cause == "the stream waits between full batches"


def test_a_sink_that_fails_is_named_and_one_that_only_waits_is_not() -> None:
    (one,) = causes(delivery_failures={"hook": 3, "topic": 0}, delivery_lag={"hook": 12, "topic": 40})
    assert (one.symptom, one.evidence) == ("delivery", "sink hook failed 3 times in a row; 12 batches wait")


def test_what_is_within_its_bounds_has_no_cause() -> None:
    (source,) = LAB.sources.values()
    assert causes(checkpoint_s=4.0, disorder_s=source.watermark.total_seconds(), watermark_lag_s=70.0) == []
    assert causes(disorder_s=3600.0, watermark_lag_s=None) == []


def test_a_sink_that_sends_again_is_named_as_a_cause_of_duplicates_and_one_that_sends_once_is_not() -> None:
    sinks = {
        name: KafkaDelivery(to="kafka", topic=name, transactions=name == "once", guarantee="at_least_once")
        for name in ("again", "once")
    }
    sending = LAB.model_copy(update={"deliver": sinks})
    found = find_causes(replace(QUIET, delivery_failures={"again": 2, "once": 2}), sending)
    (doubled,) = [one for one in found if one.symptom == "duplicates"]
    assert (
        doubled.evidence == "sink again can keep at_least_once at most (kafka topic again), and failed 2 times in a row"
    )
    assert "by their key" in doubled.remedy
