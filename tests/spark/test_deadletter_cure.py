"""An amended value is decoded by the definition itself: refused while it is still not acceptable, else an accepted row."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from rivertwice.deadletters.cure import amended_rows, problem_with
from rivertwice.deadletters.model import AMEND, DISCARD, Address, Amendment, DeadLetter
from rivertwice.pipeline.definition import load_definition
from rivertwice.testing.lab_project import DEFINITION

LAB = load_definition(DEFINITION)
AT = datetime(2026, 1, 1, tzinfo=UTC)
FINE = {"id": "e1", "k": "k1", "at": "2026-01-01T00:00:00Z", "amount": 7}
LETTER = DeadLetter(
    LAB.source[1].topic, Address("id", 2, 117), "t1", 4, "json", None, AT, b"e1", b"{broken", [("schema-id", b"lab-1")]
)


def encoded(**changes: object) -> bytes:
    return json.dumps({**FINE, **changes}).encode()


def test_a_value_that_the_definition_accepts_has_no_problem(spark: SparkSession) -> None:
    assert problem_with(spark, LAB, LETTER, encoded()) is None


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


def test_only_amended_letters_become_rows_and_keep_their_own_address(spark: SparkSession) -> None:
    def decided(kind: str, value: bytes | None) -> Amendment:
        return Amendment(1, kind, LETTER.topic, LETTER.address, value, "why", "me", AT)

    letters = [
        replace(LETTER, amendment=decided(AMEND, encoded())),
        replace(LETTER, address=Address("id", 2, 118), amendment=decided(DISCARD, None)),
        replace(LETTER, address=Address("id", 2, 119)),
    ]
    (rows,) = amended_rows(spark, LAB, letters).values()
    (row,) = rows.toArrow().to_pylist()
    assert (row["_partition"], row["_offset"], row["_record_time"], row["k"], row["amount"]) == (2, 117, AT, "k1", 7)


def test_without_amended_letters_there_are_no_rows(spark: SparkSession) -> None:
    (rows,) = amended_rows(spark, LAB, [LETTER]).values()
    assert rows.count() == 0
