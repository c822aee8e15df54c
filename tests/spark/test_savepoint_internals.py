"""The two places where a replay and a catch-up reach inside Spark still are where it looks for them."""

from __future__ import annotations

import pytest

from rivertwice.core.settings import Settings
from rivertwice.stream.source import FIELD, LOG_END, steer_source, terminated_state

pytestmark = pytest.mark.spark


def test_the_kafka_source_still_has_the_field_that_steers_it(spark):
    # Of all sessions: the loader of the thread that py4j happens to use is what an earlier call left there.
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    kind = loader.loadClass("org.apache.spark.sql.kafka010.KafkaMicroBatchStream")
    assert kind.getDeclaredField(FIELD).getType().getName() == "scala.collection.immutable.Map"
    assert kind.getDeclaredField(LOG_END).getType().getName() == "scala.collection.immutable.Map"
    names = {method.getName() for method in kind.getMethods()}
    assert "prepareForTriggerAvailableNow" in names


@pytest.mark.core
def test_the_state_that_ends_a_query_is_found(spark):
    assert terminated_state(spark).toString() == "TERMINATED"


def test_an_execution_without_a_kafka_source_is_not_steered(spark, tmp_path):
    settings = Settings(project=tmp_path, home=tmp_path)
    assert not steer_source(spark, settings, spark._jvm.java.lang.Object(), {"t": {"0": 1}})
