"""Which jobs of a DAG run in the warm engine: those for which a submission would do the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rivertwice.core.settings import Settings
from rivertwice.definition.airflow_section import AirflowSettings, SparkResources
from rivertwice.definition.definition import load_definition

pytestmark = [pytest.mark.airflow, pytest.mark.filterwarnings("ignore")]  # of Airflow's own imports
HERE = '{"conn_type": "spark", "host": "local[2]"}'


@pytest.mark.parametrize(
    ("connection", "resources", "changes", "warm"),
    [
        (HERE, {}, {}, True),
        (HERE, {}, {"engine": False}, False),
        (HERE, {"driver_memory": "4g"}, {}, False),
        (HERE, {"conf": {"spark.task.cpus": "2"}}, {}, False),
        ('{"conn_type": "spark", "host": "spark://master", "port": 7077}', {}, {}, False),
        ('{"conn_type": "spark", "host": "spark://master:7077"}', {}, {"spark_master": "spark://master:7077"}, False),
        ('{"conn_type": "spark", "host": "local[2]", "extra": {"queue": "nightly"}}', {}, {}, False),
    ],
)
@pytest.mark.proves("howto-airflow.md#the-dags")
def test_a_job_is_warm_if_a_submission_would_do_the_same(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    connection: str,
    resources: dict[str, object],
    changes: dict[str, object],
    warm: bool,
) -> None:
    from rivertwice.airflow.spark_operator import RivertwiceSparkOperator
    from rivertwice.tasks.definitions import DagFacts

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    settings = replace(settings, **{"engine": True, "spark_master": "local[2]", **changes})
    definition = load_definition(settings.definitions / "flight_delays")
    airflow = AirflowSettings(spark=SparkResources.model_validate(resources))
    definition = definition.model_copy(update={"airflow": airflow})
    task = RivertwiceSparkOperator(
        task_id="extend", settings=settings, facts=DagFacts.of(definition), job="archive", arguments=[]
    )
    assert task._may_be_warm(settings, quick=True) is warm
