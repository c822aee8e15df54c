"""A session of Spark that is started when it is first needed: what takes one may find that it needs none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spark = Callable[[], "SparkSession"]
"""Gives a session when one is needed (`pipeline.engine.spark_on_demand`)."""
