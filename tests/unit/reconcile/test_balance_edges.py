"""The balance's own figures: nothing is unexplained where nothing was read, and each cause is subtracted once."""

from __future__ import annotations

import pytest

from rivertwice.log.addresses import Part
from rivertwice.reconcile.model import Account, PairCount, balance_partitions, balance_total

PART = Part("t", 0)


def test_where_nothing_was_read_nothing_is_unexplained() -> None:
    assert (Account().unexplained, Account().late_share) == (0, 0.0)
    assert balance_total({}, 0) == Account()


@pytest.mark.parametrize("cause", ["emitted", "open", "late", "dead", "excluded"])
def test_each_cause_explains_as_many_records_as_it_has(cause: str) -> None:
    assert Account(read=3, **{cause: 3}).unexplained == 0
    assert Account(read=3, **{cause: 2}).unexplained == 1
    assert Account(read=3, **{cause: 4}).unexplained == -1


def test_each_record_is_expected_as_often_as_hopping_windows_hold_it() -> None:
    assert Account(read=5, dead=1, excluded=1, emitted=4, open=2, late=3, windows=3).unexplained == 0
    assert Account(emitted=4, open=2, late=3).late_share == pytest.approx(1 / 3)


def test_a_window_that_ends_at_the_watermark_is_emitted() -> None:
    pairs = [PairCount(PART, end, late, 1) for end in (99, 100, 101) for late in (False, True)]
    found = balance_partitions({PART: 7}, {PART: 1}, {PART: 6}, pairs, 100)
    assert found == {PART: Account(read=7, emitted=2, open=1, late=3, dead=1)}
    assert found[PART].unexplained == 0


def test_what_the_row_filter_left_out_is_what_is_in_no_window() -> None:
    pairs = [PairCount(PART, 50, False, 6)]
    assert balance_partitions({PART: 5}, {}, {PART: 5}, pairs, 100, windows=3)[PART].excluded == 3
    assert (
        balance_partitions({PART: 5}, {}, {PART: 5}, pairs, 100, windows=3, without_output={PART: 4})[PART].excluded
        == 4
    )
    assert balance_partitions({PART: 5}, {}, {PART: 5}, pairs, 100, windows=3, without_output={})[PART].excluded == 0


def test_the_total_takes_the_changelogs_word_for_what_was_emitted() -> None:
    accounts = {PART: Account(3, 1, 1, 1, 0, 0, 2), Part("t", 1): Account(5, 1, 2, 0, 1, 1, 2)}
    assert balance_total(accounts, 9) == Account(read=8, emitted=9, open=3, late=1, dead=1, excluded=1, windows=2)
    assert balance_total(accounts, 9).to_json()["unexplained"] == balance_total(accounts, 9).unexplained


def test_a_partition_of_which_nothing_was_read_has_an_empty_account() -> None:
    assert balance_partitions({PART: 0}, {}, {}, [], 100) == {PART: Account()}
