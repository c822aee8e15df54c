"""Connections of Airflow as settings: what they give, what they replace, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rivertwice.airflow import connections
from rivertwice.airflow.connections import aws_variables, kafka_variables
from rivertwice.core.errors import ConfigError
from rivertwice.core.kafka_security import KafkaSecurity
from rivertwice.core.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore")  # of Airflow's own imports
SECURE = {
    "bootstrap.servers": "broker:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "streams",
    "sasl.password": "canary-1",
    "ssl.ca.location": "/etc/ca.pem",
    "ssl.certificate.location": "/etc/client.pem",
    "ssl.key.location": "/etc/client.pem",
    "group.id": "airflow",
    "auto.offset.reset": "earliest",
}


class Connection:
    def __init__(self, conn_type: str, extra: dict[str, Any], login: str | None = None, password: str | None = None):
        self.conn_type, self.extra_dejson, self.login, self.password = conn_type, extra, login, password


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[str, Connection]:
    """Airflow's connections by name."""
    made: dict[str, Connection] = {}

    def find(name: str) -> Connection:
        if name not in made:
            raise connections.AirflowNotFoundException(name)
        return made[name]

    monkeypatch.setattr(connections.BaseHook, "get_connection", find)
    return made


def test_a_kafka_connection_is_read_as_its_provider_reads_it() -> None:
    assert kafka_variables("k", "kafka", SECURE) == {
        "RIVERTWICE_BOOTSTRAP": "broker:9093",
        "RIVERTWICE_KAFKA_PROTOCOL": "SASL_SSL",
        "RIVERTWICE_KAFKA_MECHANISM": "SCRAM-SHA-512",
        "RIVERTWICE_KAFKA_USERNAME": "streams",
        "RIVERTWICE_KAFKA_PASSWORD": "canary-1",
        "RIVERTWICE_KAFKA_CA": "/etc/ca.pem",
        "RIVERTWICE_KAFKA_CERTIFICATE": "/etc/client.pem",
    }


@pytest.mark.proves("howto-airflow.md#kafka-and-s3-by-connections")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"enable.ssl.certificate.verification": "false"}, "do not have"),
        ({"ssl.ca.lokation": "/x"}, r"did you mean ssl\.ca\.location"),
        ({"sasl.oauthbearer.config": "x"}, "do not have"),
        ({"ssl.key.location": "/etc/key.pem"}, "one PEM file"),
        ({"bootstrap.servers": None}, r"no bootstrap\.servers"),
    ],
)
def test_what_would_connect_in_another_way_is_refused(change: dict[str, Any], said: str) -> None:
    extra = {name: value for name, value in {**SECURE, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=said) as refused:
        kafka_variables("k", "kafka", extra)
    assert "canary-1" not in str(refused.value)


def test_an_aws_connection_is_read_as_its_provider_reads_it() -> None:
    extra = {"region_name": "eu-west-1", "endpoint_url": "http://s3:9000", "aws_session_token": "t"}
    assert aws_variables("a", "aws", "id", "key", extra) == {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
        "AWS_SESSION_TOKEN": "t",
        "AWS_ENDPOINT_URL": "http://s3:9000",
        "AWS_REGION": "eu-west-1",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }
    assert aws_variables("a", "aws", None, None, {"profile_name": "lake"}) == {"AWS_PROFILE": "lake"}
    own = {"service_config": {"s3": {"endpoint_url": "http://own"}}, "endpoint_url": "http://all"}
    assert aws_variables("a", "aws", None, None, own) == {"AWS_ENDPOINT_URL": "http://own"}


@pytest.mark.parametrize(
    ("conn_type", "login", "extra", "said"),
    [
        ("http", "id", {}, "of type 'http'"),
        ("aws", "id", {}, "half a login"),
        ("aws", None, {"role_arn": "arn:x"}, "profile_name"),
    ],
)
def test_an_aws_connection_that_cannot_be_followed_is_refused(
    conn_type: str, login: str | None, extra: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        aws_variables("a", conn_type, login, None, extra)


def test_connections_replace_what_the_environment_and_the_file_say(
    tmp_path: Path, store: dict[str, Connection]
) -> None:
    (tmp_path / "rivertwice.yaml").write_text(
        "bootstrap: agent:9092\nkafka_conn_id: k\naws_conn_id: a\nkafka: {protocol: SASL_SSL, mechanism: PLAIN, username: agent, password_file: p}\n"
    )
    store["k"] = Connection("kafka", {"bootstrap.servers": "broker:9092"})
    store["a"] = Connection("aws", {}, "id", "key")
    env = {
        "RIVERTWICE_PROJECT": str(tmp_path),
        "AWS_SESSION_TOKEN": "of another login",
        "AWS_ENDPOINT_URL": "http://elsewhere",
        "AWS_REGION": "us-east-1",
    }
    settings = connections.use_connections(env)
    assert settings.bootstrap == "broker:9092"
    assert settings.kafka == KafkaSecurity()
    assert {name: value for name, value in env.items() if name.startswith("AWS")} == {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
        "AWS_REGION": "us-east-1",
    }
    assert Settings.from_env({"RIVERTWICE_PROJECT": str(tmp_path)}).bootstrap == "agent:9092"


def test_a_secret_is_in_no_variable_that_a_launcher_gets(tmp_path: Path, store: dict[str, Connection]) -> None:
    store["k"] = Connection("kafka", SECURE)
    env = {"RIVERTWICE_PROJECT": str(tmp_path), "RIVERTWICE_KAFKA_CONN_ID": "k"}
    settings = connections.use_connections(env)
    assert env["RIVERTWICE_KAFKA_PASSWORD"] == "canary-1"
    assert "canary-1" not in str(settings.to_env())
    assert settings.to_env()["RIVERTWICE_KAFKA_CONN_ID"] == "k"
    assert "canary-1" not in repr(settings)


def test_a_connection_that_is_not_there_is_named_with_its_remedy(tmp_path: Path, store: dict[str, Connection]) -> None:
    env = {"RIVERTWICE_PROJECT": str(tmp_path), "RIVERTWICE_KAFKA_CONN_ID": "kafka_prod"}
    with pytest.raises(ConfigError, match="airflow connections add kafka_prod --conn-type kafka"):
        connections.use_connections(env)


def test_without_a_named_connection_nothing_changes(tmp_path: Path, store: dict[str, Connection]) -> None:
    env = {"RIVERTWICE_PROJECT": str(tmp_path), "RIVERTWICE_BOOTSTRAP": "b:1", "AWS_SESSION_TOKEN": "t"}
    before = dict(env)
    connections.use_connections(env)
    assert env == before
