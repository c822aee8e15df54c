"""Which command cures what is wrong with a number, and when there is nothing to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rivertwice.read.explain import choose_acts
from rivertwice.read.explain_model import Address, DeadRecord, ExplainedVerdict, judge_age
from rivertwice.timeline.verdicts import Verdict

START = datetime(2026, 1, 1, tzinfo=UTC)
END = START + timedelta(hours=1)
ADDRESS = Address("sums", START, END, {"k": "a"})
BACKFILL = "rivertwice backfill run sums --from 2026-01-01T00:00:00Z --to 2026-01-01T01:00:00Z"
RECONCILE = "rivertwice reconcile sums"


def verdict(word: str, *, pair: str = "served", stale: str | None = None) -> ExplainedVerdict:
    return ExplainedVerdict(pair, word, "", "r1", START, 60.0, stale)


def letter(state: str, *, amendment: int | None = None, of_row: bool | None = None) -> DeadRecord:
    return DeadRecord("t/0@7", "json", None, "t1/3", state, amendment, None, None, of_row)


def acts(**changed: Any) -> list[str]:
    usual: dict[str, Any] = {
        "is_closed": True, "is_current": True, "truth_differs": None, "verdicts": [verdict(Verdict.AGREES)], "dead": [],
        "published": None, "amendments": 0,
    }  # fmt: skip
    repaired = changed.pop("repaired", (START, END))
    return [act.command for act in choose_acts(ADDRESS, repaired, **{**usual, **changed})]


def test_a_number_that_agrees_needs_nothing() -> None:
    assert acts() == []


@pytest.mark.parametrize("word", [Verdict.LATE, Verdict.DEFECT])
def test_a_number_found_late_or_defect_is_recomputed(word: str) -> None:
    assert acts(verdicts=[verdict(word)]) == [BACKFILL]


def test_a_verdict_on_the_stream_alone_asks_for_no_backfill() -> None:
    assert acts(verdicts=[verdict(Verdict.AGREES), verdict(Verdict.LATE, pair="stream")]) == []


def test_a_verdict_that_is_out_of_date_is_asked_for_again() -> None:
    assert acts(verdicts=[verdict(Verdict.LATE, stale="published after it")]) == [RECONCILE]


def test_a_truth_that_was_computed_decides_alone() -> None:
    assert acts(truth_differs=True, verdicts=[]) == [BACKFILL]
    assert acts(truth_differs=False, verdicts=[verdict(Verdict.LATE, stale="old")]) == []


def test_an_open_window_waits() -> None:
    assert acts(is_closed=False, verdicts=[]) == []


def test_a_refused_record_that_may_be_of_the_row_is_looked_at() -> None:
    assert acts(dead=[letter("open")]) == ["rivertwice dead show sums t/0@7"]
    assert acts(dead=[letter("open", of_row=False)]) == []


def test_an_amendment_after_the_number_was_computed_is_counted() -> None:
    amended = letter("amended", amendment=3, of_row=True)
    assert acts(dead=[amended], amendments=2) == [BACKFILL]
    assert acts(dead=[amended], amendments=3) == []


def test_a_kind_whose_windows_are_not_published_is_computed_beside() -> None:
    assert acts(repaired=None, verdicts=[verdict(Verdict.DEFECT)]) == ["rivertwice upgrade sums --new-version"]


def test_what_is_not_served_yet_comes_first() -> None:
    assert acts(is_current=False, verdicts=[verdict(Verdict.LATE)]) == ["rivertwice admin rebuild sums", BACKFILL]


@pytest.mark.proves("guarantees.md#verdicts")
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, None),
        ({"left_by": 6}, "the head moved after it (sequence 6)"),
        ({"published": 7}, "the window was published after it (sequence 7)"),
        ({"published": 4}, None),
        ({"last_read": 13}, "batch 13 may have read records of the window after it"),
        ({"verdict": Verdict.OPEN}, "the window was open then, and is closed now"),
        ({"verdict": Verdict.OPEN, "is_closed": False}, None),
        ({"pair": "stream", "published": 7}, None),
    ],
)
def test_a_verdict_holds_until_something_happened_to_the_window(changed: dict[str, Any], why: str | None) -> None:
    usual: dict[str, Any] = {
        "pair": "served", "verdict": Verdict.AGREES, "sequence": 5, "batch": 12, "left_by": None, "published": None, "last_read": 9,
        "is_closed": True,
    }  # fmt: skip
    assert judge_age(**{**usual, **changed}) == why
