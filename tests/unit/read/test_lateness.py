"""How late records were: bars by seconds, and how many a larger watermark would have let in."""

from __future__ import annotations

import numpy as np

from rivertwice.read.lateness import Bar, count_lateness


def test_a_bar_counts_from_its_start_to_before_its_end() -> None:
    assert count_lateness(np.array([0.0, 9.9, 10.0]), edges=(10, 60)) == [Bar(0, 10, 2, 2), Bar(10, 60, 1, 3)]


def test_what_is_later_than_all_edges_is_in_a_bar_without_end() -> None:
    assert count_lateness(np.array([1000.0]), edges=(10, 60))[-1] == Bar(60, None, 1, 1)


def test_a_watermark_of_so_much_more_lets_in_all_that_were_late_by_less() -> None:
    late_s = np.random.default_rng(1).uniform(0, 10_000, 500)
    for bar in count_lateness(late_s):
        if bar.to_s is not None:
            assert bar.until == int((late_s < bar.to_s).sum())


def test_without_late_records_there_is_no_bar() -> None:
    assert count_lateness(np.zeros(0)) == []
