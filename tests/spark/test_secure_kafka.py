"""A broker that asks for a login, with and without TLS: both clients get in with the settings, and nobody without."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rivertwice.core.errors import ServiceError
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo, broker_status, start_broker
from rivertwice.log import kafka
from rivertwice.log.reader import read_exactly
from rivertwice.log.records import read_kafka
from servers.secure_kafka import CORE, ENV, PLAIN_PASSWORD, SecureListeners, create_user

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture(autouse=True)
def login(broker: BrokerInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    create_user(broker.bootstrap)
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("way", ["scram over TLS, both with certificates", "plain without TLS, password in a file"])
def test_both_clients_read_what_was_produced(
    spark: SparkSession, kafka_settings: Settings, listeners: SecureListeners, topic: str, way: str
) -> None:
    choose: Callable[[Settings], Settings] = listeners.settings if "TLS, both" in way else listeners.plain_settings
    settings = choose(kafka_settings)
    assert broker_status(settings) is not None
    kafka.ensure_topic(settings, topic, 1)
    producer = kafka.producer(settings)
    for number in range(5):
        producer.produce(topic, value=b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    values = [b"%d" % number for number in range(5)]
    assert [record.value() for record in read_exactly(settings, topic, {0: (0, 5)})] == values
    rows = read_kafka(spark, settings, topic, {0: (0, 5)}).select("value").collect()
    assert [bytes(row["value"]) for row in rows] == values


@pytest.mark.proves("howto-stream.md#a-kafka-that-asks-for-tls-or-a-login")
def test_a_wrong_password_is_refused_and_no_error_shows_it(
    spark: SparkSession,
    kafka_settings: Settings,
    listeners: SecureListeners,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    kafka.ensure_topic(kafka_settings, topic, 1)
    wrong = tmp_path / "wrong"
    wrong.write_text(f"{PLAIN_PASSWORD}-wrong")
    found = listeners.plain_settings(kafka_settings)
    settings = replace(found, kafka=replace(found.kafka, password_file=wrong))
    monkeypatch.setattr(kafka, "TIMEOUT", 2.0)
    caplog.set_level(logging.INFO)
    with pytest.raises(ServiceError) as python:
        kafka.end_offsets(settings, topic)
    with pytest.raises(Exception, match="Authentication failed") as java:
        read_kafka(spark, settings, topic, {0: (0, 1)}).collect()
    for text in (str(python.value), repr(python.value.__cause__), str(java.value), caplog.text):
        assert CORE not in text
    assert "refuses this client" in str(python.value)
    with pytest.raises(ServiceError, match="refuses this client") as started:
        start_broker(settings)
    assert CORE not in str(started.value)
    assert "RIVERTWICE_KAFKA_" in str(python.value)


def test_who_shows_no_certificate_is_refused(
    kafka_settings: Settings, listeners: SecureListeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = listeners.settings(kafka_settings)
    assert kafka.cluster_id(found)
    monkeypatch.setattr(kafka, "TIMEOUT", 2.0)
    with pytest.raises(ServiceError, match="refuses this client"):
        kafka.cluster_id(replace(found, kafka=replace(found.kafka, certificate=None)))
