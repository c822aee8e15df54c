"""The share of the slow tests that a run takes: every promise within seven days, none twice in them, and none of no test."""

from __future__ import annotations

import re
from datetime import date, timedelta
from pathlib import Path

import pytest

from running.choosing import FAMILIES, PROMISES, SHARES, of_another_share, rank, share_of, shared

REPOSITORY = Path(__file__).resolve().parents[2]
IDS = [f"tests/{start if '::' in start else f'{start}::test_{number}'}" for start in PROMISES for number in range(2)]


def text_of(file: str) -> str:
    """Return a file of tests, of the product or of the lab."""
    (path,) = [path for root in ("tests", "lab/tests") if (path := REPOSITORY / root / file).exists()]
    return path.read_text()


def test_seven_days_take_every_promised_test_once() -> None:
    day = date(2026, 1, 1)
    taken = [one for after in range(SHARES) for one in shared(IDS, share_of("today", day + timedelta(days=after)))]
    assert sorted(set(taken)) == sorted(set(IDS))


def test_no_share_is_asked_for_no_slow_test_is_taken() -> None:
    assert share_of("", date(2026, 1, 1)) is None
    assert shared(IDS, None) == set()
    assert shared(["tests/unit/test_cli.py::test_a"], 3) == set()


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="a number from 0 to 6"):
        share_of("7", date(2026, 1, 1))


def test_each_promise_names_a_slow_test_that_exists() -> None:
    for start in PROMISES:
        file, _, name = start.partition("::")
        text = text_of(file)
        assert "mark.faults" in text, start
        assert re.search(rf"def {re.escape(name.partition('[')[0])}", text), start


def test_each_member_of_a_family_is_taken_within_the_shares_of_a_week() -> None:
    ids = [f"tests/{start}[{number}]" for start in FAMILIES for number in range(7)] + ["tests/unit/test_cli.py::test_a"]
    taken = [{*ids} - of_another_share(ids, share) for share in range(SHARES)]
    assert set.union(*taken) == {*ids}
    assert set.intersection(*taken) == {"tests/unit/test_cli.py::test_a"}
    for start, shares in FAMILIES.items():
        members = [one for one in ids if one.startswith(f"tests/{start}")]
        for first in range(SHARES - shares + 1):
            in_a_row = [one for share in taken[first : first + shares] for one in share if one in members]
            assert sorted(in_a_row) == members


def test_without_a_share_families_are_taken_whole() -> None:
    assert of_another_share([f"tests/{start}[1]" for start in FAMILIES], None) == set()


def test_each_family_is_of_tests_with_parameters() -> None:
    for start in FAMILIES:
        file, _, name = start.partition("::")
        text = text_of(file)
        assert re.search(rf"@pytest\.mark\.parametrize\([^@]*\ndef {re.escape(name)}", text) or "params=" in text, start


def test_the_slowest_files_come_first() -> None:
    assert rank("lab/tests/oracle/test_two_days.py::test_a") < rank("lab/tests/oracle/test_year.py::test_a")
    assert rank("tests/integration/test_rewind.py::test_a") < rank("tests/unit/test_cli.py::test_a")
