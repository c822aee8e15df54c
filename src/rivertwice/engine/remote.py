"""A session on a Spark Connect server, for the batch verbs: whether it fits, and what of a verb is still done here.

Such a session has no JVM in reach. Everything that is asked of an analysed plan is therefore asked of a second, local session, which
reads nothing (`planning`). Streams do not run here: a driver steers its query inside `foreachBatch` through Spark's own objects.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.errors import PySparkException

from rivertwice import __version__
from rivertwice.core import ConfigError, KafkaSecurity, Place, ServiceError, Settings, SparkVersion
from rivertwice.log import kafka
from rivertwice.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ANSWER_S, LOOK_S = 20.0, 180.0
"""How long a server may take to say its version, and to run the first small job: a cluster may have to start executors for it."""
_LOST = ("RETRIES_EXCEEDED", "INVALID_HANDLE", "NO_ACTIVE_SESSION", "SESSION_CLOSED", "SESSION_CHANGED")
_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""By this variable pyspark decides, for the process, of which kind the columns are that its functions make."""
_RETRIES, _LONGEST_PAUSE_MS = 8, 10_000
"""A server that was lost is asked again for three quarters of a minute; Spark's client would do so for ten."""
# A server ends a connection on which it is pinged more often than each five minutes.
_ALIVE = [("grpc.keepalive_time_ms", 330_000), ("grpc.keepalive_timeout_ms", 30_000)]
_Found = TypeVar("_Found")


def begin_remote(settings: Settings, app_name: str, confs: Mapping[str, str]) -> SparkSession:
    """Return a new session on the server that `settings.spark_remote` names, after a look at what it sees.

    Args:
        confs: SQL settings of the session.

    Raises:
        ServiceError: it does not answer.
        ConfigError: it is another Spark, or lacks what a verb needs.
    """
    session = _connect(settings)
    _SETTINGS[:] = [settings]
    try:
        problems = _look(session, settings)
        if problems:
            lacks = "; ".join(f"{fact}; {remedy}" for fact, remedy in problems)
            message = f"the Spark Connect server {settings.spark_remote} cannot run this: {lacks}"
            raise ConfigError(message)
        for key, value in {"spark.app.name": app_name, **confs}.items():
            session.conf.set(key, value)
    except BaseException:
        end_remote(session)
        raise
    return session


def end_remote(session: SparkSession) -> None:
    """Give the session back; what pyspark makes from here on is of this process's own Spark again."""
    remote: Any = session
    remote.client.set_retry_policies([])  # a server that is lost has nothing to give back
    with suppress(TimeoutError):
        _within(ANSWER_S, remote.stop)
    os.environ.pop(_MODE, None)
    local = _LOCAL.pop("session", None)
    if local is not None:
        local.stop()


def examine_remote(settings: Settings) -> tuple[str, list[tuple[str, str]]]:
    """Return the version of the server's Spark, and what it lacks, each with its remedy.

    Raises:
        ServiceError: it does not answer.
    """
    with naming_server(settings):
        session = _connect(settings)
        try:
            return str(session.version), _look(session, settings)
        finally:
            end_remote(session)


