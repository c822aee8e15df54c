"""The settings of Kafka's security in the dialects of both clients: librdkafka's for Python, Java's for Spark.

No other module may name one of these options, and no text of a definition, a form or a record reaches them. Spark gets
them as options of its source, in memory: not as a conf, because confs are in the JVM's argv. Spark redacts
`sasl.jaas.config` in its log.
"""

from __future__ import annotations

from typing import Any

from rivertwice.config import KafkaSecurity, Settings
from rivertwice.config.kafka_security import MSK_IAM, OAUTH
from rivertwice.errors import ConfigError

_SECURITY = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
    OAUTH: "oauthbearer.OAuthBearerLoginModule",
}
_TOKEN_HANDLER = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
_IAM = "software.amazon.msk.auth.iam"


def python_options(settings: Settings) -> dict[str, Any]:
    """Return librdkafka's options: the addresses of the brokers, and how to connect to them.

    Raises:
        ConfigError: no address or no password is known, or AWS's signer is not installed.
    """
    security = settings.kafka
    options: dict[str, Any] = {"bootstrap.servers": settings.bootstrap_servers()}
    if security.protocol != "PLAINTEXT":
        options["security.protocol"] = security.protocol
    if security.sasl:
        options |= _python_login(security)
    if security.ca is not None:
        options["ssl.ca.location"] = str(security.ca)
    if security.certificate is not None:
        options["ssl.certificate.location"] = str(security.certificate)
        options["ssl.key.location"] = str(security.certificate)
    return options


def spark_options(settings: Settings) -> dict[str, str]:
    """Return the options of Spark's Kafka source: address, security, and that records of aborted transactions are not read.

    Raises:
        ConfigError: no address or no password is known.
    """
    security = settings.kafka
    options = {
        "kafka.bootstrap.servers": settings.bootstrap_servers(),
        "kafka.isolation.level": "read_committed",
    }
    if security.protocol != "PLAINTEXT":
        options["kafka.security.protocol"] = security.protocol
    if security.sasl:
        options |= _spark_login(security)
    if security.ca is not None:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.location"] = str(security.ca)
    if security.certificate is not None:
        options["kafka.ssl.keystore.type"] = "PEM"
        options["kafka.ssl.keystore.location"] = str(security.certificate)
    return options


def range_options(settings: Settings) -> dict[str, str]:
    """Return the options of Spark's Kafka source for a batch read of exact ranges, whose partitions are assigned.

    Spark keeps a consumer for each group and partition. With one group for all these reads they use the consumers of earlier
    ones; without it each read leaves consumers that nobody uses again. Nothing is committed under the group.

    Raises:
        ConfigError: no address or no password is known.
    """
    return {**spark_options(settings), "kafka.group.id": "rivertwice-ranges"}


def _python_login(security: KafkaSecurity) -> dict[str, Any]:
    if security.mechanism == MSK_IAM:
        return {"sasl.mechanism": OAUTH, "oauth_cb": _signer(str(security.region))}
    if security.mechanism != OAUTH:
        return {
            "sasl.mechanism": str(security.mechanism),
            "sasl.username": str(security.username),
            "sasl.password": security.read_password(),
        }
    options = {
        "sasl.mechanism": OAUTH,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": str(security.username),
        "sasl.oauthbearer.client.secret": security.read_password(),
        "sasl.oauthbearer.token.endpoint.url": str(security.token_endpoint),
    }
    if security.scope:
        options["sasl.oauthbearer.scope"] = security.scope
    if security.extensions:
        options["sasl.oauthbearer.extensions"] = ",".join(security.extensions)
    return options


def _spark_login(security: KafkaSecurity) -> dict[str, str]:
    if security.mechanism == MSK_IAM:
        return {
            "kafka.sasl.mechanism": MSK_IAM,
            "kafka.sasl.jaas.config": f"{_IAM}.IAMLoginModule required;",
            "kafka.sasl.client.callback.handler.class": f"{_IAM}.IAMClientCallbackHandler",
        }
    options = {
        "kafka.sasl.mechanism": str(security.mechanism),
        "kafka.sasl.jaas.config": jaas_config(security, security.read_password()),
    }
    if security.mechanism == OAUTH:
        options["kafka.sasl.login.callback.handler.class"] = _TOKEN_HANDLER
        options["kafka.sasl.oauthbearer.token.endpoint.url"] = str(security.token_endpoint)
    return options


def _signer(region: str) -> Any:
    """Return librdkafka's callback that signs a token with the identity that AWS's own clients find."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError as error:
        message = (
            f"RIVERTWICE_KAFKA_MECHANISM is {MSK_IAM}, and AWS's signer is not installed, so no client can log in; "
            "run `pip install 'rivertwice[msk]'`"
        )
        raise ConfigError(message) from error

    def token(_config: str) -> tuple[str, float]:
        signed, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return signed, expires_ms / 1000

    return token


def jaas_config(security: KafkaSecurity, password: str) -> str:
    """Return the login in Java's format. Pure.

    The module is from a fixed list. Values are quoted, so that none can end the text and name another module.
    """
    module = f"{_SECURITY}.{_MODULES[str(security.mechanism)]}"
    if security.mechanism != OAUTH:
        return f"{module} required username={_quoted(str(security.username))} password={_quoted(password)};"
    values = {"clientId": str(security.username), "clientSecret": password}
    if security.scope:
        values["scope"] = security.scope
    values |= {f"extension_{name}": value for name, _, value in (each.partition("=") for each in security.extensions)}
    return f"{module} required {' '.join(f'{name}={_quoted(value)}' for name, value in values.items())};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
