"""Kafka's security settings: read from the environment, refused when half set, the same for both clients, secrets nowhere."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.errors import ConfigError
from rivertwice.core.kafka_security import KafkaSecurity
from rivertwice.core.settings import Settings
from rivertwice.log.kafka import jaas_config, python_options, spark_options

LOGIN = {
    "RIVERTWICE_KAFKA_PROTOCOL": "sasl_ssl",
    "RIVERTWICE_KAFKA_MECHANISM": "SCRAM-SHA-512",
    "RIVERTWICE_KAFKA_USERNAME": "river",
    "RIVERTWICE_KAFKA_PASSWORD": "hush",
}

OAUTH = {
    **LOGIN,
    "RIVERTWICE_KAFKA_MECHANISM": "OAUTHBEARER",
    "RIVERTWICE_KAFKA_TOKEN_ENDPOINT": "https://login/token",
    "RIVERTWICE_KAFKA_SCOPE": 'kafka "all"',
    "RIVERTWICE_KAFKA_EXTENSIONS": "logicalCluster=lkc-1, identityPoolId=pool-2",
}
IAM = {
    "RIVERTWICE_KAFKA_PROTOCOL": "SASL_SSL",
    "RIVERTWICE_KAFKA_MECHANISM": "AWS_MSK_IAM",
    "RIVERTWICE_KAFKA_REGION": "eu-central-1",
}


def settings_of(env: dict[str, str]) -> Settings:
    return Settings.from_env({"RIVERTWICE_BOOTSTRAP": "h:1", **env})


def test_without_settings_clients_are_told_the_address_only() -> None:
    settings = settings_of({})
    assert python_options(settings) == {"bootstrap.servers": "h:1"}
    assert spark_options(settings) == {"kafka.bootstrap.servers": "h:1", "kafka.isolation.level": "read_committed"}
    assert not [name for name in settings.to_env() if "KAFKA" in name]


def test_both_dialects_say_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    env = {**LOGIN, "RIVERTWICE_KAFKA_CA": str(tmp_path / "ca.pem")}
    monkeypatch.setenv("RIVERTWICE_KAFKA_PASSWORD", "hush")
    settings = settings_of(env)
    assert python_options(settings) == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "river",
        "sasl.password": "hush",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
    }
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert spark_options(settings) == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.isolation.level": "read_committed",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} required username="river" password="hush";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(tmp_path / "ca.pem"),
    }


def test_a_token_is_asked_for_by_both_clients_with_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVERTWICE_KAFKA_PASSWORD", "hush")
    settings = settings_of(OAUTH)
    assert python_options(settings) == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "river",
        "sasl.oauthbearer.client.secret": "hush",
        "sasl.oauthbearer.token.endpoint.url": "https://login/token",
        "sasl.oauthbearer.scope": 'kafka "all"',
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
    }
    common = "org.apache.kafka.common.security.oauthbearer"
    assert spark_options(settings) == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.isolation.level": "read_committed",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": f'{common}.OAuthBearerLoginModule required clientId="river" clientSecret="hush" '
        'scope="kafka \\"all\\"" extension_logicalCluster="lkc-1" extension_identityPoolId="pool-2";',
        "kafka.sasl.login.callback.handler.class": f"{common}.OAuthBearerLoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://login/token",
    }
    assert Settings.from_env({**settings.to_env(), "RIVERTWICE_KAFKA_PASSWORD": "hush"}) == settings


def test_the_identity_of_aws_signs_for_both_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mapping alone: there is no such broker here."""
    settings = settings_of(IAM)
    assert spark_options(settings) == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.isolation.level": "read_committed",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "AWS_MSK_IAM",
        "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConfigError, match=r"pip install 'rivertwice\[msk\]'"):
        python_options(settings)
    provider = SimpleNamespace(generate_auth_token=lambda region: (f"token of {region}", 1_767_225_600_500))
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", SimpleNamespace(MSKAuthTokenProvider=provider))
    options = python_options(settings)
    assert options["sasl.mechanism"] == "OAUTHBEARER"
    assert options["oauth_cb"]("") == ("token of eu-central-1", 1_767_225_600.5)
    assert Settings.from_env(settings.to_env()) == settings


def test_a_child_gets_the_same_settings_but_never_the_password(tmp_path: Path) -> None:
    settings = settings_of(LOGIN)
    assert "hush" not in "".join(settings.to_env().values()) + repr(settings) + str(asdict(settings.kafka))
    child = Settings.from_env({**settings.to_env(), "RIVERTWICE_KAFKA_PASSWORD": "hush"})
    assert child == settings
    by_file = replace(settings, kafka=replace(settings.kafka, password_file=tmp_path / "p"))
    assert Settings.from_env(by_file.to_env()) == by_file


