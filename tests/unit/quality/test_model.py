"""What holds after a run of a suite, given what held before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rivertwice.quality.model import (
    CRITICAL,
    ERRORED,
    FAILED,
    INFO,
    PASSED,
    STILL_FAILS,
    WARNING,
    Judgement,
    continue_from,
    describe_ranges,
    expectation_id,
    still_true,
    without,
)

HELD = Judgement("e1", "expect_column_values_to_be_between", "n", CRITICAL, PASSED, "n is small")


def failed(*failing: tuple[int, int], **changes: object) -> Judgement:
    return replace(HELD, state=FAILED, failing=failing, unexpected=1, **changes)  # type: ignore[arg-type]


def test_a_failure_is_over_once_its_windows_were_judged_again() -> None:
    (before,) = continue_from([], [failed((0, 10))], [(0, 100)], "r1")
    assert (before.state, before.since) == (FAILED, "r1")
    assert continue_from([before], [HELD], [(0, 10)], "r2") == [HELD]


def test_windows_that_were_not_judged_again_fail_still() -> None:
    before = failed((0, 10), (20, 30), since="r1", observed="7")
    (after,) = continue_from([before], [HELD], [(5, 25)], "r2")
    assert (after.state, after.failing, after.since) == (STILL_FAILS, ((0, 5), (25, 30)), "r1")
    assert (after.observed, after.unexpected, after.blocks) == ("7", 1, True)


def test_new_failures_join_those_that_were_there() -> None:
    before = failed((0, 10), since="r1")
    (after,) = continue_from([before], [failed((40, 50))], [(40, 60)], "r2")
    assert (after.state, after.failing, after.since) == (FAILED, ((0, 10), (40, 50)), "r1")


def test_what_could_not_be_judged_is_judged_again_like_a_failure() -> None:
    before = replace(HELD, state=ERRORED, failing=((0, 10),), error="no such column")
    (after,) = continue_from([before], [HELD], [(20, 30)], "r2")
    assert (after.state, after.failing) == (STILL_FAILS, ((0, 10),))
    assert continue_from([before], [HELD], [(0, 10)], "r2") == [HELD]


def test_an_expectation_that_the_suite_lost_is_over() -> None:
    other = replace(HELD, id="e2")
    assert continue_from([failed((0, 10))], [other], [(20, 30)], "r2") == [other]
    assert still_true([failed((0, 10)), other], ["e2"]) == [other]


def test_so_many_stretches_of_failing_windows_are_kept_at_most() -> None:
    scattered = tuple((at * 10, at * 10 + 1) for at in range(100))
    (after,) = continue_from([failed(*scattered)], [failed((5_000, 5_001))], [(5_000, 6_000)], "r2")
    assert len(after.failing) <= 32
    assert not without(scattered, after.failing)


@pytest.mark.parametrize(
    ("state", "severity", "fails", "blocks"),
    [
        (PASSED, CRITICAL, False, False),
        (FAILED, CRITICAL, True, True),
        (FAILED, WARNING, True, False),
        (STILL_FAILS, INFO, True, False),
        (ERRORED, INFO, True, True),
    ],
)
def test_severity_decides_what_blocks(state: str, severity: str, fails: bool, blocks: bool) -> None:
    judgement = replace(HELD, state=state, severity=severity)
    assert (judgement.fails, judgement.blocks) == (fails, blocks)


@pytest.mark.parametrize(
    ("ranges", "taken", "left"),
    [
        ([(0, 10)], [], [(0, 10)]),
        ([(0, 10)], [(0, 10)], []),
        ([(0, 10)], [(3, 5)], [(0, 3), (5, 10)]),
        ([(0, 10), (20, 30)], [(5, 25)], [(0, 5), (25, 30)]),
        ([(0, 10)], [(10, 20), (-5, 0)], [(0, 10)]),
    ],
)
def test_ranges_without_others(
    ranges: list[tuple[int, int]], taken: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    assert without(ranges, taken) == left


def test_an_expectation_is_named_by_what_it_asks_and_how_severely() -> None:
    entry = {"type": "expect_column_to_exist", "kwargs": {"column": "n"}, "severity": WARNING}
    assert expectation_id(entry) == expectation_id({**entry, "meta": {"because": "other words"}, "id": None})
    assert expectation_id(entry) != expectation_id({**entry, "severity": CRITICAL})
    assert expectation_id(entry) != expectation_id({**entry, "kwargs": {"column": "m"}})


def test_a_failure_names_value_windows_and_rows() -> None:
    judgement = failed((0, 3_600_000), observed="7.5", examples=({"window_start": "then", "k": "a", "n": 9},))
    text = judgement.describe()
    assert "n is small [expect_column_values_to_be_between on n]: 1 rows are not so; observed 7.5" in text
    assert "[1970-01-01T00:00:00Z, 1970-01-01T01:00:00Z)" in text
    assert judgement.example_texts() == ["window_start=then k=a n=9"]
    assert "k=a" not in text  # it is stored where no erasure looks
    assert "secret" not in replace(judgement, observed='[{"k": "secret"}]').describe()
    assert "and 1 more ranges" in describe_ranges([(0, 1), (2, 3), (4, 5)])
