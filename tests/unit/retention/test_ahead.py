"""When the agent archives by itself."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rivertwice.core.instants import from_ms
from rivertwice.core.waits import Attempts
from rivertwice.log.leases import Clock
from rivertwice.retention.summary import decide_archive, next_archive_attempt

NOW = from_ms(1_000_000_000)


def clock(share: float) -> Clock:
    left = timedelta(hours=10) * share
    return Clock(NOW + left, left, share)


def starts(share: float, memory: Attempts | None = None, *, finite: bool = True, waiting: int = 5) -> bool:
    return decide_archive(finite, waiting, clock(share), memory or Attempts(), NOW).start


def test_it_archives_once_half_of_the_time_is_gone_and_not_before() -> None:
    assert [share for share in (1.0, 0.51, 0.5, 0.2, 0.0) if starts(share)] == [0.5, 0.2, 0.0]


@pytest.mark.proves("howto-log.md#the-archive-goes-ahead")
def test_a_topic_that_is_kept_for_ever_is_never_archived_by_the_agent() -> None:
    assert not starts(0.0, finite=False)


def test_nothing_new_is_no_reason_for_a_process() -> None:
    assert not starts(0.0, waiting=0)


def test_one_job_at_a_time() -> None:
    assert not starts(0.1, Attempts(busy=True))


def test_failures_wait_longer_each_time_up_to_ten_minutes() -> None:
    waits = [next_archive_attempt(Attempts(failures=n, last_end=NOW)) for n in (0, 1, 2, 3, 20)]
    seconds = [(at - NOW).total_seconds() for at in waits if at is not None]
    assert seconds == [5, 10, 20, 40, 600]
    assert not starts(0.1, Attempts(failures=1, last_end=NOW - timedelta(seconds=9)))
    assert starts(0.1, Attempts(failures=1, last_end=NOW - timedelta(seconds=10)))