def sql_over(spark: Any, sql: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """Return the result of a statement over named frames.

    A server analyses a statement again wherever its result is used, so a view that was dropped would be missed. The frames are sent with
    it instead, as `SparkSession.sql` sends the frames that a text names in braces.
    """
    from pyspark.sql.connect.dataframe import DataFrame as RemoteFrame
    from pyspark.sql.connect.plan import SQL, SubqueryAlias

    plans: Mapping[str, Any] = views
    frames: Any = [SubqueryAlias(rows._plan, name) for name, rows in plans.items()]
    return RemoteFrame(SQL(sql, views=frames), spark)


@contextmanager
def planning(spark: SparkSession) -> Iterator[SparkSession]:
    """Give the session whose plans can be walked: the one given, or a local one beside a remote one.

    Nothing is read through it, so one small JVM does for all of a verb's definitions.
    """
    if not SparkVersion.is_connect(spark):
        yield spark
        return
    with _PLANNING:
        mode = os.environ.pop(_MODE)
        try:
            if "session" not in _LOCAL:
                from rivertwice.engine.session import spark_session

                _LOCAL["session"] = spark_session(_SETTINGS[0].with_local_spark(), "rivertwice-plans", quick=True)
            yield _LOCAL["session"]
        finally:
            os.environ[_MODE] = mode


_PLANNING = threading.RLock()
_LOCAL: dict[str, SparkSession] = {}
_SETTINGS: list[Settings] = []
"""Those of the newest remote session."""


def _connect(settings: Settings) -> SparkSession:
    """Return a session with a server that answers and has this Spark's version."""
    if find_spec("grpc") is None or find_spec("grpc_status") is None:
        message = (
            f"RIVERTWICE_SPARK_REMOTE is {settings.spark_remote}, and the packages of Spark's client are not installed here; run "
            f"`uv pip install 'pyspark[connect]=={SparkVersion.installed().text}'`"
        )
        raise ConfigError(message)
    # gRPC's handlers of forks run in the child that becomes the local session's JVM, and end it at times ("epoll_wait error: Bad file
    # descriptor", "Java gateway process exited"). They are read as gRPC is imported.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")  # the error says it
    address = settings.spark_remote
    assert address is not None, "only then a verb is remote"
    os.environ[_MODE] = "1"
    try:
        session: Any = RemoteSession(DefaultChannelBuilder(address, _ALIVE))
        session.client.set_retry_policies([DefaultPolicy(max_retries=3, max_backoff=2_000)])
        version = _within(ANSWER_S, lambda: str(session.version))
        session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES, max_backoff=_LONGEST_PAUSE_MS)])
    except BaseException as error:
        os.environ.pop(_MODE, None)
        if not isinstance(error, (PySparkException, TimeoutError)):
            raise
        raise unreachable(settings, error) from error
    RemoteSession._set_default_and_active_session(session)
    misfit = find_misfit(address, SparkVersion(version), SparkVersion.installed())
    if misfit is not None:
        end_remote(session)
        raise ConfigError(misfit)
    return session  # type: ignore[no-any-return]


def find_misfit(address: str, server: SparkVersion, own: SparkVersion) -> str | None:
    """Return why a server does not fit the installed Spark, with the remedy; None if it does. Pure."""
    if server.line == own.line:
        return None
    fact = f"the Spark Connect server {address} runs Spark {server.text}, and pyspark {own.text} is installed here"
    if server.unsupported:
        return f"{fact}; {server.unsupported}; take a server of Spark {own.line}"
    return (
        f"{fact}; functions are sent between the two, so both must be of one line; take a server of Spark {own.line}, or run "
        f"`uv pip install 'pyspark~={server.line}.0'`, then `rivertwice setup`"
    )


def unreachable(settings: Settings, error: BaseException) -> ServiceError:
    """Return the error about a server that does not answer."""
    said = next(iter(str(error).split("\n")), "")[:300] or type(error).__name__
    refused = "UNAUTHENTICATED" in str(error)
    remedy = (
        "set SPARK_CONNECT_AUTHENTICATE_TOKEN to the server's token; with a token Spark's client asks for TLS, unless the host is `localhost`"
        if refused
        else "start it, or correct RIVERTWICE_SPARK_REMOTE; without that setting this machine's own Spark is used"
    )
    return ServiceError(f"the Spark Connect server {settings.spark_remote} does not answer: {said}; {remedy}")


