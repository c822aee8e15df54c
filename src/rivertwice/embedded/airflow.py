"""The embedded Airflow: API server, scheduler, DAG processor and triggerer, started and stopped by us.

`airflow standalone` is not used: its parent leaves orphans behind when it is ended, and it cannot be adopted. Each service
runs detached in a session of its own and is recorded by process id and start time, so any later process can look after it.
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rivertwice.config import Settings
from rivertwice.embedded.airflow_config import (
    USER,
    AirflowHome,
    Secrets,
    airflow_home,
    airflow_options,
    airflow_url,
    render_config,
    service_environment,
)
from rivertwice.embedded.fork_server import ForkServer
from rivertwice.embedded.marks import ProcessMark, is_alive, mark_of, stop
from rivertwice.errors import ServiceError
from rivertwice.locks import lock
from rivertwice.orchestration.definitions import find_definitions
from rivertwice.orchestration.environment import SPARK_POOL
from rivertwice.ports import held_ports
from rivertwice.processes import end_sessions
from rivertwice.progress import Progress, report_nothing
from rivertwice.waits import Deadline

if TYPE_CHECKING:
    from rivertwice.orchestration.airflow_api import AirflowClient

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
    from rivertwice.orchestration.airflow_api import AirflowClient

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
    from rivertwice.orchestration.airflow_api import AirflowClient  # httpx: a fifth of a CPU-second

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
    from rivertwice.orchestration.airflow_api import AirflowClient

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
    from rivertwice.orchestration.airflow_api import AirflowClient

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
