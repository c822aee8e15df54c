"""An amended value is decoded by the definition itself: refused while it is still not acceptable, else an accepted row."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from histories.kinds import make_definition
from lab.faults.lab_project import DEFINITION
from rivertwice.definition.definition import load_definition
from rivertwice.timeline.dead_cure import amended_rows, problem_with, with_cures
from rivertwice.timeline.dead_letters import Cure, DeadLetter, RecordAddress, cure_applies

LAB = load_definition(DEFINITION)
AT = datetime(2026, 1, 1, tzinfo=UTC)
FINE = {"id": "e1", "k": "k1", "at": "2026-01-01T00:00:00Z", "amount": 7}
LETTER = DeadLetter(
    LAB.source[1].topic,
    RecordAddress("id", 2, 117),
    "t1",
    4,
    "json",
    None,
    AT,
    b"e1",
    b"{broken",
    [("schema-id", b"lab-1")],
)


def encoded(**changes: object) -> bytes:
    return json.dumps({**FINE, **changes}).encode()


def test_a_value_that_the_definition_accepts_has_no_problem(spark: SparkSession) -> None:
    assert problem_with(spark, LAB, LETTER, encoded()) is None


@pytest.mark.proves("howto-quality.md#dead-letters")
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"{still broken", "json: "),
        (b"", "empty: "),
        (encoded(amount="seven"), "schema: amount is no bigint"),
        (encoded(at="2027-01-01T00:00:00Z"), "future: "),
    ],
)
def test_a_value_that_would_be_a_dead_letter_too_says_why(spark: SparkSession, value: bytes, problem: str) -> None:
    found = problem_with(spark, LAB, LETTER, value)
    assert found is not None
    assert found.startswith(problem)


def test_a_cure_is_a_row_at_its_own_address_until_it_ends(spark: SparkSession) -> None:
    other = replace(LETTER, address=RecordAddress("id", 0, 5))
    cures = [
        Cure(LETTER, encoded(), 1, 3),
        Cure(other, encoded(k="k9"), 2),
        Cure(LETTER, encoded(amount=8), 3),
        Cure(other, b"{broken again", 4),
    ]
    (rows,) = amended_rows(spark, LAB, cures).values()
    found = sorted(
        (row["_partition"], row["_offset"], row["k"], row["amount"], row["_from"], row["_until"], row["_record_time"])
        for row in rows.toArrow().to_pylist()
    )
    assert found == [(0, 5, "k9", 7, 2, None, AT), (2, 117, "k1", 7, 1, 3, AT), (2, 117, "k1", 8, 3, None, AT)]


def test_a_cure_takes_the_place_of_whatever_lies_at_its_address(spark: SparkSession) -> None:
    cures = amended_rows(spark, LAB, [Cure(LETTER, encoded(amount=8), 1)])["events"]
    before = amended_rows(
        spark, LAB, [Cure(LETTER, encoded(), 1), Cure(replace(LETTER, address=RecordAddress("id", 2, 3)), encoded(), 2)]
    )
    rows = with_cures(before["events"].drop("_from", "_until"), cures)
    assert sorted((row["_offset"], row["amount"]) for row in rows.toArrow().to_pylist()) == [(3, 7), (117, 8)]
    assert with_cures(rows, None) is rows


def test_where_no_rule_explains_a_cure_it_is_not_applied(spark: SparkSession) -> None:
    assert [
        cure_applies(make_definition(kind), "events")
        for kind in ("tumbling", "hopping", "joined intervals", "session", "fold")
    ] == [
        True,
        True,
        True,
        True,
        False,
    ]
    assert not cure_applies(make_definition("as-of intervals"), "names")
    assert not cure_applies(LAB, "another topic")
    assert amended_rows(spark, LAB, []) == {}
