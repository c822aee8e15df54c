"""The Spark session of every stream and every job."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import psutil
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from rivertwice.core import Deadline, Settings, is_one_command, shows_stacks
from rivertwice.definition import DefinitionFile
from rivertwice.engine.executors import watch_executors
from rivertwice.engine.java import java_env
from rivertwice.engine.jvm import QUICK_JVM, is_quick, start_confs

logger = logging.getLogger(__name__)
_STATE = "spark.sql.streaming.stateStore"


def session_confs(*, shuffle_partitions: int, min_batches_to_retain: int = 200) -> dict[str, str]:
    """Return the SQL settings that results and checkpoints depend on; they can be set on a running session."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.caseSensitive": "false",
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.minBatchesToRetain": str(min_batches_to_retain),
        f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",  # it reads each key before it is written, and nothing shows the number
        f"{_STATE}.checkpointFormatVersion": "2",
    }


def watermark_confs(definition: DefinitionFile) -> dict[str, str]:
    """Return the setting that combines several sources' watermarks into one; a checkpoint keeps its first value for ever."""
    if len(definition.sources) == 1:
        return {}
    return {"spark.sql.streaming.multipleWatermarkPolicy": definition.watermark_policy}


def spark_session(
    settings: Settings,
    app_name: str,
    *,
    shuffle_partitions: int = 2,
    extra: Mapping[str, str] | None = None,
    quick: bool = False,
    group: tuple[str, str] | None = None,
    waits: Callable[[str], None] | None = None,
) -> SparkSession:
    """Return the process's Spark session; start one if there is none.

    Under `spark-submit` the submission's JVM is used: its master, memory and jars are kept, only the SQL settings
    are applied. A JVM that is started here listens on the addresses in `Settings.driver_listens`.

    Args:
        shuffle_partitions: partitions of a shuffle; a checkpoint keeps its first value for ever.
        extra: settings that override the ones made here.
        quick: the session is used for a short run (`jvm_confs.is_quick`), so a JVM that starts here has a quick compiler only.
        group: a group and this process's name in it, whose JVM is used (`engine.group`).
        waits: gets a text while no executor of a cluster has registered (`engine.executors`), and an empty one when one has.
    """
    confs = session_confs(shuffle_partitions=shuffle_partitions)
    if group is not None:
        from rivertwice.engine.group import join_group

        _hush_pyspark()
        return join_group(settings, *group, confs | dict(extra or {}))
    adopted = "PYSPARK_GATEWAY_PORT" in os.environ or SparkSession.getActiveSession() is not None
    if _RESIDENT and not adopted:
        return _RESIDENT[0].begin(settings, confs | dict(extra or {}))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(app_name)
    if not adopted:
        if settings.spark_is_local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.update(java_env(settings))  # a machine without Java uses the one that set-up downloaded
        jars = settings.connector_jars
        if not jars:
            logger.warning("no jars in %s, so Spark cannot read Kafka; run `rivertwice setup`", settings.spark_jars)
        confs |= start_confs(settings, jars)
    for key, value in {**confs, **(extra or {})}.items():
        builder = builder.config(key, value)
    _hush_pyspark()
    with _submit_options(QUICK_JVM if quick else None), _ended_if_interrupted():
        if not adopted and is_one_command():
            start_jvm({**confs, **(extra or {}), "spark.app.name": app_name})
        spark = builder.getOrCreate()
    # Spark logs each error with its stack, hundreds of lines, and raises it as well.
    spark.sparkContext.setLogLevel("ERROR" if shows_stacks() else "OFF")
    watch_executors(spark, waits)
    return spark


def _hush_pyspark() -> None:
    """Let pyspark not log what it raises as well: every refused statement, with its stack. So does what calls Python from the JVM."""
    for name in (
        "SQLQueryContextLogger",
        "DataFrameQueryContextLogger",
        *([] if shows_stacks() else ["py4j.clientserver"]),
    ):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _ended_if_interrupted() -> Iterator[None]:
    """Kill the JVM that began to start inside the block if the block fails.

    pyspark removes the folder through which the JVM would say its port; a JVM that does not find it lives for ever.
    """
    before = {child.pid for child in psutil.Process().children()}
    try:
        yield
    except BaseException:
        for child in psutil.Process().children():
            if child.pid not in before:
                with suppress(psutil.NoSuchProcess):
                    for process in (*child.children(recursive=True), child):
                        process.kill()
        raise


@contextmanager
def _submit_options(options: str | None) -> Iterator[None]:
    """Give these options to a JVM that starts inside the block, unless the environment sets others; then remove them."""
    name = "SPARK_SUBMIT_OPTS"
    if options is None or name in os.environ:
        yield
        return
    os.environ[name] = options
    try:
        yield
    finally:
        del os.environ[name]


