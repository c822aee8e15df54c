"""Which commands leave a cluster alone: those whose plans, cases and single records need none, and whose files it would not see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from homes.project import REPOSITORY
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from rivertwice.engine import session

CLUSTER = "spark://spark-master:7077"


class SparkAskedForError(Exception):
    """A command asked for a session; the argument is its master."""


@pytest.mark.parametrize("words", [("test", "flight_delays"), ("lint", "flight_delays")], ids=lambda each: each[0])
def test_a_check_of_a_definition_takes_no_slot_of_the_cluster(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(settings: Settings, *_: Any, **__: Any) -> None:
        raise SparkAskedForError(settings.spark_master)

    monkeypatch.setenv("RIVERTWICE_SPARK_MASTER", CLUSTER)
    monkeypatch.setattr(session, "spark_on_demand", ask)
    options = ["--project", str(REPOSITORY), "--home", str(tmp_path / "home")]
    answer = CliRunner().invoke(cli, [*options, *words])
    assert "SparkAskedForError: local[2];" in answer.output


@pytest.mark.parametrize(
    ("master", "local"), [(CLUSTER, "local[2]"), ("k8s://https://x", "local[2]"), ("local[7]", "local[7]")]
)
def test_local_settings_differ_by_the_master_alone(master: str, local: str, tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path / "home", bootstrap="kafka:9092", spark_master=master)
    assert settings.with_local_spark() == Settings(
        tmp_path, tmp_path / "home", bootstrap="kafka:9092", spark_master=local
    )
    assert settings.with_local_spark().spark_is_local
