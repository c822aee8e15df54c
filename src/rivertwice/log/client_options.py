"""The settings of Kafka's security in the dialects of both clients: librdkafka's for Python, Java's for Spark.

No other module may name one of these options, and no text of a definition, a form or a record reaches them. Spark gets
them as options of its source, in memory: not as a conf, because confs are in the JVM's argv. Spark redacts
`sasl.jaas.config` in its log.
"""

from __future__ import annotations

from rivertwice.config import KafkaSecurity, Settings

_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


def python_options(settings: Settings) -> dict[str, str]:
    """Return librdkafka's options: the addresses of the brokers, and how to connect to them.

    Raises:
        ConfigError: no address or no password is known.
    """
    security = settings.kafka
    options = {"bootstrap.servers": settings.bootstrap_servers()}
    if security.protocol != "PLAINTEXT":
        options["security.protocol"] = security.protocol
    if security.sasl:
        options["sasl.mechanism"] = str(security.mechanism)
        options["sasl.username"] = str(security.username)
        options["sasl.password"] = security.read_password()
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
        options["kafka.sasl.mechanism"] = str(security.mechanism)
        options["kafka.sasl.jaas.config"] = jaas_config(security, security.read_password())
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


def jaas_config(security: KafkaSecurity, password: str) -> str:
    """Return the login in Java's format. Pure.

    The module is from a fixed list. Name and password are quoted, so that neither can end the text and name another module.
    """
    module = f"org.apache.kafka.common.security.{_MODULES[str(security.mechanism)]}"
    return f"{module} required username={_quoted(str(security.username))} password={_quoted(password)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
