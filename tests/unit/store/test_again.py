"""Trying again: only what is said, so often as is said, and the last failure as it is."""

from __future__ import annotations

import pytest

from rivertwice.store.again import again


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

    assert again(3, 0.001, is_timeout)(act) == "there"
    assert act.calls == 3


def test_the_last_failure_is_raised_as_it_is() -> None:
    act = Failing(TimeoutError("1"), TimeoutError("2"), TimeoutError("3"))

    with pytest.raises(TimeoutError, match="2"):
        again(2, 0.001, is_timeout)(act)
    assert act.calls == 2


def test_another_failure_is_raised_at_once() -> None:
    act = Failing(PermissionError("no"), TimeoutError("never"))

    with pytest.raises(PermissionError):
        again(3, 0.001, is_timeout)(act)
    assert act.calls == 1


def test_each_wait_is_twice_the_one_before() -> None:
    waits: list[float] = []
    retrying = again(4, 0.5, is_timeout).copy(sleep=waits.append)

    assert retrying(Failing(*[TimeoutError()] * 3)) == "there"
    assert waits == [0.5, 1.0, 2.0]
