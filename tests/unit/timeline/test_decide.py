"""A decision about dead letters that is asked for twice, because a worker died, is made once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from homes.ledger import NOW
from rivertwice.core.errors import RequestError
from rivertwice.timeline.dead_letters import (
    AMEND,
    DISCARD,
    Amendment,
    DeadLetter,
    Decision,
    RecordAddress,
    select_discards,
)

ASKED = Decision("ada", "a test record", NOW)


def letter(offset: int, reason: str = "json", amendment: Amendment | None = None) -> DeadLetter:
    address = RecordAddress("id", 0, offset)
    return DeadLetter("flights", address, "t1", 0, reason, None, NOW, b"k", b"v", [], amendment)


def decided(kind: str, value: bytes | None = None, *, by: str = "ada", after_s: float = 1) -> Amendment:
    at = NOW + timedelta(seconds=after_s)
    return Amendment(1, kind, "flights", RecordAddress("id", 0, 1), value, "a test record", by, at)


def test_all_open_ones_of_a_kind_are_discarded_once() -> None:
    letters = [letter(1), letter(2), letter(3, "schema")]
    assert [one.address.offset for one in select_discards(letters, ASKED, reason="json")] == [1, 2]
    done = [replace(one, amendment=decided(DISCARD)) for one in letters[:2]]
    assert select_discards([*done, letters[2]], ASKED, reason="json") == []
    assert [one.address.offset for one in select_discards([done[0], letters[1]], ASKED, reason="json")] == [2]


def test_a_named_record_is_discarded_once() -> None:
    assert len(select_discards([letter(1)], ASKED)) == 1
    assert select_discards([letter(1, amendment=decided(DISCARD))], ASKED) == []


@pytest.mark.parametrize("earlier", [decided(DISCARD, by="bob"), decided(DISCARD, after_s=-1), decided(AMEND, b"x")])
def test_an_earlier_decision_of_somebody_else_is_replaced(earlier: Amendment) -> None:
    assert len(select_discards([letter(1, amendment=earlier)], ASKED)) == 1
    with pytest.raises(RequestError, match="no open dead letter"):
        select_discards([letter(1, amendment=earlier)], ASKED, reason="json")


def test_an_amendment_is_the_same_only_with_the_same_value() -> None:
    made = letter(1, amendment=decided(AMEND, b"x"))
    assert made.is_amended(b"x", ASKED)
    assert not made.is_amended(b"y", ASKED)
