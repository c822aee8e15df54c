"""`rivertwice admin topics` on a real broker: the topics of all pipelines, once; a topic of another shape is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rivertwice.cli.main import cli
from rivertwice.log.kafka import ensure_topic, topic_exists
from streams.flights import make_flights_project

pytestmark = pytest.mark.kafka


def create(project: Path, home: Path, bootstrap: str) -> Result:
    env = {"RIVERTWICE_BOOTSTRAP": bootstrap}
    return CliRunner().invoke(
        cli, ["--output", "json", "--project", str(project), "--home", str(home), "admin", "topics"], env=env
    )


def test_the_topics_of_all_pipelines_are_created_once(tmp_path: Path, kafka_settings, topic: str) -> None:
    bootstrap = kafka_settings.bootstrap_servers()
    made = make_flights_project(tmp_path / "one", bootstrap=bootstrap, topic=topic)
    for _ in range(2):
        answer = create(made.project, tmp_path / "home", bootstrap)
        assert answer.exit_code == 0, answer.output
        assert json.loads(answer.stdout) == {topic: 4}
    assert topic_exists(kafka_settings, topic)
    ensure_topic(kafka_settings, f"{topic}-two", 2)
    other = make_flights_project(tmp_path / "two", bootstrap=bootstrap, topic=f"{topic}-two")
    refused = create(other.project, tmp_path / "home", bootstrap)
    assert refused.exit_code == 1
    assert "has 2 partitions, not 4" in refused.output
