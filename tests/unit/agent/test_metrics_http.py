"""The agent's figures over HTTP: what was measured last, its age, and an address that cannot be had."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from rivertwice.agent.alerting import AlertScan
from rivertwice.agent.figures import Measures
from rivertwice.agent.metrics_http import serve_metrics
from rivertwice.core.errors import ConfigError
from rivertwice.core.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def address() -> tuple[str, int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free: tuple[str, int] = probe.getsockname()
    return free


def test_prometheus_gets_what_was_measured_last_and_its_age(settings: Settings, address: tuple[str, int]) -> None:
    seen: dict[str, AlertScan] = {}
    stop = serve_metrics(replace(settings, metrics=address), lambda: seen, lambda: NOW)
    assert stop is not None
    url = f"http://127.0.0.1:{address[1]}/metrics"
    try:
        assert "rivertwice_lag_records{" not in httpx.get(url, trust_env=False).text
        figures = Measures(pipeline="p", at=NOW, state="running", lag_records=7)
        seen["p"] = AlertScan(figures, [], NOW - timedelta(seconds=12))
        answer = httpx.get(url, trust_env=False)
    finally:
        stop()
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'rivertwice_lag_records{pipeline="p"} 7.0' in answer.text
    assert 'rivertwice_up{pipeline="p"} 1.0' in answer.text
    assert 'rivertwice_measured_age_seconds{pipeline="p"} 12.0' in answer.text
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


def test_an_address_that_is_taken_keeps_no_agent_from_its_work(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        asked = replace(settings, metrics=("127.0.0.1", other.getsockname()[1]))
        assert serve_metrics(asked, dict, lambda: NOW) is None
    (event,) = [json.loads(line) for line in (settings.home / "agent" / "events.jsonl").read_text().splitlines()]
    assert "nothing can listen" in event["message"]
    assert "choose another address" in event["message"]


def test_nothing_listens_unless_an_address_is_set(settings: Settings) -> None:
    assert serve_metrics(settings, dict, lambda: NOW) is None
    assert not settings.home.exists()


@pytest.mark.parametrize("text", ["9464", "localhost:", "localhost:x", "localhost:70000", ":9464"])
def test_what_is_no_address_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"RIVERTWICE_METRICS is .* write HOST:PORT, for instance 127\.0\.0\.1:9464"):
        Settings.from_env({"RIVERTWICE_PROJECT": str(tmp_path), "RIVERTWICE_METRICS": text})


def test_child_processes_have_the_same_address(tmp_path: Path) -> None:
    settings = Settings.from_env({"RIVERTWICE_PROJECT": str(tmp_path), "RIVERTWICE_METRICS": "127.0.0.1:9464"})
    assert settings.metrics == ("127.0.0.1", 9464)
    assert Settings.from_env(settings.to_env()).metrics == settings.metrics
