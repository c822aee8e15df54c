"""An Airflow with teams: each has a bundle of DAGs of its own, and users who see no other's."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from homes.project import REPOSITORY
from rivertwice.config import Settings
from rivertwice.embedded import airflow as services
from rivertwice.embedded.airflow import AirflowInfo
from servers.airflow import start_quiet_airflow

LOOP = re.compile(r"every_dag\((\w+)(?:, wants=(\w+))?\)")


def start_airflow_of_teams(settings: Settings, teams: Mapping[str, Sequence[str]], users: Sequence[str]) -> AirflowInfo:
    """Start an Airflow in which each team has the DAGs of its pipelines.

    Args:
        settings: of the project and the home.
        teams: team to its pipelines.
        users: each as `name:role:team`.
    """
    bundles = []
    for team, pipelines in teams.items():
        folder = settings.home / "bundles" / team
        _write_dag_files(folder, pipelines)
        bundles.append(
            {
                "name": team,
                "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                "kwargs": {"path": str(folder)},
                "team_name": team,
            }
        )
    migrate = services._migrate

    def with_teams(home: Any, *others: Any) -> None:
        migrate(home, *others)
        with sqlite3.connect(home.database) as database:
            database.executemany("INSERT OR IGNORE INTO team (name) VALUES (?)", [(team,) for team in teams])

    with mock.patch.object(services, "_migrate", with_teams):
        return start_quiet_airflow(
            settings,
            users,
            core={"multi_team": "True"},
            dag_processor={"dag_bundle_config_list": json.dumps(bundles)},
        )


def _write_dag_files(folder: Path, pipelines: Sequence[str]) -> None:
    """Write the project's DAG files, for a team's pipelines alone: Airflow registers each DAG that a file makes."""
    folder.mkdir(parents=True)
    for file in (REPOSITORY / "dags").glob("*.py"):
        text, found = LOOP.subn(lambda loop: _of(loop, pipelines), file.read_text())
        if found:
            (folder / file.name).write_text(text)


def _of(loop: re.Match[str], pipelines: Sequence[str]) -> str:
    wants = f" and {loop[2]}(each)" if loop[2] else ""
    return f"every_dag({loop[1]}, wants=lambda each: each.name in {tuple(pipelines)!r}{wants})"
