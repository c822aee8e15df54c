"""What a backlog says: pace without pauses, when it is caught up, whether Kafka deletes first, and what would be skipped."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from homes.ledger import NOW, ledger_row
from rivertwice.cli.catch_up import backlog_text, plan_text
from rivertwice.retention.backlog import Backlog, HandOver, measure_pace, select_skipped

BACKLOG = Backlog("t", {0: (10, 110), 1: (0, 0)}, 600_000, 0, pace=2.0, arriving=1.0, left=timedelta(seconds=99))


def test_the_pace_is_that_of_batches_one_after_the_other() -> None:
    seconds = [0, 10, 20, 3_620, 3_630, 3_640]  # an hour's pause
    rows = [ledger_row(n, read=100, committed_at=NOW + timedelta(seconds=at)) for n, at in enumerate(seconds)]
    assert measure_pace(rows) == 10.0
    assert measure_pace(rows[:1]) is None
    assert measure_pace([rows[0], replace(rows[1], read=0)]) is None


@pytest.mark.parametrize(
    ("backlog", "caught_up", "outrun", "said"),
    [
        (BACKLOG, 100.0, True, "caught up in 0:01:40"),
        (replace(BACKLOG, left=timedelta(seconds=100)), 100.0, False, "after that"),
        (replace(BACKLOG, left=None), 100.0, False, "Kafka deletes none of them by time"),
        (replace(BACKLOG, arriving=2.0), math.inf, True, "it never catches up"),
        (replace(BACKLOG, pace=None), None, False, "not known before its next batches"),
        (replace(BACKLOG, waiting={0: (5, 5)}), 0.0, False, "t: nothing waits for p"),
    ],
)
def test_a_backlog_is_outrun_if_kafka_deletes_before_it_is_read(
    backlog: Backlog, caught_up: float | None, outrun: bool, said: str
) -> None:
    assert (backlog.caught_up_s, backlog.is_outrun) == (caught_up, outrun)
    text = backlog_text("p", backlog)
    assert said in text
    assert ("`rivertwice backfill catch-up p --by-batch`" in text) == outrun


def test_only_what_waits_before_the_cut_is_skipped() -> None:
    waiting = {0: (10, 110), 1: (0, 50), 2: (7, 9), 3: (4, 8)}
    assert select_skipped(waiting, {0: 60, 1: 500, 2: 7, 4: 9}) == {0: (10, 60), 1: (0, 50)}
    text = plan_text("p", BACKLOG, HandOver("t", {0: (10, 60)}, 0))
    assert "50 records, partition 0: [10, 60): archived, then skipped" in text
    assert "to do it: rivertwice backfill catch-up p --by-batch --yes" in text
