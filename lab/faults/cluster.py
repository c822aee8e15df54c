"""A Kafka cluster of three brokers (KRaft, loopback) that elects leaders by itself; each broker is a process that can be killed alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lab.faults.errors import LabError
from lab.faults.processes import end_group, start_process
from rivertwice.core.ports import held_ports
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.engine.java import java_env
from rivertwice.local.broker import LOG4J, broker_properties, encode_properties, new_cluster_id
from rivertwice.storage.local import replace_bytes

BROKERS = (1, 2, 3)
APART = 100
"""Id of a controller that is not a broker."""
PATIENCE_S = 120.0
HEAP = "256m"
_REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    # A follower that is gone leaves the in-sync replicas when its session ends; one that lags, after this time.
    "replica.lag.time.max.ms": "4000",
}


@dataclass
class Node:
    """A process of the cluster: its ports (broker, controller), and the process, if it was started."""

    id: int
    folder: Path
    ports: tuple[int, int]
    process: subprocess.Popen[bytes] | None = None

    @property
    def properties(self) -> Path:
        """File of its properties."""
        return self.folder / "server.properties"


def node_properties(node: Node, voters: Collection[Node], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the properties of a node. Pure.

    Args:
        node: a broker, or the controller that is none.
        voters: the nodes that are controllers.
        extra: properties that replace others.
    """
    broker, controller = node.ports
    properties = broker_properties(node.folder, node.ports) | _REPLICATED | dict(extra or {})
    is_voter = node in voters
    is_broker = node.id != APART
    places = {"PLAINTEXT": broker} if is_broker else {}
    places |= {"CONTROLLER": controller} if is_voter else {}
    properties |= {
        "node.id": str(node.id),
        "process.roles": ",".join(["broker"] * is_broker + ["controller"] * is_voter),
        "controller.quorum.voters": ",".join(f"{each.id}@127.0.0.1:{each.ports[1]}" for each in voters),
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in places.items()),
    }
    if not is_broker:
        del properties["advertised.listeners"], properties["inter.broker.listener.name"]
    return properties


@dataclass
class Cluster:
    """Three brokers with replicated topics; they run inside `with`.

    Attributes:
        settings: where Java and the broker's jars are.
        folder: of the nodes.
        apart: one more process is the only controller, so that brokers can be gone and leaders still be elected. Without it each
            broker is a controller too, and two of three must live.
        extra: properties of all nodes.
    """

    settings: Settings
    folder: Path
    apart: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)
    nodes: dict[int, Node] = field(default_factory=dict)

    def __enter__(self) -> Cluster:
        """Format the folders, start all nodes, and wait until all brokers are known."""
        with ExitStack() as held:
            ids = [*BROKERS, *([APART] if self.apart else [])]
            ports = held.enter_context(held_ports(2 * len(ids)))
            for at, number in enumerate(ids):
                pair = ports[2 * at], ports[2 * at + 1]
                self.nodes[number] = Node(number, self.folder / f"node-{number}", pair)
            self._format()
            try:
                for number in reversed(ids):
                    self.start(number)
                self.until(lambda: self.living() == set(BROKERS), "three brokers")
            except BaseException:
                self.__exit__(None, None, None)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill all nodes."""
        for node in self.nodes.values():
            if node.process is not None:
                end_group(node.process)

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return ",".join(f"127.0.0.1:{self.nodes[number].ports[0]}" for number in BROKERS)

    def start(self, number: int) -> None:
        """Start a node; it is not waited for."""
        node = self.nodes[number]
        node.process = self._run(node, "kafka.Kafka", str(node.properties))

    def end(self, number: int, sig: int = signal.SIGKILL) -> None:
        """Kill a node, or let it end in order (SIGTERM), and wait for its end."""
        process = self.nodes[number].process
        if process is None:
            message = f"node {number} was never started"
            raise LabError(message)
        os.kill(process.pid, sig)
        process.wait(60)

    def living(self) -> set[int]:
        """Return the brokers that the cluster knows."""
        return set(self._metadata().brokers)

    def leaders(self, topic: str) -> dict[int, int]:
        """Return partition to leader, -1 if it has none."""
        return {number: each.leader for number, each in self._metadata(topic).topics[topic].partitions.items()}

    def in_sync(self, topic: str) -> list[set[int]]:
        """Return the replicas that are in sync, by partition."""
        return [set(each.isrs) for each in self._metadata(topic).topics[topic].partitions.values()]

    def until(self, what: Callable[[], bool], description: str) -> None:
        """Wait until something is true of the cluster; while it does not answer, nothing is.

        Raises:
            LabError: it did not become true in time.
        """
        for _ in Deadline.after(PATIENCE_S).polls(0.1):
            with contextlib.suppress(KafkaException):
                if what():
                    return
        states = {each.id: None if each.process is None else each.process.poll() for each in self.nodes.values()}
        message = f"{description} did not come within {PATIENCE_S:.0f} s; exit codes of the nodes: {states}; see {self.folder}"
        raise LabError(message)

    def _metadata(self, topic: str | None = None) -> Any:
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return client.list_topics(topic, timeout=10) if topic is not None else client.list_topics(timeout=10)

    def _format(self) -> None:
        """Write each node's properties, and format its folder; all at the same time."""
        cluster = new_cluster_id()
        voters = [self.nodes[APART]] if self.apart else list(self.nodes.values())
        formats = []
        for node in self.nodes.values():
            properties = node_properties(node, voters, self.extra)
            replace_bytes(node.properties, encode_properties(properties).encode())
            replace_bytes(node.folder / "log4j2.yaml", LOG4J.encode())
            words = ("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(node.properties))
            formats.append(self._run(node, *words))
        for node, process in zip(self.nodes.values(), formats, strict=True):
            if process.wait(PATIENCE_S) != 0:
                message = f"formatting node {node.id} failed: {(node.folder / 'console.log').read_text()[-1500:]}"
                raise LabError(message)

    def _run(self, node: Node, *words: str) -> subprocess.Popen[bytes]:
        java = java_env(self.settings)
        command = [
            str(Path(java["JAVA_HOME"]) / "bin" / "java"),
            f"-Xmx{HEAP}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dkafka.logs.dir={node.folder / 'logs'}",
            f"-Dlog4j2.configurationFile={node.folder / 'log4j2.yaml'}",
            "-cp",
            f"{self.settings.broker_jars}/*",
            *words,
        ]
        return start_process(command, log=node.folder / "console.log", env=os.environ | java, cwd=node.folder)
