"""A Spark session for the side that is judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rivertwice.config import Settings
from rivertwice.pipeline.engine import spark_session
from streamed_run import REPOSITORY


@pytest.fixture(scope="session")
def judged_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, loopback, the Kafka connector."""
    home: Path = tmp_path_factory.mktemp("oracle")
    session = spark_session(Settings(project=REPOSITORY, home=home, spark_master="local[2]"), "oracle")
    yield session
    session.stop()
