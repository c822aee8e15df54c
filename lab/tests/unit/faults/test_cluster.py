"""What each process of the lab's cluster is told, and what its proxy reads of Kafka's requests."""

from __future__ import annotations

from pathlib import Path

from lab.faults.cluster import APART, Node, node_properties
from lab.faults.proxy import END_TXN, PRODUCE, Swallow, asks_for, request_keys

NODES = [Node(number, Path(f"/n{number}"), (10 * number, 10 * number + 1)) for number in (1, 2, 3)]


def test_each_of_three_brokers_is_a_controller_and_topics_have_three_replicas() -> None:
    properties = node_properties(NODES[1], NODES)
    assert properties["node.id"] == "2"
    assert properties["process.roles"] == "broker,controller"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:11,2@127.0.0.1:21,3@127.0.0.1:31"
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:20,CONTROLLER://127.0.0.1:21"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20"
    assert (properties["default.replication.factor"], properties["min.insync.replicas"]) == ("3", "2")


def test_a_controller_apart_is_the_only_one_and_no_broker() -> None:
    apart = Node(APART, Path("/c"), (40, 41))
    broker = node_properties(NODES[0], [apart], {"min.insync.replicas": "1"})
    assert (broker["process.roles"], broker["listeners"]) == ("broker", "PLAINTEXT://127.0.0.1:10")
    assert broker["controller.quorum.voters"] == f"{APART}@127.0.0.1:41"
    assert broker["min.insync.replicas"] == "1"
    controller = node_properties(apart, [apart])
    assert (controller["process.roles"], controller["listeners"]) == ("controller", "CONTROLLER://127.0.0.1:41")
    assert "advertised.listeners" not in controller


def request(key: int, size: int = 20) -> bytes:
    body = key.to_bytes(2) + bytes(size - 2)
    return len(body).to_bytes(4) + body


def test_the_requests_of_a_piece_are_known_by_their_keys() -> None:
    assert request_keys(request(PRODUCE) + request(END_TXN)) == [PRODUCE, END_TXN]
    assert request_keys(request(PRODUCE, 500)[:40]) == [PRODUCE]
    assert request_keys(request(END_TXN)[:5]) == []
    once = Swallow(asks_for(END_TXN))
    assert [once(request(PRODUCE)), once(request(PRODUCE) + request(END_TXN)), once(request(END_TXN))] == [
        False, True, False,
    ]  # fmt: skip
    assert once.seen.is_set()
