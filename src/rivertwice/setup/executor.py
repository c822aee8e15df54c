"""The process of an executor's pod on Kubernetes: `python -m rivertwice.setup.executor executor`.

Spark's own images have a shell script for this; an environment of pip has not. Spark gives the pod the one argument `executor` and
variables that say where its driver is. This process becomes the JVM, so that it gets the signals and gives the exit code.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from rivertwice.core import ConfigError, Settings
from rivertwice.engine import java_env

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_MEMORY = "SPARK_EXECUTOR_MEMORY"
_JVM_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def executor_command(java: Path, jars: Path, env: Mapping[str, str]) -> list[str]:
    """Return the command line of the JVM. Pure.

    Args:
        java: the program.
        jars: folder of Spark's own jars; those of a session come from its driver.
        env: the pod's variables.

    Raises:
        ConfigError: a variable is missing, so Spark did not start this pod.
    """
    if missing := [name for name in (*_OPTIONS.values(), _MEMORY) if not env.get(name)]:
        message = (
            f"{', '.join(missing)} not set, so it is not known which driver this executor belongs to; Spark sets them in the pods "
            "that it starts (RIVERTWICE_SPARK_MASTER=k8s://...), and no person runs this command"
        )
        raise ConfigError(message)
    numbered = {int(found[1]): value for name, value in env.items() if (found := _JVM_OPTION.fullmatch(name))}
    memory = env[_MEMORY]
    options = [word for option, name in _OPTIONS.items() for word in (option, env[name])]
    jvm = [numbered[number] for number in sorted(numbered)]
    return [str(java), *jvm, f"-Xms{memory}", f"-Xmx{memory}", "-cp", f"{jars}/*", BACKEND, *options]


def main(argv: Sequence[str] | None = None) -> None:
    """Become the executor's JVM."""
    parser = argparse.ArgumentParser(prog="python -m rivertwice.setup.executor", description=__doc__)
    parser.add_argument("part", choices=["executor"], help="what Spark asks the pod to be")
    parser.parse_args(argv)
    env = {**os.environ, **java_env(Settings.from_env())}
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        message = "pyspark is not installed, so no executor can run; use the image of docker/Dockerfile"
        raise ConfigError(message)
    command = executor_command(Path(env["JAVA_HOME"], "bin", "java"), Path(spec.origin).parent / "jars", env)
    os.execve(command[0], command, env)  # noqa: S606 (no shell is wanted)


if __name__ == "__main__":
    main()
