from __future__ import annotations

import uuid
from pathlib import Path

from rivertwice.local.broker import broker_properties, encode_properties, new_cluster_id


def test_a_cluster_id_never_begins_with_a_dash() -> None:
    dashed, plain = uuid.UUID(bytes=b"\xf8" + bytes(15)), uuid.UUID(bytes=b"\x01" + bytes(15))
    made = iter([dashed, dashed, plain])
    assert new_cluster_id(lambda: next(made)) == "AQAAAAAAAAAAAAAAAAAAAA"


def test_topics_keep_records_for_ever_and_clients_reach_only_loopback() -> None:
    properties = broker_properties(Path("/home"), (9092, 9093))
    assert properties["log.retention.ms"] == "-1"
    assert properties["auto.create.topics.enable"] == "false"
    listeners = properties["listeners"].split(",")
    assert all("//127.0.0.1:" in listener for listener in listeners)
    assert "log.dirs=/home/log\n" in encode_properties(properties)


def test_clients_can_be_told_of_a_port_in_front_of_the_broker_s_own() -> None:
    properties = broker_properties(Path("/home"), (9092, 9093), advertised_port=9999)
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9999"
    assert properties["listeners"].startswith("PLAINTEXT://127.0.0.1:9092,")
