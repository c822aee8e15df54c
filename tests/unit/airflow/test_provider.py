"""What the package tells Airflow about itself, and where its links lead."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from homes.project import REPOSITORY
from rivertwice.airflow.provider import get_provider_info
from rivertwice.orchestration import MOVED

pytestmark = pytest.mark.filterwarnings("ignore")  # of Airflow's own imports


def entry_points() -> dict[str, dict[str, str]]:
    return dict(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"])


def load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_metadata_follow_airflows_schema() -> None:
    import airflow

    schema = json.loads(Path(airflow.__path__[0], "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_everything_that_the_metadata_name_exists() -> None:
    info = get_provider_info()
    for path in (*info["extra-links"], *info["notifications"]):
        assert isinstance(load(path), type), path
    for part in (*info["operators"], *info["triggers"]):
        for module in part["python-modules"]:
            importlib.import_module(module)


def test_the_entry_points_lead_to_the_metadata_and_the_plugin() -> None:
    found = entry_points()
    assert load(found["apache_airflow_provider"]["provider_info"].replace(":", ".")) is get_provider_info
    assert load(found["airflow.plugins"]["rivertwice"].replace(":", ".")).name == "rivertwice"


@pytest.mark.parametrize("given", [[], ["installed"]])
def test_a_plugin_folder_gives_the_plugin_only_if_the_package_does_not(
    monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    import importlib.metadata

    from rivertwice.airflow import plugin_file

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: given)
    vars(plugin_file).pop("RivertwicePlugin", None)
    importlib.reload(plugin_file)
    assert hasattr(plugin_file, "RivertwicePlugin") is (not given)


@pytest.mark.parametrize("base", ["http://airflow:8080", "http://airflow:8080/", "https://host/airflow", ""])
def test_a_link_leads_below_airflows_own_address(base: str) -> None:
    from rivertwice.airflow.operators import page_address

    root = base.rstrip("/")
    assert page_address(base, "flight_delays") == f"{root}/rivertwice/?pipeline=flight_delays"
    assert (
        page_address(base, "flight_delays@v2", "rc-1-1") == f"{root}/rivertwice/?pipeline=flight_delays%40v2&run=rc-1-1"
    )


@pytest.mark.parametrize(
    "name", ["factory", "definitions", "dags", "operate_dags", "operators", "triggers", "notifiers", "links"]
)
def test_dag_files_and_waiting_triggers_of_0_1_find_what_they_import(name: str) -> None:
    """A project's copies of our DAG files, and the triggers in Airflow's database, name `rivertwice.orchestration`."""
    code = f"import rivertwice.orchestration.{name} as old; print(old.__name__, old.__spec__.name)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    now = f"rivertwice.airflow.{MOVED.get(name, name)}"
    assert done.stdout.split()[-2:] == [now, now]
