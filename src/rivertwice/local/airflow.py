"""The embedded Airflow: API server, scheduler, DAG processor and triggerer, started and stopped by us.

`airflow standalone` is not used: its parent leaves orphans behind when it is ended, and it cannot be adopted. Each service
runs detached in its own session and is recorded by process id and start time, so any later process can look after it.
Killing all of it harms nothing: streams belong to the agent, and everything a task does can be done again.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import json
import logging
import os
import secrets as random
import signal
from collections.abc import Iterable, Mapping, Sequence
from configparser import RawConfigParser
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from rivertwice.core import (
    NEVER_SEEN,
    Deadline,
    Progress,
    ServiceError,
    Settings,
    Started,
    end_sessions,
    held_ports,
    lock,
    report_nothing,
    started_of,
)
from rivertwice.core import is_alive as is_process_alive
from rivertwice.local.fork_server import ForkServer
from rivertwice.tasks import SPARK_CONNECTION, SPARK_POOL, find_definitions, spark_environment

if TYPE_CHECKING:
    from rivertwice.airflow import AirflowClient


# The configuration file of the embedded Airflow and the environment of its processes. Pure.

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


# Marks of the embedded Airflow's services: recognised again later, and stopped with all they have started.


@dataclass(frozen=True)
class ProcessMark:
    """A process named so that a later process with the same id is not taken for it."""

    pid: int
    started: Started


def mark_of(pid: int) -> ProcessMark:
    """Return the mark of a process that was just started; one that is gone already gets a mark that is never alive."""
    return ProcessMark(pid, started_of(pid) or NEVER_SEEN)


def is_alive(mark: ProcessMark) -> bool:
    """Say whether the very process still runs (a zombie does not).

    0.1 recorded creation times, which move with the clock. Such a mark that does not fit counts for the process if that one
    leads its own session and is Airflow: it is not ended for a clock that was set.
    """
    return is_process_alive(mark.pid, mark.started) or (not isinstance(mark.started, str) and _leads_airflow(mark.pid))


def _leads_airflow(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid and any("airflow" in word for word in psutil.Process(pid).cmdline())
    except (OSError, psutil.Error):
        return False


def stop(marks: Iterable[ProcessMark], grace: float) -> None:
    """End the processes and everything in their sessions: asked first, killed after `grace` seconds."""
    marks = list(marks)
    sessions = [mark.pid for mark in marks if is_alive(mark) or not psutil.pid_exists(mark.pid)]
    for mark in marks:
        if is_alive(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(mark.pid, signal.SIGTERM)

    def ended() -> bool:
        _reap(marks)
        return not any(is_alive(mark) for mark in marks)

    Deadline.after(grace).wait_until(ended, every=0.1)
    end_sessions(sessions)
    _reap(marks)


def _reap(marks: Iterable[ProcessMark]) -> None:
    for mark in marks:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(mark.pid, os.WNOHANG)


log = logging.getLogger(__name__)

_COMMANDS = {
    "api-server": ("api-server",),
    "dag-processor": ("dag-processor",),
    # Task logs are read from the folder that all four share, so no process needs to serve them.
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
}
SERVICES = tuple(_COMMANDS)
_GRACE = 6.0


@dataclass(frozen=True)
class AirflowInfo:
    """Where a person or a client finds Airflow."""

    url: str
    user: str
    password: str


@dataclass(frozen=True)
class AirflowStatus:
    """What runs now. `health` is Airflow's own status per component, empty while the API server does not answer."""

    url: str | None
    services: dict[str, bool]
    health: dict[str, str]

    @property
    def running(self) -> bool:
        """Whether all four services run and report that they are healthy."""
        return all(self.services.values()) and all(self.health.get(name) == "healthy" for name in _HEALTH)


_HEALTH = ("metadatabase", "scheduler", "triggerer", "dag_processor")


