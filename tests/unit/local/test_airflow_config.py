"""The configuration and the environment of the embedded Airflow."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

from homes.project import EXAMPLES, FLIGHTS, edit_yaml, make_project
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import Secrets, airflow_options, pools_of, render_config, service_environment

SECRETS = Secrets("pass%word", "jwt", "secret", "fernet=")


def test_the_configuration_reads_back_as_it_was_meant(settings: Settings) -> None:
    parser = ConfigParser()
    parser.read_string(render_config(airflow_options(settings, 8123, SECRETS)))
    assert parser["api"]["base_url"] == "http://127.0.0.1:8123"
    assert parser["api"]["host"] == "127.0.0.1"
    assert parser["core"]["execution_api_server_url"] == "http://127.0.0.1:8123/execution/"
    assert parser["core"]["dags_folder"] == str(settings.project / "dags")
    assert parser["core"]["fernet_key"] == "fernet="


def test_percent_signs_survive_interpolation(tmp_path: Path) -> None:
    (tmp_path / "100%" / "dags").mkdir(parents=True)
    odd = Settings(project=tmp_path / "100%", home=tmp_path / "home")
    parser = ConfigParser()
    parser.read_string(render_config(airflow_options(odd, 1, SECRETS)))
    assert parser["core"]["dags_folder"].endswith("100%/dags")


def test_a_callers_airflow_variables_do_not_reach_the_services(settings: Settings) -> None:
    inherited = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://elsewhere",
        "AIRFLOW_HOME": "/elsewhere",
        "PATH": "/bin",
    }
    env = service_environment(settings, inherited)
    assert "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in env
    assert env["AIRFLOW_HOME"] == str(settings.home / "airflow")
    assert env["AIRFLOW_CONN_SPARK_DEFAULT"] == '{"conn_type": "spark", "host": "local[2]"}'
    assert env["RIVERTWICE_HOME"] == str(settings.home)


def test_the_pools_that_definitions_name_are_made(tmp_path: Path) -> None:
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS, "user_sessions": EXAMPLES / "user_sessions"})
    assert pools_of(settings) == ["spark_batch"]
    edit_yaml(settings.definitions / "user_sessions", lambda document: document.update(airflow={"pool": "web"}))
    assert pools_of(settings) == ["spark_batch", "web"]
