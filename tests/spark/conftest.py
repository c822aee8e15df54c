"""One Spark session for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rivertwice.config import Settings
from rivertwice.pipeline.engine import spark_session

PROJECT = Path(__file__).resolve().parents[2]


INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Of a few hundred records compiling costs more than running: 280 CPU-seconds for `test_reconcile_planted.py`, 216 so. Drivers compile."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The shared session: two cores, loopback, a home of its own."""
    home = tmp_path_factory.mktemp("home")
    settings = Settings(project=PROJECT, home=home, spark_master="local[2]")
    session = spark_session(settings, "tests", extra=INTERPRETED)
    yield session
    session.stop()
