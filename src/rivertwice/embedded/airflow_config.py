"""The configuration file of the embedded Airflow and the environment of its processes. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from configparser import RawConfigParser
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rivertwice.config import Settings
from rivertwice.orchestration.environment import SPARK_CONNECTION, spark_environment

USER = "admin"

# Passed on to Airflow's processes; everything else of Airflow's own is decided by the configuration file, so that
# an AIRFLOW__... variable of the caller's shell cannot point these services at another database.
_DROPPED_PREFIX = "AIRFLOW"


@dataclass(frozen=True)
class Secrets:
    """Secrets that must not be guessed; made once per home, kept in a file that only the owner can read."""

    password: str
    jwt_secret: str
    secret_key: str
    fernet_key: str


@dataclass(frozen=True)
class AirflowHome:
    """Everything the embedded Airflow stores, under `HOME/airflow`."""

    root: Path

    @property
    def config(self) -> Path:
        """Airflow's configuration file; holds secrets, so it is 0600."""
        return self.root / "airflow.cfg"

    @property
    def database(self) -> Path:
        """SQLite database."""
        return self.root / "airflow.db"

    @property
    def schema_stamp(self) -> Path:
        """Version whose schema the database has; saves a migration at each start."""
        return self.root / "schema.json"

    @property
    def secrets(self) -> Path:
        """Generated secrets, 0600."""
        return self.root / "secrets.json"

    @property
    def passwords(self) -> Path:
        """Password file of Airflow's SimpleAuthManager, 0600."""
        return self.root / "passwords.json"

    @property
    def port(self) -> Path:
        """Port of the API server; kept, so that the address survives a restart."""
        return self.root / "port.json"

    @property
    def services(self) -> Path:
        """Process ids and start times of the four services."""
        return self.root / "services.json"

    @property
    def logs(self) -> Path:
        """Logs of services and tasks."""
        return self.root / "logs"

    @property
    def lock(self) -> Path:
        """Held while services are started or stopped."""
        return self.root / "lock"


def airflow_home(settings: Settings) -> AirflowHome:
    """Return the folder of the embedded Airflow."""
    return AirflowHome(settings.home / "airflow")


def airflow_url(port: int) -> str:
    """Return the address of the API server and the UI."""
    return f"http://127.0.0.1:{port}"


def airflow_options(settings: Settings, port: int, secrets: Secrets) -> dict[str, dict[str, str]]:
    """Return the sections of `airflow.cfg`: one machine, loopback only, SQLite, four tasks at a time."""
    home = airflow_home(settings)
    url = airflow_url(port)
    return {
        "core": {
            "dags_folder": str(settings.shipped("dags")),
            "plugins_folder": str(settings.shipped("plugins")),
            "executor": "LocalExecutor",
            "parallelism": "4",
            "load_examples": "False",
            "dags_are_paused_at_creation": "False",
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": str(home.passwords),
            "fernet_key": secrets.fernet_key,
            "execution_api_server_url": f"{url}/execution/",
        },
        "database": {
            "sql_alchemy_conn": f"sqlite:///{home.database}",
            "load_default_connections": "False",
        },
        "api": {
            "host": "127.0.0.1",
            "port": str(port),
            "base_url": url,
            "workers": "1",
            "instance_name": "rivertwice",
            "secret_key": secrets.secret_key,
        },
        "api_auth": {"jwt_secret": secrets.jwt_secret},
        # A definition that is added or changed shows within ten seconds; parsing costs little (no engine is imported).
        "dag_processor": {
            "refresh_interval": "10",
            "min_file_process_interval": "10",
            "bundle_refresh_check_interval": "2",
            "parsing_processes": "2",
        },
        # A killed task is noticed within a minute instead of five.
        "scheduler": {"task_instance_heartbeat_timeout": "60", "orphaned_tasks_check_interval": "30"},
        # Three missed heartbeats (the default) end a task when the API server restarts; a backfill should outlive that.
        "workers": {"max_failed_heartbeats": "20"},
        "logging": {"base_log_folder": str(home.logs / "tasks"), "logging_level": "INFO"},
    }


def render_config(options: Mapping[str, Mapping[str, str]]) -> str:
    """Return `options` as the text of `airflow.cfg`; percent signs are escaped, for Airflow interpolates them."""
    parser = RawConfigParser()
    for section, values in options.items():
        parser[section] = {key: value.replace("%", "%%") for key, value in values.items()}
    text = StringIO()
    parser.write(text)
    return text.getvalue()


def service_environment(settings: Settings, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of Airflow's processes, and so of the tasks and Spark jobs they start."""
    inherited = os.environ if inherited is None else inherited
    remaining = {key: value for key, value in inherited.items() if not key.startswith(_DROPPED_PREFIX)}
    return {
        **remaining,
        **settings.to_env(),
        **spark_environment(settings, inherited),
        "AIRFLOW_HOME": str(airflow_home(settings).root),
        f"AIRFLOW_CONN_{SPARK_CONNECTION.upper()}": json.dumps({"conn_type": "spark", "host": settings.spark_master}),
        # Airflow forks; on macOS the Objective-C runtime and the proxy look-up would abort the child.
        "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",
        "NO_PROXY": ",".join(part for part in (remaining.get("NO_PROXY"), "127.0.0.1", "localhost") if part),
        "PYTHONUNBUFFERED": "1",
    }