def start_airflow(settings: Settings, *, progress: Progress = report_nothing, timeout: float = 180.0) -> AirflowInfo:
    """Start what does not run yet, and wait until all of it is healthy.

    Raises:
        ServiceError: a service ended or did not become healthy in time; the message names its log.
    """
    home = airflow_home(settings)
    home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with lock(home.lock), contextlib.ExitStack() as held:
        secrets = _ensure_secrets(home)
        port = _ensure_port(home, held)
        _write_private(home.config, render_config(airflow_options(settings, port, secrets)))
        env = service_environment(settings)
        info = AirflowInfo(airflow_url(port), USER, secrets.password)
        deadline = Deadline.after(timeout)
        _forget_dead(home)
        if _needs_migration(home) or _missing(home, SERVICES):
            with ForkServer(env, settings.project, home.logs / "fork_server.log") as fork_server:
                _migrate(home, fork_server, progress)
                # The scheduler comes last: tasks that it starts call the API server, and fail if that is not up.
                _start_missing(home, fork_server, SERVICES[:-1], progress)
                _await_health(home, info, ("metadatabase",), progress, deadline)
                _start_missing(home, fork_server, SERVICES[-1:], progress)
        _await_health(home, info, _HEALTH, progress, deadline)
    from rivertwice.airflow import AirflowClient

    airflow = AirflowClient(info.url, info.user, info.password)
    for pool in pools_of(settings):
        airflow.ensure_pool(pool, 1, "Spark applications that run at the same time on this machine")
    return info


def pools_of(settings: Settings) -> list[str]:
    """Return the pools that DAGs of the project's pipelines need: a task whose pool does not exist would wait for ever."""
    definitions = (found.definition for found in find_definitions(settings))
    return sorted({SPARK_POOL, *(each.airflow.pool for each in definitions if each is not None)})


def stop_airflow(settings: Settings) -> list[str]:
    """Stop the services and the tasks they run; return the names of those that were running.

    Tasks that wait in the triggerer stay deferred and continue after the next start. A running task is killed after a short
    grace and retried then.
    """
    home = airflow_home(settings)
    if not home.services.exists():
        return []
    with lock(home.lock):
        marks = _read_services(home)
        running = [name for name, mark in marks.items() if is_alive(mark)]
        stop(marks.values(), _GRACE)
        home.services.unlink(missing_ok=True)
    return running


def airflow_status(settings: Settings) -> AirflowStatus:
    """Say which services run, and what Airflow reports about itself."""
    home = airflow_home(settings)
    marks = _read_services(home)
    services = {name: name in marks and is_alive(marks[name]) for name in SERVICES}
    if not home.port.exists():
        return AirflowStatus(None, services, {})
    url = airflow_url(_read_port(home))
    if not services["api-server"]:
        return AirflowStatus(url, services, {})
    from rivertwice.airflow import AirflowClient

    return AirflowStatus(url, services, AirflowClient.health(url))


def airflow_info(settings: Settings) -> AirflowInfo:
    """Return the address and the login of the embedded Airflow.

    Raises:
        ServiceError: it has never been started in this home.
    """
    home = airflow_home(settings)
    if not (home.port.exists() and home.secrets.exists()):
        message = f"no Airflow has been started in {home.root}; run `rivertwice up`"
        raise ServiceError(message)
    return AirflowInfo(airflow_url(_read_port(home)), USER, _ensure_secrets(home).password)


def client(settings: Settings) -> AirflowClient:
    """Return a client of the embedded Airflow."""
    from rivertwice.airflow import AirflowClient

    info = airflow_info(settings)
    return AirflowClient(info.url, info.user, info.password)


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
    temporary.replace(path)


def _ensure_secrets(home: AirflowHome) -> Secrets:
    if not home.secrets.exists():
        fresh = Secrets(
            password=random.token_urlsafe(12),
            jwt_secret=random.token_urlsafe(48),
            secret_key=random.token_urlsafe(32),
            fernet_key=base64.urlsafe_b64encode(random.token_bytes(32)).decode(),
        )
        _write_private(home.secrets, json.dumps({"format": 1, **asdict(fresh)}))
    stored = json.loads(home.secrets.read_text())
    secrets = Secrets(stored["password"], stored["jwt_secret"], stored["secret_key"], stored["fernet_key"])
    if not home.passwords.exists():
        _write_private(home.passwords, json.dumps({USER: secrets.password}))
    return secrets


