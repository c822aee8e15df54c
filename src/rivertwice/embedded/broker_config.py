"""Configuration of the embedded broker: properties, logging."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

LOG4J = """Configuration:
  status: warn
  Appenders:
    RollingFile:
      name: F
      fileName: ${sys:kafka.logs.dir}/server.log
      filePattern: ${sys:kafka.logs.dir}/server.log.%i
      PatternLayout: {pattern: "[%d] %p %m (%c)%n"}
      SizeBasedTriggeringPolicy: {size: 10MB}
      DefaultRolloverStrategy: {max: 3}
  Loggers:
    Root: {level: info, AppenderRef: {ref: F}}
    Logger:
      - {name: org.apache.kafka.storage.internals.log, level: warn}
"""


_LISTS = ("listeners", "advertised.listeners", "listener.security.protocol.map")


def broker_properties(
    folder: Path, ports: tuple[int, int], advertised_port: int | None = None, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the properties of a broker that keeps all it has in `folder`.

    Args:
        folder: folder of the broker.
        ports: the ports it listens on (broker, controller).
        advertised_port: the port that clients connect to, if something is in front of the broker's own.
        extra: properties that are added; a list of listeners is appended.
    """
    broker, controller = ports
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{advertised_port or broker}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "log"),
        # Records carry the time of the event's arrival, 2013: any finite retention drops them at once.
        "log.retention.ms": "-1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "num.partitions": "1",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        # After kill -9 the controller waits for the old session to end; by default that takes 9 s.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "1000",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
    }
    for name, value in (extra or {}).items():
        properties[name] = f"{properties[name]},{value}" if name in _LISTS else value
    return properties


def encode_properties(properties: dict[str, str]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def new_cluster_id(make_uuid: Callable[[], uuid.UUID] = uuid.uuid4) -> str:
    """Return a fresh cluster id. One that began with a dash would be read as an option by Kafka's own tools."""
    while True:
        text = base64.urlsafe_b64encode(make_uuid().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
