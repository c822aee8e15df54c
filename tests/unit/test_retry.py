"""Trying again: only what is said, so often as is said, and the last failure as it is."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rivertwice.core.waits import Attempts, retry, retry_for


class Failing:
    """Fails in turn with each of some errors, then answers; counts its calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "there"


def is_timeout(error: BaseException) -> bool:
    return isinstance(error, TimeoutError)


def test_what_may_pass_is_tried_until_it_answers() -> None:
    act = Failing(TimeoutError("1"), TimeoutError("2"))

    assert retry(is_timeout, tries=3, first_wait_s=0.001)(act) == "there"
    assert act.calls == 3


def test_the_last_failure_is_raised_as_it_is() -> None:
    act = Failing(TimeoutError("1"), TimeoutError("2"), TimeoutError("3"))

    with pytest.raises(TimeoutError, match="2"):
        retry(is_timeout, tries=2, first_wait_s=0.001)(act)
    assert act.calls == 2


def test_nobody_is_asked_about_the_failure_of_the_last_call() -> None:
    asked: list[str] = []

    def ask(error: BaseException) -> bool:
        asked.append(str(error))
        return True

    with pytest.raises(TimeoutError, match="3"):
        retry(ask, tries=3)(Failing(*(TimeoutError(str(call)) for call in (1, 2, 3))))
    assert asked == ["1", "2"]
    with pytest.raises(TimeoutError, match="4"):
        retry_for(ask, seconds=0.0, every_s=0.0)(Failing(TimeoutError("4")))
    assert asked == ["1", "2"]


def test_another_failure_is_raised_at_once() -> None:
    act = Failing(PermissionError("no"), TimeoutError("never"))

    with pytest.raises(PermissionError):
        retry(is_timeout, tries=3, first_wait_s=0.001)(act)
    assert act.calls == 1


def test_each_wait_is_twice_the_one_before() -> None:
    waits: list[float] = []
    retrying = retry(is_timeout, tries=5, first_wait_s=0.5, longest_wait_s=1.5, sleep=waits.append)

    assert retrying(Failing(*[TimeoutError()] * 4)) == "there"
    assert waits == [0.5, 1.0, 1.5, 1.5]


def test_a_spread_wait_is_a_random_part_of_the_doubled_one() -> None:
    waits: list[float] = []
    retrying = retry(TimeoutError, tries=9, first_wait_s=0.5, longest_wait_s=4.0, spread=True, sleep=waits.append)

    assert retrying(Failing(*[TimeoutError()] * 8)) == "there"
    assert all(0 <= wait <= min(4.0, 0.5 * 2**number) for number, wait in enumerate(waits))
    assert len(set(waits)) == 8


def test_what_is_tried_for_a_time_ends_with_its_last_failure_and_says_each() -> None:
    act, said = Failing(*[TimeoutError(str(number)) for number in range(100)]), list[str]()

    with pytest.raises(TimeoutError):
        retry_for(TimeoutError, seconds=0.05, every_s=0.01, say=lambda error: said.append(str(error)))(act)
    assert 1 < act.calls < 100
    assert said == [str(number) for number in range(act.calls - 1)]


def test_a_wait_between_failures_doubles_up_to_the_longest() -> None:
    delays = [Attempts(failures).pause(timedelta(seconds=10), timedelta(minutes=1)) for failures in range(6)]
    assert [delay.total_seconds() for delay in delays] == [0, 10, 20, 40, 60, 60]
    assert Attempts(10_000).pause(timedelta(seconds=1), timedelta(days=1)) == timedelta(days=1)