def _read_port(home: AirflowHome) -> int:
    return int(json.loads(home.port.read_text())["port"])


def _ensure_port(home: AirflowHome, held: contextlib.ExitStack) -> int:
    """Return the port of the living API server, or one for a new server: the last one's if it is still free."""
    before = [_read_port(home)] if home.port.exists() else None
    api = _read_services(home).get("api-server")
    if before and api and is_alive(api):
        return before[0]
    (port,) = held.enter_context(held_ports(1, before))
    _write_private(home.port, json.dumps({"format": 1, "port": port}))
    return port


def _airflow_version() -> str:
    return importlib.metadata.version("apache-airflow-core")


def _needs_migration(home: AirflowHome) -> bool:
    stamped = json.loads(home.schema_stamp.read_text())["airflow"] if home.schema_stamp.exists() else None
    return not home.database.exists() or stamped != _airflow_version()


def _migrate(home: AirflowHome, fork_server: ForkServer, progress: Progress) -> None:
    if not _needs_migration(home):
        return
    progress("Airflow: creating its database")
    log_file = home.logs / "db-migrate.log"
    code = fork_server.run(["db", "migrate"], log_file)
    if code != 0:
        message = f"Airflow's database {home.database} could not be prepared (exit code {code}); see {log_file}"
        raise ServiceError(message)
    _write_private(home.schema_stamp, json.dumps({"format": 1, "airflow": _airflow_version()}))


def _missing(home: AirflowHome, wanted: Sequence[str]) -> list[str]:
    marks = _read_services(home)
    return [name for name in wanted if name not in marks or not is_alive(marks[name])]


def _read_services(home: AirflowHome) -> dict[str, ProcessMark]:
    if not home.services.exists():
        return {}
    stored = json.loads(home.services.read_text())["services"]
    return {name: ProcessMark(int(mark["pid"]), mark["started"]) for name, mark in stored.items()}


def _start_missing(home: AirflowHome, fork_server: ForkServer, wanted: Sequence[str], progress: Progress) -> None:
    missing = _missing(home, wanted)
    if not missing:
        return
    marks = _read_services(home)
    progress(f"Airflow: starting {', '.join(missing)}")
    for name in missing:
        marks[name] = mark_of(fork_server.start(_COMMANDS[name], home.logs / f"{name}.log"))
        # Written after each start: so a crash of this process leaves no service that cannot be stopped.
        _write_services(home, marks)


def _write_services(home: AirflowHome, marks: Mapping[str, ProcessMark]) -> None:
    stored = {"format": 1, "services": {name: asdict(mark) for name, mark in marks.items()}}
    _write_private(home.services, json.dumps(stored))


def _forget_dead(home: AirflowHome) -> None:
    """End what a killed service left in its session: the executor's workers would answer to a scheduler that is gone."""
    marks = _read_services(home)
    dead = {name: mark for name, mark in marks.items() if not is_alive(mark)}
    if ended := end_sessions(mark.pid for mark in dead.values()):
        log.info("ended processes %s, left over from a service that was killed", ended)
    if dead:
        _write_services(home, {name: mark for name, mark in marks.items() if name not in dead})


def _await_health(
    home: AirflowHome,
    info: AirflowInfo,
    wanted: Sequence[str],
    progress: Progress,
    deadline: Deadline,
) -> None:
    from rivertwice.airflow import AirflowClient

    marks = _read_services(home)
    healthy: set[str] = set()
    for _ in deadline.polls():
        for name, mark in marks.items():
            if not is_alive(mark):
                message = f"Airflow's {name} ended right after its start; see {home.logs / (name + '.log')}"
                raise ServiceError(message)
        health = AirflowClient.health(info.url)
        for name in wanted:
            if health.get(name) == "healthy" and name not in healthy:
                healthy.add(name)
                progress(f"Airflow: {name} is healthy")
        if len(healthy) == len(wanted):
            return
    waiting = ", ".join(name for name in wanted if name not in healthy)
    message = f"Airflow at {info.url} is not healthy yet ({waiting}); see the logs in {home.logs}"
    raise ServiceError(message)
