"""Every listener of a real broker answers the question by which a command learns that a broker is there, before any login."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from homes.project import REPOSITORY
from rivertwice.core.kafka_security import KafkaSecurity
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo, start_broker, stop_broker
from rivertwice.log import kafka
from rivertwice.log.reach import find_silence
from servers.secure_kafka import SecureListeners

pytestmark = pytest.mark.kafka


def test_a_plain_listener_answers(broker: BrokerInfo, tmp_path: Path) -> None:
    assert find_silence(Settings(tmp_path, tmp_path / "home", bootstrap=broker.bootstrap)) is None


def test_one_broker_of_several_addresses_answers(broker: BrokerInfo, tmp_path: Path) -> None:
    several = f"127.0.0.1:1,{broker.bootstrap}"
    assert find_silence(Settings(tmp_path, tmp_path / "home", bootstrap=several)) is None


def test_listeners_with_a_login_and_with_tls_answer_before_the_login(
    broker: BrokerInfo, listeners: SecureListeners, tmp_path: Path
) -> None:
    settings = Settings(tmp_path, tmp_path / "home", bootstrap=f"127.0.0.1:{listeners.sasl}")
    assert find_silence(settings) is None
    over_tls = replace(settings, bootstrap=f"127.0.0.1:{listeners.tls}", kafka=KafkaSecurity(protocol="SSL"))
    assert find_silence(over_tls) is None


def test_a_client_that_was_told_of_the_leader_before_an_election_finds_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused by its leader's epoch, for ever: a driver ended by it when its leader was killed."""
    own = Settings(REPOSITORY, tmp_path)
    broker = start_broker(own)
    try:
        settings = replace(own, bootstrap=broker.bootstrap)
        kafka.ensure_topic(settings, "elected", 2)
        told, latest = kafka.admin(settings), OffsetSpec.latest()
        for answer in told.list_offsets({TopicPartition("elected", each): latest for each in (0, 1)}).values():
            answer.result(20)
        assert broker.pid is not None
        process = psutil.Process(broker.pid)
        process.kill()
        process.wait(20)
        start_broker(own)
        monkeypatch.setattr(kafka, "admin", lambda _: told)
        # Without a question of this client, which would tell it of the new leader.
        monkeypatch.setattr(kafka, "_partitions", lambda *_: [0, 1])
        assert kafka.end_offsets(settings, "elected") == {0: 0, 1: 0}
    finally:
        stop_broker(own)
