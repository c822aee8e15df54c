"""A real Prometheus scrapes the agent's server, by the shipped config and rules: every panel has figures, and alerts fire."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from homes.project import REPOSITORY
from rivertwice.agent.alerting import AlertScan
from rivertwice.agent.figures import Measures
from rivertwice.agent.metrics_http import serve_metrics
from rivertwice.agent.prometheus import dashboard, judge_alerts
from rivertwice.core.ports import held_ports
from rivertwice.core.settings import Settings
from rivertwice.definition.model import AlertLimits
from running.waiting import wait_for

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALL_KNOWN = Measures(
    "flight_delays", NOW, desired="running", state="running", heartbeat_age_s=1.0, lag_records=5, lag_s=2.0, latency_s=2.0,
    arriving_per_s=3.0, read_per_s=2.0, catch_up_s=9.0, batch_p50_s=0.5, batch_p95_s=0.8, batch_p99_s=0.9, backpressure_s=0.0,
    checkpoint_s=0.02, checkpoint_wait_s=0.0, disorder_s=3.0, watermark_lag_s=60.0, event_lag_s=1.0, read_total=100, bad_total=2, accepted_total=98, emitted_total=9, dead_share=0.02,
    dead_open=2, dead_oldest_s=5.0, delivery_wait_s=6.0, late_share=0.1, reconcile_age_s=30.0, defects=0, checkpoint_bytes=1, checkpoint_files=2,
    state_bytes=1, savepoint_age_s=9_000.0, savepoint_bytes=3, recovery_s=3.0, recovery_objective_s=60.0, failures=0,
    retention_left_share=0.5, first_load_step=4, first_load_windows=7, partition_lag={"0": 5}, delivery_lag={"sink": 1},
    delivery_failures={"sink": 0}, delivery_refused={"sink": 0}, quality_failing={"warning": 1},
    budget_left={"freshness": {"1": 0.9, "7": 0.95, "30": 0.99}},
)  # fmt: skip


@pytest.fixture
def prometheus(settings: Settings, tmp_path: Path) -> Iterator[str]:
    """Give the address of a Prometheus that scrapes every second what an agent would serve."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus: `apt-get install prometheus` brings it")
    shipped = REPOSITORY / "docker" / "prometheus"
    config = yaml.safe_load((shipped / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    shutil.copy(shipped / "rivertwice.rules.yml", tmp_path)
    measured = AlertScan(ALL_KNOWN, judge_alerts(ALL_KNOWN, AlertLimits()), NOW)
    with held_ports(2) as (own, port):
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{own}"]}]
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        stop = serve_metrics(
            replace(settings, metrics=("127.0.0.1", own)),
            lambda: {"flight_delays": measured},
            lambda: NOW + timedelta(seconds=5),
        )
        assert stop is not None
        process = subprocess.Popen(
            [program, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=(tmp_path / "log").open("w"),
        )  # fmt: skip
        address = f"http://127.0.0.1:{port}"
        try:
            wait_for("the first figures", lambda: ask(address, "query", query="rivertwice_up")["result"], 60, every=0.5)
            yield address
        finally:
            process.terminate()
            process.wait(timeout=30)
            stop()


def ask(address: str, what: str, **given: str) -> dict[str, Any]:
    try:
        answer = httpx.get(f"{address}/api/v1/{what}", params=given, trust_env=False, timeout=30)
    except httpx.TransportError:
        return {"result": []}
    if answer.status_code == 503:
        return {"result": []}
    body = answer.json()
    assert body["status"] == "success", body
    return dict(body["data"])


def test_every_query_of_the_dashboard_has_figures_and_alerts_fire(prometheus: str) -> None:
    queries = [
        target["expr"].replace("$pipeline", ".*")
        for panel in json.loads(dashboard())["panels"]
        for target in panel.get("targets", [])
        if "run_overdue" not in target["expr"]  # of streams by schedule alone; this one runs all the time
    ]
    assert len(queries) > 30
    # A rate needs two scrapes.
    wait_for(
        "figures for every panel",
        lambda: all(ask(prometheus, "query", query=query)["result"] for query in queries),
        60,
        every=1.0,
        seen=lambda: [query for query in queries if not ask(prometheus, "query", query=query)["result"]],
    )
    variable = ask(prometheus, "query", query="group by (pipeline) (rivertwice_up)")["result"]
    assert [each["metric"]["pipeline"] for each in variable] == ["flight_delays"]

    def fired() -> dict[str, str]:
        rules = [rule for group in ask(prometheus, "rules")["groups"] for rule in group["rules"]]
        return {rule["name"]: rule["state"] for rule in rules if rule["state"] != "inactive"}

    wait_for("the alerts", lambda: len(fired()) >= 2, 60, every=1.0, seen=fired)
    assert fired() == {"RivertwiceSavepointStale": "firing", "RivertwiceDeadShare": "firing"}
