"""Every listener of a real broker answers the question by which a command learns that a broker is there, before any login."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rivertwice.config import KafkaSecurity, Settings
from rivertwice.embedded.broker import BrokerInfo
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
