"""Dead letters that an earlier attempt at a batch left behind."""

from __future__ import annotations

import pytest

from rivertwice.core.errors import RangeMismatchError
from rivertwice.log.addresses import parts_of
from rivertwice.stream.side import check_same_range, encode_ranges

RANGES = parts_of("f", {0: (3, 6), 1: (0, 0)})


def test_dead_letters_of_the_very_range_or_of_no_known_one_stand():
    check_same_range(encode_ranges(RANGES), RANGES, 4, "dead letters")
    check_same_range(None, RANGES, 4, "dead letters")


def test_dead_letters_of_another_range_stop_the_stream():
    with pytest.raises(RangeMismatchError, match="planned again"):
        check_same_range(encode_ranges(parts_of("f", {0: (3, 7), 1: (0, 0)})), RANGES, 4, "dead letters")
