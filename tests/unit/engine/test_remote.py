"""Which Spark Connect server is accepted, and for what a session is begun there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rivertwice.core.errors import ConfigError, ServiceError
from rivertwice.core.settings import Settings
from rivertwice.core.spark_versions import SparkVersion
from rivertwice.engine import remote
from rivertwice.engine import session as engine
from rivertwice.engine.session import spark_on_demand
from rivertwice.engine.warm import is_served

ADDRESS = "sc://spark:15002"


def settings(tmp_path: Path, **env: str) -> Settings:
    return Settings.from_env({"RIVERTWICE_PROJECT": str(tmp_path), **env})


@pytest.mark.parametrize("text", [ADDRESS, "sc://localhost", "sc://[::1]:15002", "sc://h:1/;use_ssl=true;user_id=ann"])
def test_an_address_of_a_server_is_taken_and_passed_on(tmp_path: Path, text: str) -> None:
    read = settings(tmp_path, RIVERTWICE_SPARK_REMOTE=text)
    assert read.spark_remote == text
    assert Settings.from_env(read.to_env()).spark_remote == text


@pytest.mark.parametrize(
    "text", ["spark://h:7077", "sc://", "sc://h:0", "sc://h:99999", "h:15002", "sc://h/db", "sc://a b"]
)
def test_what_is_not_an_address_is_refused_with_one_that_is(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="write sc://HOST:PORT") as caught:
        settings(tmp_path, RIVERTWICE_SPARK_REMOTE=text)
    example = str(caught.value).rpartition("for instance ")[2]
    assert settings(tmp_path, RIVERTWICE_SPARK_REMOTE=example).spark_remote == example


def test_a_token_in_the_address_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SPARK_CONNECT_AUTHENTICATE_TOKEN") as caught:
        settings(tmp_path, RIVERTWICE_SPARK_REMOTE="sc://h:1/;token=hidden")
    assert "hidden" not in str(caught.value)


@pytest.mark.proves("guarantees.md#verbs-on-a-spark-connect-server")
def test_a_server_of_another_line_is_refused() -> None:
    own = SparkVersion("4.2.0")
    assert remote.find_misfit(ADDRESS, SparkVersion("4.2.7"), own) is None
    older = remote.find_misfit(ADDRESS, SparkVersion("4.1.2"), own)
    assert older is not None
    assert "uv pip install 'pyspark~=4.1.0'" in older
    unknown = remote.find_misfit(ADDRESS, SparkVersion("3.5.1"), own)
    assert unknown is not None
    assert "take a server of Spark 4.2" in unknown


def test_only_a_verb_that_may_be_remote_asks_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def begin(where: str) -> Any:
        return lambda *_, **__: begun.append(where) or object()

    monkeypatch.setattr(remote, "begin_remote", begin("there"))
    monkeypatch.setattr(remote, "end_remote", lambda _: begun.append("ended"))
    monkeypatch.setattr(engine.SparkSession, "getActiveSession", lambda: None)
    away = settings(tmp_path, RIVERTWICE_SPARK_REMOTE=ADDRESS)
    with spark_on_demand(away, "test", remote=True) as spark:
        assert spark() is spark()
        spark.expect(records=10**9)
    assert begun == ["there", "ended"]
    monkeypatch.setattr(engine, "spark_session", begin("here"))
    for of, may in ((away, False), (replace(away, spark_remote=None), True)):
        with spark_on_demand(of, "test", remote=may) as spark:
            session: Any = spark()
            monkeypatch.setattr(spark, "release", lambda: None)
            assert session is not None
    assert begun == ["there", "ended", "here", "here"]


def test_a_server_that_is_set_leaves_no_work_for_the_warm_engine(tmp_path: Path) -> None:
    assert is_served(settings(tmp_path))
    assert not is_served(settings(tmp_path, RIVERTWICE_SPARK_REMOTE=ADDRESS))


def test_a_server_that_is_silent_is_named_within_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = settings(tmp_path, RIVERTWICE_SPARK_REMOTE=f"sc://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(remote, "ANSWER_S", 1.0)
        with pytest.raises(ServiceError, match=f"{away.spark_remote} does not answer"):
            remote.begin_remote(away, "test", {})


def test_nothing_of_the_client_is_imported_where_no_server_is_set() -> None:
    code = "import sys, rivertwice.engine.compile; print('pyspark.sql.connect' in sys.modules, 'grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
