"""The Grafana dashboard and the files of Prometheus: every metric exists, and their own tools accept them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from homes.project import REPOSITORY
from rivertwice.agent.figures import Measures
from rivertwice.agent.prometheus import JOB, alerting_rules, dashboard, described, exposition, judge_alerts
from rivertwice.cli.main import cli
from rivertwice.definition.definition import load_all
from rivertwice.definition.model import AlertLimits
from servers.grafana import build_checker, find_go, mistakes

PROMETHEUS = REPOSITORY / "docker" / "prometheus"
METRICS = {each.name for each in described()}
PANELS = [panel for panel in json.loads(dashboard())["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


@pytest.fixture(scope="module")
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no Prometheus: `apt-get install prometheus` brings promtool")
    return program


def ask(promtool: str, *arguments: str, folder: Path = PROMETHEUS, given: str | None = None) -> str:
    done = subprocess.run(
        [promtool, *arguments], cwd=folder, input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def names(query: str) -> set[str]:
    return set(re.findall(r"rivertwice_\w+", query))


def test_the_command_prints_the_dashboard() -> None:
    printed = CliRunner().invoke(cli, ["agent", "metrics", "--dashboard"])
    assert (printed.exit_code, printed.output) == (0, dashboard())


def test_every_metric_of_the_dashboard_exists_and_every_metric_is_on_it() -> None:
    shown = set().union(*map(names, QUERIES))
    assert len(shown) > 30
    assert shown == METRICS


def test_every_query_is_of_the_chosen_pipelines_and_source() -> None:
    for query in QUERIES:
        assert query.count('{pipeline=~"$pipeline"}') == len(re.findall(r"rivertwice_\w+", query)), query
    board = json.loads(dashboard())
    assert {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]} == {"${datasource}"}
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource", "pipeline"]


def test_no_two_panels_share_an_id_or_a_place() -> None:
    panels = json.loads(dashboard())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (column, row)
        for panel in panels
        for place in [panel["gridPos"]]
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) == 23


def test_grafanas_own_schema_accepts_the_dashboard_and_no_wrong_one() -> None:
    go = find_go()
    if go is None:
        pytest.skip("no Go: Grafana's SDK is built by it")
    checker = build_checker(go)
    assert mistakes(checker, dashboard()) == []
    for right, wrong, said in (
        ('"legendFormat"', '"legendformat"', "unexpected field 'legendformat'"),
        ('"schemaVersion": ', '"schema": ', "schemaVersion: required field is missing"),
        ('"type": "stat"', '"type": 7', "panels[1].type"),
        ('"graphTooltip": 1', '"graphTooltip": "x"', "graphTooltip"),
    ):
        assert right in dashboard()
        assert any(said in line for line in mistakes(checker, dashboard().replace(right, wrong))), wrong


def test_promtool_reads_every_query_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(QUERIES)]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(QUERIES)} rules found" in ask(promtool, "check", "rules", "queries.yml", folder=tmp_path)


def test_the_shipped_rules_are_of_our_pipelines_and_promtool_accepts_them(promtool: str) -> None:
    limits = {name: definition.alerts for name, definition in load_all(REPOSITORY / "pipelines").items()}
    assert (PROMETHEUS / "rivertwice.rules.yml").read_text() == alerting_rules(limits), (
        "write `rivertwice agent metrics --rules` to it"
    )
    assert "SUCCESS" in ask(promtool, "check", "rules", "rivertwice.rules.yml")


def test_promtool_accepts_rules_with_every_limit_set(promtool: str, tmp_path: Path) -> None:
    limits = AlertLimits(lag=100, latency=timedelta(seconds=2))
    (tmp_path / "rules.yml").write_text(alerting_rules({"a": limits, "b": limits}))
    assert f"{2 * 9 + 6} rules found" in ask(promtool, "check", "rules", "rules.yml", folder=tmp_path)


def test_every_metric_of_the_rules_exists() -> None:
    document = yaml.safe_load((PROMETHEUS / "rivertwice.rules.yml").read_text())
    expressions = [rule["expr"] for group in document["groups"] for rule in group["rules"]]
    assert set().union(*map(names, expressions)) <= METRICS


def test_the_rules_fire_when_they_must_and_not_else(promtool: str) -> None:
    assert "SUCCESS" in ask(promtool, "test", "rules", "rivertwice.rules.test.yml")
    tried = (PROMETHEUS / "rivertwice.rules.test.yml").read_text()
    for name in ("NoDriver", "RunOverdue", "Defect", "BudgetBurn", "FiguresStale", "AgentGone"):
        assert f"alertname: Rivertwice{name}" in tried


def test_promtool_accepts_the_config_whose_job_the_rules_name(promtool: str) -> None:
    assert "is valid prometheus config file syntax" in ask(promtool, "check", "config", "prometheus.yml")
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert [each["job_name"] for each in config["scrape_configs"]] == [JOB]


def test_promtool_has_nothing_against_the_exposition(promtool: str) -> None:
    measures = replace(
        Measures("p", datetime(2026, 1, 1, tzinfo=UTC), desired="running", state="running"), lag_records=3, batch_p50_s=0.5,
        partition_lag={"0": 3}, delivery_lag={"s": 1}, read_total=7,
    )  # fmt: skip
    text = exposition([measures], {"p": judge_alerts(measures, AlertLimits())})
    assert "rivertwice_wanted" in text
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert said == [], said
