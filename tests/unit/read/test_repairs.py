"""Which repair is due, who decides on it, and what it says. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rivertwice.core.plain import to_plain
from rivertwice.definition.model import RepairPolicy
from rivertwice.timeline.verdicts import Verdict
from rivertwice.upkeep.window_repairs import DECLINED_FOR, Proposal, RepairOutcome, RepairRecord, curable, decide

HOUR = 3_600_000
NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)
LATE_ROWS = Proposal("rc-1", ("late_share",), ((0, 2 * HOUR),), 2, {Verdict.LATE: 7}, 100)
DEFECT_ROWS = Proposal("rc-1", ("defect",), ((0, HOUR),), 1, {Verdict.DEFECT: 1}, 100)
AUTOMATIC = RepairPolicy.model_validate({"policy": "automatic", "budget": {"windows": 2, "records": 100}})


def test_a_repair_is_about_defects_and_late_shares_the_graver_first() -> None:
    assert curable(["late_share", "gap", "defect", "balance"]) == ("defect", "late_share")
    assert curable(["gap"]) == ()


@pytest.mark.parametrize(
    ("policy", "proposal", "wanted", "asks", "why"),
    [
        (RepairPolicy(), LATE_ROWS, True, True, "policy: ask"),
        (RepairPolicy(), DEFECT_ROWS, True, True, "DEFECT"),
        (RepairPolicy(policy="off"), DEFECT_ROWS, False, False, "policy: off"),
        (RepairPolicy(), None, False, False, "no served row"),
        (AUTOMATIC, LATE_ROWS, True, False, "within the budget"),
        (AUTOMATIC, replace(LATE_ROWS, records=101), True, True, "101 records, more than the 100"),
        (AUTOMATIC, replace(LATE_ROWS, windows=3), True, True, "3 windows, more than the 2"),
        (AUTOMATIC, replace(LATE_ROWS, records=None), True, True, "once it is planned"),
        (AUTOMATIC, DEFECT_ROWS, True, True, "DEFECT"),
        (AUTOMATIC, replace(LATE_ROWS, kinds=("defect", "late_share")), True, True, "DEFECT"),
    ],
)
def test_who_decides_follows_from_policy_budget_and_verdict(
    policy: RepairPolicy, proposal: Proposal | None, wanted: bool, asks: bool, why: str
) -> None:
    decision = decide(policy, proposal, [], NOW)
    assert (decision.wanted, decision.asks) == (wanted, asks)
    assert why in decision.why


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, False),
        ({"ended_at": NOW - DECLINED_FOR}, True),  # long enough ago
        ({"outcome": RepairOutcome.DONE}, True),
        ({"proposal": replace(LATE_ROWS, ranges=((0, HOUR),))}, True),  # of a part of the windows alone
        ({"proposal": DEFECT_ROWS}, True),  # of another verdict
    ],
)
def test_what_a_person_declined_is_not_proposed_again_at_once(change: dict[str, Any], wanted: bool) -> None:
    ended = NOW - timedelta(hours=1)
    declined = RepairRecord(
        "run", LATE_ROWS, ended, outcome=RepairOutcome.DECLINED, by="ada in Airflow", ended_at=ended
    )
    assert decide(AUTOMATIC, LATE_ROWS, [replace(declined, **change)], NOW).wanted is wanted


@pytest.mark.parametrize("ended", [NOW - timedelta(hours=1), NOW - DECLINED_FOR])
def test_windows_that_a_person_declined_are_not_repaired_unasked(ended: datetime) -> None:
    """Another window differs too, so the repair is proposed; the policy may not overrule the person who declined the first."""
    first = replace(LATE_ROWS, ranges=((0, HOUR),), windows=1)
    declined = RepairRecord("run", first, ended, outcome=RepairOutcome.DECLINED, by="ada in Airflow", ended_at=ended)
    decision = decide(AUTOMATIC, LATE_ROWS, [declined], NOW)
    assert (decision.wanted, decision.asks) == (True, ended > NOW - DECLINED_FOR)
    assert ("a person declined the repair of some of these windows" in decision.why) == decision.asks


def test_what_was_declined_and_repaired_since_is_proposed_again() -> None:
    """Who approved the same windows later is right: what is wrong in them now came after that."""
    declined = RepairRecord("run", LATE_ROWS, NOW, outcome=RepairOutcome.DECLINED, by="ada in Airflow", ended_at=NOW)
    done = replace(declined, id="run-2", outcome=RepairOutcome.DONE)
    assert decide(AUTOMATIC, LATE_ROWS, [declined], NOW).wanted is False
    assert decide(AUTOMATIC, LATE_ROWS, [declined, done], NOW).asks is False
    assert decide(AUTOMATIC, LATE_ROWS, [done, declined], NOW).wanted is False


def test_a_record_and_its_proposal_survive_their_json() -> None:
    record = RepairRecord(
        "run", LATE_ROWS, NOW, outcome=RepairOutcome.DONE, by="ada", backfill="bf-1", after={}, ended_at=NOW
    )
    assert RepairRecord.from_json(to_plain(record)) == record
    waiting = RepairRecord("run", LATE_ROWS, NOW)
    assert RepairRecord.from_json(to_plain(waiting)) == waiting


def test_the_words_name_windows_cost_and_the_numbers_of_before_and_after() -> None:
    assert LATE_ROWS.text == (
        "7 rows LATE are served in 2 windows: [1970-01-01T00:00:00Z, 1970-01-01T02:00:00Z), reads 100 records"
    )
    record = RepairRecord(
        "run", LATE_ROWS, NOW, outcome=RepairOutcome.DONE, by="ada in Airflow", backfill="bf-1", after={Verdict.LATE: 1}
    )
    assert record.before_and_after == (
        "backfill bf-1 repaired it, approved by ada in Airflow; before: 7 rows LATE served in 2 windows; after: 1 row LATE"
    )
    asked = LATE_ROWS.ask("p", decide(RepairPolicy(), LATE_ROWS, [], NOW), "windows    2", "late burst")
    assert "Asked for: late burst. The definition says repair: {policy: ask}." in asked
    assert "windows    2" in asked