NO_CODE_TEXT = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Spark interprets its plans instead of compiling code for them."""
FEW_RECORDS = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false", **NO_CODE_TEXT}
"""For a few records, compiling and planning cost more than running. These settings change the cost, but no result."""
FEW_RECORDS_READ = 50_000
"""A run that reads no more records than this costs less where Spark interprets its plans than where it compiles them."""


@contextmanager
def with_confs(spark: SparkSession, confs: Mapping[str, str]) -> Iterator[None]:
    """Set these SQL settings on a running session inside the block; then put back what was set before."""
    before = _values_of(spark, confs)
    for key, value in confs.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        _put_back(spark, before)


def _values_of(spark: SparkSession, keys: Iterable[str]) -> dict[str, str | None]:
    return {key: spark.conf.get(key, None) for key in keys}


def _put_back(spark: SparkSession, before: Mapping[str, str | None]) -> None:
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


class ColdRunError(BaseException):
    """A verb's work does not fit the engine that runs it, so its client must; no handler of a verb's errors takes it."""


class ResidentSpark:
    """One Spark that stays in this process; each run has a new session: own SQL settings, views and functions, and no cached rows."""

    def __init__(self, starting: Callable[[], AbstractContextManager[None]]) -> None:
        """Start nothing.

        Args:
            starting: gives what the start of the JVM happens inside.
        """
        self._starting = starting
        self._base: SparkSession | None = None
        self._failed = False
        self._session: SparkSession | None = None

    @classmethod
    def keep(cls, starting: Callable[[], AbstractContextManager[None]]) -> ResidentSpark:
        """Let all further sessions of this process share one Spark that stays; return it."""
        _RESIDENT[:] = [cls(starting)]
        return _RESIDENT[0]

    def begin(self, settings: Settings, confs: Mapping[str, str]) -> SparkSession:
        """Return a new session with these SQL settings. The JVM is started by the first one, with a quick compiler only."""
        if self._base is None:
            _RESIDENT.clear()  # what is started here is the base of all sessions, with none of a run's settings
            try:
                with self._starting():
                    self._base = spark_session(settings, "rivertwice-engine", quick=True)
            except Exception:
                self._failed = True
                raise
            finally:
                _RESIDENT.append(self)
        session = self._base.newSession()
        session.stop = lambda: None  # type: ignore[method-assign]
        for key, value in confs.items():
            session.conf.set(key, value)
        self._session = session
        self._use(session)
        return session

    def end(self) -> None:
        """Remove the run's session and all that it keeps in the JVM."""
        session, self._session = self._session, None
        if session is None or self._base is None or self.is_dead():
            return
        for query in session.streams.active:
            query.stop()
        session.catalog.clearCache()  # the cache is one for all sessions
        context: Any = session.sparkContext._jsc
        for cached in list(context.getPersistentRDDs().values()):
            cached.unpersist()
        self._use(None)

    def is_dead(self, patience_s: float = 0.0) -> bool:
        """Say whether the JVM could not start, has ended, or ends within the patience."""
        if self._failed:
            return True
        process = None if self._base is None else getattr(self._base.sparkContext._gateway, "proc", None)
        return process is not None and Deadline.after(patience_s).wait_until(lambda: process.poll() is not None)

    def _use(self, session: SparkSession | None) -> None:
        """Make a session the one that `getActiveSession` and `getOrCreate` give; None: there is none, so the next run begins its own."""
        assert self._base is not None, "a session is of a Spark that was started"
        sessions: Any = SparkSession._get_j_spark_session_class(self._base._jvm)
        SparkSession._instantiatedSession = SparkSession._activeSession = session
        sessions.clearActiveSession()
        if session is not None:
            sessions.setActiveSession(session._jsparkSession)


_RESIDENT: list[ResidentSpark] = []
"""At most one: the Spark that this process keeps."""


def leave_engine(why: str) -> None:
    """Give a run that is better off with its own JVM back to the client.

    Raises:
        ColdRunError: this process is an engine.
    """
    if _RESIDENT:
        raise ColdRunError(why)


_REMOTE_PARTITIONS = 8
"""Of a shuffle on a server whose size is not known here; Spark joins small ones where it plans adaptively."""


