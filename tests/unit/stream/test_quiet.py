"""For how long a query has had nothing to do."""

from __future__ import annotations

from rivertwice.stream.driver import QuietClock

WAITS = {"isTriggerActive": False, "message": "Waiting for data to arrive"}
WAITS_FOR_A_TRIGGER = {"isTriggerActive": False, "message": "Waiting for next trigger"}
LOOKS = {"isTriggerActive": True, "message": "Getting offsets from KafkaV2[Subscribe[flights]]"}
BEGINS_A_LOOK = {"isTriggerActive": True, "message": "Waiting for data to arrive"}
RUNS = {"isTriggerActive": True, "message": "Processing new data"}
CLEANS_UP = {"isTriggerActive": True, "message": "No new data but cleaning up state"}


def seen(*statuses: dict[str, object]) -> tuple[list[float], QuietClock]:
    """Return the quiet times of looks a second apart, and the clock after them."""
    clock = QuietClock()
    return [clock.look(status, 100.0 + second) for second, status in enumerate(statuses)], clock


def test_quiet_time_runs_through_looks_at_the_log() -> None:
    times, clock = seen(WAITS, LOOKS, BEGINS_A_LOOK, WAITS_FOR_A_TRIGGER)
    assert times == [0.0, 1.0, 2.0, 3.0]
    assert clock.is_waiting


def test_a_batch_with_or_without_records_ends_quiet_time() -> None:
    assert seen(WAITS, WAITS, RUNS, WAITS, CLEANS_UP, LOOKS, WAITS, WAITS)[0] == [0, 1, 0, 0, 0, 0, 0, 1]


def test_a_query_that_only_looks_was_never_quiet() -> None:
    times, clock = seen(LOOKS, BEGINS_A_LOOK, LOOKS)
    assert times == [0.0, 0.0, 0.0]
    assert not clock.is_quiet


def test_a_query_that_looks_does_not_wait() -> None:
    _, clock = seen(WAITS, LOOKS)
    assert clock.is_quiet
    assert not clock.is_waiting
