"""The expressions that decode JSON are fast ones; they give what the slow ones give that say the rules most plainly."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import Column, SparkSession

from lab import decode_fuzz
from rivertwice.engine import decode as product

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", decode_fuzz.SOURCES)
def test_made_up_and_damaged_records_are_decoded_as_by_the_slow_expressions(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    values = list(decode_fuzz.records(50, 0, 3_000, kind))
    places, reasons, _ = decode_fuzz.differing(spark, values, decode_fuzz.SOURCES[kind], tmp_path)
    assert [values[at] for at in places] == []
    assert {None, "json", "utf8", "schema"} <= set(reasons["_reason"].to_pylist())


def test_a_mistake_in_a_fast_expression_is_found(spark: SparkSession, tmp_path: Path) -> None:
    def takes_any_zone(text: Column) -> Column:
        return text.endswith("Z")

    values = list(decode_fuzz.records(50, 0, 3_000, "plain"))
    with patch.object(product, "is_plain_instant", takes_any_zone):
        places, _, _ = decode_fuzz.differing(spark, values, decode_fuzz.SOURCES["plain"], tmp_path)
    assert places