def test_a_password_file_wins_is_read_anew_and_may_end_with_a_newline(tmp_path: Path) -> None:
    file = tmp_path / "password"
    security = KafkaSecurity("SASL_SSL", "PLAIN", "u", password_file=file)
    for text in ("first\n", "second"):
        file.write_text(text)
        assert security.read_password({"RIVERTWICE_KAFKA_PASSWORD": "other"}) == text.strip()


@pytest.mark.proves("security.md#kafka-with-tls-and-a-login")
@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"RIVERTWICE_KAFKA_PROTOCOL": "TLS"}, "does not speak"),
        ({**LOGIN, "RIVERTWICE_KAFKA_MECHANISM": "GSSAPI"}, "does not say how"),
        ({**LOGIN, "RIVERTWICE_KAFKA_MECHANISM": "OAUTHBEARER"}, "no client can get a token"),
        ({**OAUTH, "RIVERTWICE_KAFKA_TOKEN_ENDPOINT": "http://login/token"}, "would travel unprotected"),
        ({**OAUTH, "RIVERTWICE_KAFKA_TOKEN_ENDPOINT": "https://u:hush@login/token"}, "no client can get a token"),
        ({**OAUTH, "RIVERTWICE_KAFKA_EXTENSIONS": "a b=c"}, "cannot be sent"),
        ({**OAUTH, "RIVERTWICE_KAFKA_SCOPE": "a\nb"}, "cannot be sent"),
        ({**OAUTH, "RIVERTWICE_KAFKA_REGION": "eu-central-1"}, "REGION would not be used"),
        ({**LOGIN, "RIVERTWICE_KAFKA_SCOPE": "kafka"}, "SCOPE would not be used"),
        ({**IAM, "RIVERTWICE_KAFKA_REGION": "Frankfurt"}, "needs .*REGION"),
        ({**IAM, "RIVERTWICE_KAFKA_PROTOCOL": "SASL_PLAINTEXT"}, "needs .*PROTOCOL=SASL_SSL"),
        ({**IAM, "RIVERTWICE_KAFKA_USERNAME": "me"}, "USERNAME would not be used"),
        ({**LOGIN, "RIVERTWICE_KAFKA_MECHANISM": ""}, "does not say how"),
        ({**LOGIN, "RIVERTWICE_KAFKA_USERNAME": ""}, "does not say how"),
        ({**LOGIN, "RIVERTWICE_KAFKA_USERNAME": "a\nb"}, "does not say how"),
        ({**LOGIN, "RIVERTWICE_KAFKA_PASSWORD": ""}, "there is no password"),
        ({"RIVERTWICE_KAFKA_PASSWORD": "hush"}, "a login"),
        ({"RIVERTWICE_KAFKA_CA": "/ca.pem"}, "certificates"),
        ({**LOGIN, "RIVERTWICE_KAFKA_PROTOCOL": "SASL_PLAINTEXT", "RIVERTWICE_KAFKA_CA": "/ca.pem"}, "certificates"),
    ],
)
def test_contradicting_settings_are_refused_and_no_password_is_shown(env: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        settings_of(env)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("text", ["", "\n", "hush\x00b", "hush\nb"])
def test_a_password_that_nobody_can_type_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "p").write_text(text)
    with pytest.raises(ConfigError, match="holds no password") as error:
        KafkaSecurity("SASL_SSL", "PLAIN", "u", password_file=tmp_path / "p").read_password()
    assert "hush" not in str(error.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        KafkaSecurity("SASL_SSL", "PLAIN", "u", password_file=tmp_path / "absent").read_password()


def test_the_embedded_broker_is_not_asked_for_what_it_does_not_speak() -> None:
    with pytest.raises(ConfigError, match="embedded broker speaks PLAINTEXT"):
        Settings.from_env(LOGIN).bootstrap_servers()


LOGIN_TEXT = re.compile(r'[\w.]+ required username="((?:[^"\\]|\\.)*)" password="((?:[^"\\]|\\.)*)";', re.DOTALL)


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_name_and_no_password_can_end_java_s_login_text(name: str, password: str) -> None:
    found = LOGIN_TEXT.fullmatch(jaas_config(KafkaSecurity("SASL_SSL", "PLAIN", name), password))
    assert found is not None
    assert [re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in found.groups()] == [name, password]
