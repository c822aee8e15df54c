"""The balance adds up or says by how much it does not; the gate names what a person must see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rivertwice.log.addresses import Part
from rivertwice.reconcile.gate import Gate, GateAlert, GateInput, SuiteOutcome, decide_gate, warn_of_foreign
from rivertwice.reconcile.model import Account, DefectFinding, PairCount, balance_partitions, balance_total

P0, P1 = Part("flights", 0), Part("flights", 1)
PAIRS = [
    PairCount(P0, 11, late=False, rows=5),
    PairCount(P0, 12, late=False, rows=2),
    PairCount(P0, 11, late=True, rows=1),
    PairCount(P1, 11, late=False, rows=4),
]
ACCOUNTS = balance_partitions({P0: 10, P1: 4}, {P0: 1}, {P0: 9, P1: 4}, PAIRS, closed_ms=11)
FINE = Account(read=100, emitted=90, open=5, late=5)
INPUT = GateInput({"stream": {"AGREES": 3, "LATE": 1, "DEFECT": 0}}, FINE, {P0: FINE}, alert_share=0.05)


def test_every_record_has_one_place() -> None:
    assert {
        P0: Account(read=10, emitted=5, open=2, late=1, dead=1, excluded=1),
        P1: Account(read=4, emitted=4),
    } == ACCOUNTS
    assert [one.unexplained for one in ACCOUNTS.values()] == [0, 0]
    assert ACCOUNTS[P0].late_share == 1 / 8


def test_the_total_counts_what_the_changelog_says_and_can_fail() -> None:
    assert balance_total(ACCOUNTS, changelog_rows=9).unexplained == 0
    assert balance_total(ACCOUNTS, changelog_rows=10).unexplained == -1


@pytest.mark.proves("guarantees.md#dead-letters")
def test_a_lost_dead_letter_breaks_the_balance_of_its_partition() -> None:
    broken = balance_partitions({P0: 10, P1: 4}, {}, {P0: 9, P1: 4}, PAIRS, closed_ms=11)
    assert [one.unexplained for one in broken.values()] == [1, 0]


def test_an_empty_account_has_no_late_share() -> None:
    assert Account().late_share == 0.0


def kinds(gate: Gate) -> list[tuple[str, str]]:
    return [(alert.severity, alert.kind) for alert in gate.alerts]


def test_late_rows_within_the_limit_raise_nothing() -> None:
    gate = decide_gate(INPUT)
    assert gate.passed
    assert gate.alerts == ()


def test_a_defect_fails_the_gate() -> None:
    gate = decide_gate(replace(INPUT, counts={"served": {"DEFECT": 2}}))
    assert not gate.passed
    assert kinds(gate) == [("critical", "defect")]
    assert [alert.pair for alert in gate.alerts] == ["served"]


def test_what_cannot_be_compared_is_a_warning() -> None:
    gate = decide_gate(replace(INPUT, counts={"stream": {"AGREES": 1, "NOT_COMPARABLE": 1}}))
    assert gate.passed
    assert kinds(gate) == [("warning", "not_comparable")]


@pytest.mark.proves("guarantees.md#verdicts")
def test_a_pair_without_comparison_fails_the_gate_unless_declared() -> None:
    nothing = replace(INPUT, counts={"stream": {"NOT_COMPARABLE": 4, "OPEN": 2}, "served": {"AGREES": 1}})
    gate = decide_gate(nothing)
    assert not gate.passed
    assert kinds(gate) == [("critical", "nothing_compared")]
    assert "none of the 4 rows of the pair stream could be compared" in gate.alerts[0].message
    assert decide_gate(replace(nothing, compare=False)).passed
    assert decide_gate(replace(INPUT, counts={"stream": {"OPEN": 2}})).alerts == ()


@pytest.mark.proves("guarantees.md#folds-and-views")
def test_a_finding_fails_the_gate() -> None:
    gate = decide_gate(replace(INPUT, findings=[DefectFinding("ledger", "ledger of batch 4: read is 1")]))
    assert kinds(gate) == [("critical", "finding")]
    assert not gate.passed


def test_a_foreign_commit_is_a_warning_of_a_gate_that_passes() -> None:
    made = "another program made version 7 of the table served (UPDATE)"
    passed = warn_of_foreign(decide_gate(INPUT), made, {"gate": {}})
    assert passed.passed
    assert kinds(passed) == [("warning", "foreign_write")]
    assert made in passed.alerts[0].message
    assert warn_of_foreign(decide_gate(INPUT), None, None).alerts == ()
    failed = decide_gate(replace(INPUT, counts={"stream": {"AGREES": 1}, "served": {"DEFECT": 1}}))
    assert warn_of_foreign(failed, made, None) == failed, "a DEFECT is the one alert"
    repaired = warn_of_foreign(decide_gate(INPUT), made, {"gate": {"passed": False, "reason": made}})
    assert repaired.alerts == (), "the run before has told of it"


def test_a_changed_served_row_is_named_twice_and_is_one_alert() -> None:
    """A published row that another program changed is a DEFECT, and it is not what the corrections give."""
    findings = [
        DefectFinding("served", "the row k is served as 13, the corrections give 12"),
        DefectFinding("ledger", "read is 1"),
    ]
    gate = decide_gate(replace(INPUT, counts={"served": {"DEFECT": 1}}, findings=findings))
    assert [(alert.kind, alert.repeats) for alert in gate.alerts] == [
        ("defect", ""),
        ("finding", "defect"),
        ("finding", ""),
    ]
    alone = decide_gate(
        replace(INPUT, counts={"served": {"AGREES": 1}, "stream": {"DEFECT": 1}}, findings=findings[:1])
    )
    assert [(alert.kind, alert.repeats) for alert in alone.alerts] == [("defect", ""), ("finding", "")]


def test_one_lagging_partition_raises_the_late_alert() -> None:
    lagging = replace(FINE, late=50, emitted=45)
    gate = decide_gate(replace(INPUT, partitions={P0: FINE, Part("flights", 3): lagging}))
    assert gate.passed
    assert kinds(gate) == [("warning", "late_share")]
    assert "partition 3" in gate.alerts[0].message


def test_a_broken_balance_is_counted_in_records_or_in_window_pairs() -> None:
    for windows, counted in ((1, "7 of 100 records of all"), (3, "7 of 300 (record, window) pairs of all")):
        broken = Account(read=100, windows=windows, emitted=90 * windows - 7, open=5 * windows, late=5 * windows)
        (alert,) = (one for one in decide_gate(replace(INPUT, total=broken)).alerts if one.kind == "balance")
        assert alert.message.startswith(counted)


def test_a_broken_balance_fails_the_gate() -> None:
    gate = decide_gate(replace(INPUT, total=replace(FINE, read=101)))
    assert kinds(gate) == [("critical", "balance")]
    assert not gate.passed


@pytest.mark.proves("howto-correct.md#where-it-is-kept")
def test_an_errored_suite_fails_the_gate_and_a_failed_warning_does_not() -> None:
    warned = SuiteOutcome("balance", 5, 4, failed=(GateAlert("warning", "suite", "x"),))
    assert decide_gate(replace(INPUT, suites=[warned])).passed
    errored = SuiteOutcome("verdicts", 5, 4, errored=(GateAlert("critical", "suite_errored", "x"),))
    assert not decide_gate(replace(INPUT, suites=[errored])).passed


def test_hopping_windows_owe_every_record_as_often_as_it_has_windows() -> None:
    #  9 accepted records, one of them left out by the row filter: 8 records in 3 windows each are 24 pairs
    pairs = [
        PairCount(P0, 11, late=False, rows=15),
        PairCount(P0, 12, late=False, rows=5),
        PairCount(P0, 10, late=True, rows=4),
    ]
    accounts = balance_partitions({P0: 10}, {P0: 1}, {P0: 9}, pairs, closed_ms=11, windows=3)
    assert accounts == {P0: Account(read=10, emitted=15, open=5, late=4, dead=1, excluded=1, windows=3)}
    assert accounts[P0].unexplained == 0
    assert balance_total(accounts, changelog_rows=14).unexplained == 1
    short = [*pairs[1:], PairCount(P0, 11, late=False, rows=14)]
    assert balance_partitions({P0: 10}, {P0: 1}, {P0: 9}, short, closed_ms=11, windows=3)[P0].unexplained


def test_too_many_dead_letters_among_the_newest_records_are_a_warning() -> None:
    gate = decide_gate(replace(INPUT, dead="100 % of the newest records cannot be decoded"))
    assert (kinds(gate), gate.passed) == ([("warning", "dead_share")], True)
    assert decide_gate(INPUT).alerts == ()
