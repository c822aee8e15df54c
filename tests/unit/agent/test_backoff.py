"""Backoff: deterministic, growing, capped; and which failures end the agent's patience."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.agent.backoff import (
    DEFAULT_POLICY,
    REACTIONS,
    Failure,
    FailureClass,
    Response,
    breaks_circuit,
    consecutive_failures,
    delay_after,
    needs_own_jvm,
    next_attempt,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(*ages_s: float, kind: FailureClass = FailureClass.UNKNOWN, progressed: tuple[int, ...] = ()) -> list[Failure]:
    return [
        Failure(NOW - timedelta(seconds=age), kind, index in progressed, 1, "m") for index, age in enumerate(ages_s)
    ]


def test_the_delay_doubles_from_one_second_and_stays_at_the_cap() -> None:
    assert [delay_after(n).total_seconds() for n in range(10)] == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


@given(st.integers(-5, 10_000))
def test_the_delay_never_shrinks_and_never_passes_the_cap(count: int) -> None:
    assert timedelta(0) <= delay_after(count) <= delay_after(count + 1) <= DEFAULT_POLICY.cap


@pytest.mark.proves("howto-stream.md#how-a-failure-is-answered")
def test_progress_begins_a_new_row() -> None:
    assert consecutive_failures([]) == 0
    assert consecutive_failures(row(30, 20, 10)) == 3
    assert consecutive_failures(row(30, 20, 10, progressed=(1,))) == 2
    assert consecutive_failures(row(30, 20, 10, progressed=(2,))) == 1


def test_the_next_attempt_counts_from_the_newest_failure() -> None:
    assert next_attempt([]) is None
    assert next_attempt(row(30, 20, 10)) == NOW - timedelta(seconds=10) + timedelta(seconds=4)


def test_the_breaker_counts_only_failures_in_the_window_and_in_the_row() -> None:
    assert breaks_circuit(row(50, 40, 30, 20), NOW) is None
    assert breaks_circuit(row(50, 40, 30, 20, 10), NOW) is not None
    assert breaks_circuit(row(5000, 40, 30, 20, 10), NOW) is None
    assert breaks_circuit(row(50, 40, 30, 20, 10, progressed=(1,)), NOW) is None
    assert breaks_circuit(row(30, 20, 10, kind=FailureClass.OUT_OF_MEMORY), NOW) is not None
    assert breaks_circuit(row(*range(40, 0, -1), kind=FailureClass.LEASE_LOST), NOW) is None


@pytest.mark.proves("howto-stream.md#how-a-failure-is-answered")
def test_every_failure_class_has_a_reaction_and_a_reason() -> None:
    assert set(REACTIONS) == set(FailureClass)
    assert all(reaction.because for reaction in REACTIONS.values())
    stops = {kind for kind, reaction in REACTIONS.items() if reaction.response is Response.STOP}
    assert stops == {
        FailureClass.RETENTION,
        FailureClass.FORK,
        FailureClass.SCHEMA,
        FailureClass.FINGERPRINT,
        FailureClass.RANGE_MISMATCH,
        FailureClass.LEDGER,
    }


def test_a_driver_that_ended_twice_at_work_for_no_known_cause_leaves_the_jvm_of_its_group() -> None:
    assert needs_own_jvm(row(60, 5))
    assert needs_own_jvm(row(60, 5, kind=FailureClass.OUT_OF_MEMORY))
    assert not needs_own_jvm(row(5))
    assert not needs_own_jvm(row(60, 5, progressed=(1,)))
    assert not needs_own_jvm(
        row(60, 5, kind=FailureClass.STORE)
    )  # the JVM of the group ended while it had nothing to do
