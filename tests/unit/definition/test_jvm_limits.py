"""Every way a JVM is started carries the limits on what an Avro record may claim."""

from __future__ import annotations

from rivertwice.core.settings import Settings
from rivertwice.engine.jvm import AVRO_LIMITS, start_confs
from rivertwice.tasks.environment import submit_confs


def test_sessions_and_jobs_that_airflow_submits_start_with_the_limits(settings: Settings) -> None:
    assert AVRO_LIMITS.count("maxLength=") == 3
    for confs in (start_confs(settings, []), submit_confs(settings, {})):
        for side in ("driver", "executor"):
            assert AVRO_LIMITS in confs[f"spark.{side}.extraJavaOptions"]
