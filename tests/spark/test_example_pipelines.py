"""Every example pipeline is accepted by Spark, and its cases hold as a stream and as a batch."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from homes.project import EXAMPLES
from lab.faults.lab_project import DEFINITION
from rivertwice.definition.definition import load_definition
from rivertwice.engine.case_files import load_cases
from rivertwice.engine.cases import run_case
from rivertwice.engine.checks import examine_definition

pytestmark = pytest.mark.spark
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/pipeline.yaml"))
CASES = [(name, case.name) for name in NAMES for case in load_cases(EXAMPLES / name)]


@pytest.mark.parametrize("name", NAMES)
def test_spark_accepts_the_definition_and_it_has_a_case(name: str, spark: SparkSession) -> None:
    assert list(examine_definition(spark, load_definition(EXAMPLES / name)).findings) == []
    assert load_cases(EXAMPLES / name)


def test_spark_accepts_the_definition_of_the_fault_lab(spark: SparkSession) -> None:
    assert list(examine_definition(spark, load_definition(DEFINITION)).findings) == []


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_case_of_an_example_holds_in_both_modes(name: str, case: str, spark: SparkSession) -> None:
    (wanted,) = (one for one in load_cases(EXAMPLES / name) if one.name == case)
    result = run_case(spark, load_definition(EXAMPLES / name), wanted)
    assert result.differences == []
