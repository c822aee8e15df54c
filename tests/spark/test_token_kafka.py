"""A broker that asks for tokens of an OAuth endpoint: commands and a stream get in with one setting, and nobody without."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import pytest

from homes.project import REPOSITORY
from rivertwice.core.errors import ServiceError
from rivertwice.core.kafka_security import KafkaSecurity
from rivertwice.core.ports import held_ports
from rivertwice.core.settings import Settings
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.log import kafka
from rivertwice.timeline.lineage import path_ledger
from running.warm_spark import run_command_warm, run_driver_warm
from servers.schema_registry import serve
from servers.token_kafka import ALLOWED, SignedTokens, token_properties
from streams.first_load import closing_records, reconciled
from streams.keyed import NAME, keyed_backlog, make_keyed_project, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
SECRET = "canary-token-4f"


@dataclass(frozen=True)
class World:
    """A broker, an endpoint, and a project that uses both."""

    settings: Settings
    tokens: SignedTokens


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    tokens, keys = SignedTokens("river", SECRET, "kafka"), tmp_path / "keys.json"
    keys.write_text(json.dumps(tokens.keys()))
    (tmp_path / "secret").write_text(SECRET)
    at = Settings(project=REPOSITORY, home=tmp_path / "broker")
    with held_ports(1) as (port,):
        properties = token_properties(port, keys)
    with serve(tokens) as endpoint, mock.patch.dict(os.environ, {"JAVA_TOOL_OPTIONS": f"{ALLOWED}{keys.as_uri()}"}):
        start_broker(at, extra=properties)
        try:
            security = KafkaSecurity(
                "SASL_PLAINTEXT",
                "OAUTHBEARER",
                "river",
                password_file=tmp_path / "secret",
                token_endpoint=f"{endpoint}/token",
                scope="kafka",
            )
            settings = make_keyed_project(tmp_path, f"127.0.0.1:{port}", "of-tokens", shuffle_partitions=1)
            yield World(replace(settings, kafka=security), tokens)
        finally:
            stop_broker(at)


def test_commands_and_a_stream_log_in_by_token(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, records = world.settings, keyed_backlog(3, 120, days=1)
    run_command_warm(settings, "admin", "topics")
    assert kafka.topic_exists(settings, "of-tokens")
    send(settings, "of-tokens", [*records, *closing_records(records)])
    issued = len(world.tokens.issued)
    run_driver_warm(settings, NAME, tmp_path / "driver.log")
    assert sum(row.read for row in path_ledger(settings.pipeline(NAME))) == 124
    assert reconciled(settings)["balance"]["total"]["read"] == 124
    assert len(world.tokens.issued) >= issued + 2  # Python's clients and Java's asked anew
    assert world.tokens.refused == 0

    monkeypatch.setattr(kafka, "TIMEOUT", 2.0)
    wrong = tmp_path / "wrong"
    wrong.write_text(f"{SECRET}-wrong")
    with pytest.raises(ServiceError, match=r"RIVERTWICE_KAFKA_|failed at") as refused:
        kafka.end_offsets(replace(settings, kafka=replace(settings.kafka, password_file=wrong)), "of-tokens")
    assert SECRET not in str(refused.value)
    assert world.tokens.refused > 0
    world.tokens.audience = "another-kafka"  # tokens that the endpoint gives, and the broker does not take
    with pytest.raises(ServiceError, match="refuses this client"):
        kafka.end_offsets(settings, "of-tokens")
