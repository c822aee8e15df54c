"""When the agent leaves a backlog to batch, when it fills the gap, and that it does neither twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from homes.ledger import NOW, ledger_row
from rivertwice.agent.leave import closed_from_ms
from rivertwice.retention.backlog import FILL, HAND_OVER, WAIT, Backlog, LeaveMemory, Leaving, decide_leave

LIMIT = timedelta(hours=6)
LONG = Backlog("t", {0: (0, 50_000)}, 600_000, 0, pace=2.0, arriving=0.0, left=None)  # 25,000 s
SHORT = replace(LONG, waiting={0: (0, 100)})
OPEN = Leaving("gap-000000000001", 5_000, 4_999)


@pytest.mark.parametrize(
    ("backlog", "leaving", "kind", "word"),
    [
        (LONG, None, HAND_OVER, "25000 s, longer than the limit of 6:00:00"),
        (replace(LONG, arriving=2.0), None, HAND_OVER, "forever"),
        (SHORT, None, WAIT, "caught up in 50 s"),
        (replace(SHORT, left=timedelta(seconds=49)), None, HAND_OVER, "Kafka may delete the first of them in 49 s"),
        (replace(SHORT, left=timedelta(seconds=50)), None, WAIT, "caught up"),
        (replace(LONG, pace=None), None, WAIT, "not known yet"),
        (replace(LONG, waiting={}), None, WAIT, "nothing waits"),
        (LONG, OPEN, WAIT, "has not closed the windows of gap-000000000001"),  # once: the gap is not published
        (LONG, replace(OPEN, filled_from_ms=None), WAIT, "has not closed"),
        (LONG, replace(OPEN, watermark_ms=5_000), FILL, "no backfill has published"),
        (replace(LONG, waiting={}), replace(OPEN, watermark_ms=5_000), FILL, "no backfill has published"),
    ],
)
def test_a_backlog_is_left_when_it_takes_too_long_and_not_twice(
    backlog: Backlog, leaving: Leaving | None, kind: str, word: str
) -> None:
    decision = decide_leave(backlog, LIMIT, leaving, LeaveMemory(), NOW, wanted=True)
    assert decision.kind == kind
    assert word in decision.reason


def test_nothing_is_done_beside_a_job_nor_for_a_stopped_stream() -> None:
    closed = replace(OPEN, watermark_ms=9_000)
    assert decide_leave(LONG, LIMIT, None, LeaveMemory(busy=True), NOW, wanted=True).kind == WAIT
    assert decide_leave(LONG, LIMIT, closed, LeaveMemory(), NOW, wanted=False).kind == WAIT
    failed = LeaveMemory(failures=2, last_end=NOW)
    assert decide_leave(LONG, LIMIT, None, failed, NOW + timedelta(seconds=119), wanted=True).kind == WAIT
    assert decide_leave(LONG, LIMIT, None, failed, NOW + timedelta(seconds=120), wanted=True).kind == HAND_OVER
    assert decide_leave(LONG, LIMIT, closed, LeaveMemory(last_end=NOW), NOW, wanted=True).kind == FILL


def test_skipped_windows_are_closed_a_length_after_the_first_records() -> None:
    before, after = (ledger_row(n, max_event_ms=1_000 * n, timeline="t1") for n in (1, 2))
    empty, first = (replace(ledger_row(n, timeline="t2"), max_event_ms=at) for n, at in ((3, None), (4, 70_000)))
    length = timedelta(seconds=10)
    assert closed_from_ms([before, after], "t2", length) is None
    assert closed_from_ms([before, after, empty], "t2", length) is None
    assert closed_from_ms([before, after, empty, first], "t2", length) == 80_000
    later = replace(first, timeline="t3", batch=5, max_event_ms=90_000)
    assert closed_from_ms([before, empty, first, later], "t2", length) == 80_000
