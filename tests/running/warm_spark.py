"""One warm Spark per process of a test run, and the product's commands and drivers run in it.

A start of Spark in a process of its own costs 15 CPU-seconds and runs cold code. What a test does not claim about a process
(a kill, a lock, an exit code at the shell) runs here: the same `main` functions, the same environment variables, in the
JVM that is there. Each run has a session of its own (SQL settings, temporary views) over one Spark context that no code
under test can stop.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from homes.project import REPOSITORY
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from rivertwice.engine.session import spark_session
from rivertwice.stream import driver
from rivertwice.stream.lease import Lease

SMALL = {
    # For a few hundred records, compiling a plan costs more than running it interpreted. Drivers in their own process compile.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",  # until the product sets its own
}


def small_jobs() -> str:
    """Return the value of `SPARK_SUBMIT_OPTS` by which the jobs that Airflow submits are as small as runs in the warm Spark."""
    return " ".join([os.environ["SPARK_SUBMIT_OPTS"], *(f"-D{name}={value}" for name, value in SMALL.items())])


@functools.cache
def warm_session() -> SparkSession:
    """Return the session of this process, started at the first call: two cores, loopback, the Kafka connector."""
    home = Path(tempfile.mkdtemp(prefix="warm-spark-"))
    base = spark_session(Settings(project=REPOSITORY, home=home, spark_master="local[2]"), "tests", extra=SMALL)
    base.stop = lambda: None  # type: ignore[method-assign]
    logging.getLogger("py4j").setLevel(
        logging.WARNING
    )  # it tells of each connection that ends, after the run's streams have
    return base


def stop_warm_session() -> None:
    """End the Spark of this process, if it was started."""
    if warm_session.cache_info().currsize:
        SparkSession.stop(warm_session())
        warm_session.cache_clear()


@contextmanager
def own_session() -> Iterator[SparkSession]:
    """Give a session of its own, which `spark_session` finds while the context lasts; its `stop` does nothing."""
    base = warm_session()
    before = SparkSession._instantiatedSession or base
    session = base.newSession()
    session.stop = lambda: None  # type: ignore[method-assign]
    for key, value in SMALL.items():
        session.conf.set(key, value)
    _use(session)
    try:
        yield session
    finally:
        _use(before)


def run_driver_warm(settings: Settings, pipeline: str, log: Path) -> None:
    """Run the driver's `main` until everything in the log is committed; fail with the end of its log."""
    handler = logging.FileHandler(log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    actions = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with (
            own_session(),
            mock.patch.dict(os.environ, settings.to_env()),
            # The next start of the same stream would wait for this JVM to end, and then end it.
            mock.patch.object(Lease, "record_jvm"),
        ):
            code = driver.main(["--pipeline", pipeline, "--until-end"])
    finally:
        for number, action in actions.items():
            signal.signal(number, action)
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
        # Its process is said to live on, which it does: as the test's own. A driver of its own process would be gone now.
        (settings.pipeline(pipeline).lease / "owner.json").unlink(missing_ok=True)
    assert code == 0, log.read_text()[-4000:]


def invoke_warm(settings: Settings, *arguments: str) -> Result:
    """Run a command line with the settings as its environment."""
    with own_session():
        return CliRunner().invoke(cli, list(arguments), env=settings.to_env())


def run_command_warm(settings: Settings, *arguments: str, code: int = 0) -> Any:
    """Run a command line and return what it printed as JSON; it must end with the code."""
    done = invoke_warm(settings, "--output", "json", *arguments)
    assert done.exit_code == code, (done.output[-4000:], done.exception)
    return json.loads(done.stdout)


def _use(session: SparkSession) -> None:
    """Make a session the one that `SparkSession.builder.getOrCreate` and `getActiveSession` give."""
    SparkSession._instantiatedSession = session
    SparkSession._activeSession = session
    sessions: Any = SparkSession._get_j_spark_session_class(session._jvm)
    sessions.setDefaultSession(session._jsparkSession)
    sessions.setActiveSession(session._jsparkSession)
