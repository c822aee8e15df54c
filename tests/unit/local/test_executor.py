"""The command of an executor's pod: what Spark's variables say, in the order in which they say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivertwice.core.errors import ConfigError
from rivertwice.setup.executor import BACKEND, executor_command, main

POD = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:4040",
    "SPARK_EXECUTOR_ID": "2",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "x-exec-2",
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_2": "-Dmiddle=a b",
    "SPARK_JAVA_OPT_0": "-Dfirst=1",
}


def test_an_executor_is_started_as_its_variables_say() -> None:
    command = executor_command(Path("/java/bin/java"), Path("/jars"), POD)
    at = command.index(BACKEND)
    assert command[:at] == [
        "/java/bin/java", "-Dfirst=1", "-Dmiddle=a b", "-Dlast=1", "-Xms512m", "-Xmx512m", "-cp", "/jars/*",
    ]  # fmt: skip
    options = dict(zip(command[at + 1 :: 2], command[at + 2 :: 2], strict=True))
    assert options["--driver-url"] == POD["SPARK_DRIVER_URL"]
    assert options["--podName"] == "x-exec-2"
    assert options["--hostname"] == "10.0.0.7"


def test_an_executor_that_spark_did_not_start_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SPARK_DRIVER_URL, SPARK_EXECUTOR_MEMORY not set.*k8s://"):
        executor_command(Path("/j"), Path("/jars"), POD | {"SPARK_DRIVER_URL": "", "SPARK_EXECUTOR_MEMORY": ""})


def test_a_pod_is_an_executor_and_nothing_else() -> None:
    with pytest.raises(SystemExit):
        main(["driver"])