def _look(session: Any, settings: Settings) -> list[tuple[str, str]]:
    """Return what the server lacks for a verb, each with its remedy."""
    problems: list[tuple[str, str]] = []
    try:
        options = kafka.spark_options(replace(settings, bootstrap="127.0.0.1:9", kafka=KafkaSecurity()))
        topic = session.read.format("kafka").options(**options).option("subscribe", "t")
        len(topic.load().columns)  # the server looks the source up, and reads nothing
    except PySparkException as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error.getCondition()) and "kafka" not in str(error).lower():
            raise
        packages = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{session.version}"
        problems.append(("it has no Kafka connector", f"start it with `--packages {packages}`"))
    place: Place = settings.home if settings.shared is None else settings.shared
    name, text = f"seen-{uuid.uuid4().hex}", uuid.uuid4().hex
    store = open_store(place)
    store.put_if_absent(name, text.encode())
    try:
        python, installed, seen = _within(LOOK_S, lambda: _ask_executor(session, place, name))
    except (PySparkException, TimeoutError) as error:
        return [*problems, _job_failed(error)]
    finally:
        store.delete(name)
    own = "{}.{}".format(*sys.version_info[:2])
    if python != own:
        problems.append((f"its executors run Python {python} and this process {own}", _SAME_PYTHON))
    if installed != __version__:
        has = f"rivertwice {installed}" if installed else "no rivertwice"
        remedy = f"run `pip install 'rivertwice[spark,s3]=={__version__}'` for their Python"
        problems.append((f"its executors have {has}, and this process {__version__}", remedy))
    elif seen != text:
        remedy = (
            "set RIVERTWICE_SHARED to a place that both reach: a folder that is mounted at the same path there, or s3://BUCKET/PREFIX "
            "with a login in their environment"
        )
        problems.append((f"its executors do not find {place}/{name}, which was just written here ({seen})", remedy))
    return problems


_SAME_PYTHON = "give both the same minor version"


def _job_failed(error: BaseException) -> tuple[str, str]:
    text = " ".join(str(error).split())
    if "PYTHON_VERSION_MISMATCH" in text or "minor version" in text:
        return (
            f"its executors run another Python than this process, {sys.version_info[0]}.{sys.version_info[1]}",
            _SAME_PYTHON,
        )
    return f"a first small job failed: {text[:300]}", "see its log"


def _ask_executor(session: Any, place: Place, name: str) -> tuple[str, str, str]:
    """Return Python, rivertwice's version, and the text of a file, as an executor finds them; the file's text is an error's if it has none."""
    where, on_disk = str(place), isinstance(place, Path)

    def look(batches: Any) -> Any:
        import sys as there

        import pyarrow as pa

        for _ in batches:
            python, installed, seen = "{}.{}".format(*there.version_info[:2]), "", ""
            try:
                from rivertwice import __version__ as that_version

                installed = that_version
                from pathlib import Path as ThatPath

                from rivertwice.storage import open_store as open_there

                data = open_there(ThatPath(where) if on_disk else where).get(name)
                seen = "there is no such file" if data is None else data.decode()
            except ImportError as error:
                seen = str(error)
            except Exception as error:
                seen = f"{type(error).__name__}: {error}"
            yield pa.RecordBatch.from_pylist([{"python": python, "installed": installed, "seen": seen[:300]}])

    rows = session.range(0, 1, 1, 1).mapInArrow(look, "python string, installed string, seen string").toArrow()
    (row,) = rows.to_pylist()
    return row["python"], row["installed"], row["seen"]


def _within(limit_s: float, ask: Callable[[], _Found]) -> _Found:
    """Return what a call returns; a server may leave it without an answer for ever.

    Raises:
        TimeoutError: it did not return in time.
    """
    answers: list[_Found] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="asks Spark Connect", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not answers:
        message = f"no answer within {limit_s:.0f} s"
        raise TimeoutError(message)
    return answers[0]


@contextmanager
def naming_server(settings: Settings) -> Iterator[None]:
    """Give the loss of the server, inside the block, as an error that names it."""
    try:
        yield
    except PySparkException as error:
        if str(error.getCondition()).startswith(_LOST) or "StatusCode.UNAVAILABLE" in str(error):
            raise unreachable(settings, error) from error
        raise
