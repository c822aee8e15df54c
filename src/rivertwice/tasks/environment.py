"""The environment of the Spark jobs that a DAG starts: this interpreter, Java, the settings. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rivertwice.core import Settings
from rivertwice.engine import QUICK_JVM, find_java, start_confs

SPARK_CONNECTION = "spark_default"
SPARK_POOL = "spark_batch"


def submit_confs(settings: Settings, own: Mapping[str, str], *, quick: bool = False) -> dict[str, str]:
    """Return what only the submission can set, as a driver's own start does; the jobs set the SQL settings themselves.

    Args:
        own: those of the pipeline, which override the others.
        quick: the job is a short run (`jvm_confs.is_quick`).
    """
    confs = start_confs(settings, settings.connector_jars)
    if quick:
        confs["spark.driver.extraJavaOptions"] += f" {QUICK_JVM}"
    del confs["spark.master"]  # from the connection
    return {**confs, **own}


def spark_environment(settings: Settings, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what `spark-submit` needs: this interpreter, its folder on PATH, Java, and the settings."""
    inherited = os.environ if inherited is None else inherited
    scripts = str(Path(sys.executable).parent)
    path = inherited.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != scripts:
        path = os.pathsep.join([scripts, path])
    env = {**settings.to_env(), "PYSPARK_PYTHON": sys.executable, "PATH": path}
    if settings.spark_is_local:
        env["SPARK_LOCAL_IP"] = "127.0.0.1"  # the executors of a cluster have to reach the driver
    if java_home := inherited.get("JAVA_HOME"):
        env["JAVA_HOME"] = java_home
    elif java := find_java(settings.build, inherited):
        env["JAVA_HOME"] = str(java.home)
    return env
