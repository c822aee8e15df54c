"""What Spark's plan of `fast.sql` is refused for: a computed record, an aggregate, a column that is missing."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

from homes.project import REPOSITORY
from rivertwice.definition.definition import load_definition
from rivertwice.engine.checks import examine_definition

pytestmark = pytest.mark.spark
FRAUD = load_definition(REPOSITORY / "pipelines" / "examples" / "fraud_scores")


@pytest.mark.proves("howto-delivery.md#write-one")
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT record + 1 AS record, card_id FROM transactions", "fast.sql: it computes `record`"),
        ("SELECT card_id FROM transactions", "but not 'record'"),
        ("SELECT record FROM transactions", "but not 'card_id'"),
        ("SELECT max(record) AS record, card_id FROM transactions GROUP BY card_id", "fast.sql: "),
        (
            "SELECT a.record, a.card_id FROM transactions a JOIN transactions b ON a.card_id = b.card_id",
            "fast.sql: ",
        ),
        (
            "SELECT record, card_id, count(*) OVER (PARTITION BY card_id ORDER BY record) AS n FROM transactions",
            "fast.sql: ",
        ),
        ("SELECT DISTINCT record, card_id FROM transactions", "fast.sql: "),
        ("SELECT nothing FROM transactions", "Spark refuses the SQL"),
    ],
)
def test_what_a_fast_path_cannot_be_is_refused(spark: SparkSession, sql: str, said: str) -> None:
    assert re.search(said, "\n".join(examine_definition(spark, FRAUD.model_copy(update={"fast_sql": sql})).findings))


def test_the_example_is_accepted(spark: SparkSession) -> None:
    assert list(examine_definition(spark, FRAUD).findings) == []