class SparkOnDemand:
    """Starts a session on its first call, and then returns the same one. `spark_on_demand` makes it, and ends it."""

    def __init__(
        self,
        settings: Settings,
        app_name: str,
        extra: Mapping[str, str] | None = None,
        *,
        quick: bool = False,
        remote: bool = False,
    ) -> None:
        """Take what `spark_on_demand` is passed; nothing is started."""
        self._settings, self._app_name, self._extra, self.quick = settings, app_name, extra, quick
        self.is_remote = remote and settings.spark_remote is not None
        self._borrowed = None if self.is_remote else SparkSession.getActiveSession()
        self._before = {} if self._borrowed is None else _values_of(self._borrowed, extra or {})
        self._session: SparkSession | None = None

    def __call__(self) -> SparkSession:
        """Return the session."""
        if self._session is None and self.is_remote:
            from rivertwice.engine.remote import begin_remote

            confs = session_confs(shuffle_partitions=_REMOTE_PARTITIONS) | dict(self._extra or {})
            self._session = begin_remote(self._settings, self._app_name, confs)
        elif self._session is None:
            self._session = spark_session(self._settings, self._app_name, extra=self._extra, quick=self.quick)
        return self._session

    def examine_server(self) -> tuple[str, list[tuple[str, str]]]:
        """Return the version of a remote server's Spark, and what it lacks for a verb, each with its remedy.

        Raises:
            ServiceError: it does not answer.
            ConfigError: it is another line of Spark.
        """
        from rivertwice.engine.remote import examine_remote

        return examine_remote(self._settings)

    def naming_server(self) -> AbstractContextManager[None]:
        """Return a block in which the loss of a remote server is an error that names it."""
        if not self.is_remote:
            return nullcontext()
        from rivertwice.engine.remote import naming_server

        return naming_server(self._settings)

    def expect(self, *, records: int = 0, batches: int = 0) -> None:
        """Choose the compiler of a JVM that is not started yet by what the run reads (`jvm_confs.is_quick`).

        Raises:
            ColdRunError: this process is an engine, and such a run is better off with its own JVM.
        """
        self.quick = is_quick(records=records, batches=batches)
        if not self.quick and not self.is_remote:
            leave_engine(f"it reads {records} records")

    def release(self) -> None:
        """Stop the session if it was started here, and put a borrowed one's settings back; a further call starts another.

        The JVM stays, and its next session is quick; executors on a cluster are free at once.
        """
        session, self._session = self._session, None
        if session is None:
            return
        if self.is_remote:
            from rivertwice.engine.remote import end_remote

            end_remote(session)
        elif self._borrowed is None and _RESIDENT:
            _RESIDENT[0].end()
        elif self._borrowed is None:
            session.stop()
        else:
            _put_back(self._borrowed, self._before)


@contextmanager
def spark_on_demand(
    settings: Settings,
    app_name: str,
    *,
    extra: Mapping[str, str] | None = None,
    quick: bool = False,
    remote: bool = False,
) -> Iterator[SparkOnDemand]:
    """Give a function that starts a session on its first call, and then returns the same one.

    At the end the session is stopped if it was started here. A session that runs already is borrowed: it is not stopped, and
    `extra` applies to it only until the end.

    Args:
        extra: settings that override the usual ones.
        quick: as for `spark_session`.
        remote: the work may run on a Spark Connect server, and does if the settings name one: it needs no JVM in reach.
    """
    spark = SparkOnDemand(settings, app_name, extra, quick=quick, remote=remote)
    try:
        with spark.naming_server():
            yield spark
    finally:
        spark.release()


# Start the JVM of a command, and pass on what it says, except one warning that appears at every start and needs no action.
#
# Spark's launcher adds the module `jdk.incubator.vector`, and Java warns of it on stderr; no option of Java turns that off. All other
# lines are passed on as they come. Logs of streams and jobs keep the warning.

_EXPECTED = b"WARNING: Using incubator modules: jdk.incubator.vector"


def start_jvm(confs: Mapping[str, str]) -> None:
    """Start the JVM that the process's session will use, unless there is one; `confs` are those of the session."""
    if SparkContext._gateway is not None:
        return
    said, theirs = os.pipe()
    try:
        conf = SparkConf(loadDefaults=False).setAll(list(confs.items()))
        threading.Thread(target=pass_on, args=(said, 2), name="what the JVM says", daemon=True).start()
        gateway = launch_gateway(conf, popen_kwargs={"stderr": theirs})  # type: ignore[no-untyped-call]
    finally:
        os.close(theirs)
    SparkContext._ensure_initialized(gateway=gateway)


def pass_on(said: int, to: int) -> None:
    """Copy lines from one file descriptor to another until its end, without the warning; what has no end of line yet waits for it."""
    rest = b""
    while block := os.read(said, 65_536):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.rstrip() != _EXPECTED:
                _write(to, line + b"\n")
    if rest:
        _write(to, rest)
    os.close(said)


def _write(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data) :]
