"""Somebody's own Airflow: the wheel of this clone beside it, a home and a DAG folder of its own, its own database and executor.

The wheel lies in a folder before all others on the path, with its metadata; everything else is of the tests' environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from homes.project import REPOSITORY
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.core.ports import held_ports
from rivertwice.core.processes import end_sessions
from running.waiting import wait_for

UV = REPOSITORY / ".build" / "tools" / "bin" / "uv"
ONE_FILE = """\
\"\"\"Airflow DAGs of every pipeline of rivertwice.\"\"\"
from rivertwice.airflow.factory import all_dags
globals().update(all_dags())
"""
SERVICES = (("api-server",), ("dag-processor",), ("triggerer", "--skip-serve-logs"), ("scheduler", "--skip-serve-logs"))


def install_wheel(folder: Path) -> Path:
    """Build the wheel of this clone and unpack it into `folder/installed`; return that."""
    built = [str(UV), "build", "-q", "--wheel", "--out-dir", str(folder / "wheel"), str(REPOSITORY)]
    done = subprocess.run(built, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "wheel").glob("*.whl")
    target = folder / "installed"
    install = [
        str(UV),
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--python",
        sys.executable,
        "--target",
        str(target),
        str(wheel),
    ]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


class OwnAirflow:
    """An Airflow in a folder.

    Attributes:
        folder: its AIRFLOW_HOME.
        env: of all its processes.
        dags: its DAG folder.
        url: of its API server.
        inside: words before each command of it, which lead to another host.
        started: the processes by name.
    """

    def __init__(
        self,
        folder: Path,
        installed: Path,
        port: int,
        variables: Mapping[str, str],
        host: str = "127.0.0.1",
        inside: Sequence[str] = (),
    ) -> None:
        self.folder, self.dags, self.url, self.inside = folder, folder / "my_dags", f"http://{host}:{port}", inside
        self.dags.mkdir(parents=True)
        (folder / "passwords.json").write_text(json.dumps({"admin": "of-the-tests"}))
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("RIVERTWICE", "AIRFLOW"))
        }
        path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
        options = {
            "CORE__DAGS_FOLDER": self.dags,
            "CORE__LOAD_EXAMPLES": False,
            "CORE__PARALLELISM": 3,
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
            "CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": folder / "passwords.json",
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "CORE__FERNET_KEY": "QQZqJIUxuXHjpgnYUHVqsZ9QfQ9vO0zVbNLYAgYqUsI=",
            "API_AUTH__JWT_SECRET": "of-the-tests-and-long-enough-for-a-signature-of-512-bits-which-is-64-bytes",
            "API__SECRET_KEY": "of-the-tests",
            "API__HOST": host,
            "API__PORT": port,
            "API__BASE_URL": self.url,
            "API__WORKERS": 1,
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder / 'airflow.db'}",
            "DATABASE__LOAD_DEFAULT_CONNECTIONS": False,
            "DAG_PROCESSOR__REFRESH_INTERVAL": 10,
            "LOGGING__BASE_LOG_FOLDER": folder / "logs",
        }
        self.env = {
            **inherited,
            "PYTHONPATH": path,
            "AIRFLOW_HOME": str(folder),
            "NO_PROXY": f"127.0.0.1,localhost,{host}",
            **{f"AIRFLOW__{name}": str(value) for name, value in options.items()},
            **variables,
        }
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, *words: str) -> str:
        """Run `airflow WORDS` to its good end and return what it printed."""
        done = subprocess.run(
            [*self.inside, sys.executable, "-m", "airflow", *words], env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=300, check=False
        )  # fmt: skip
        assert done.returncode == 0, f"airflow {' '.join(words[:2])}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def begin(self, *words: str) -> None:
        """Begin `airflow WORDS` in a session of its own, with its output in `WORD.log`."""
        name = words[0]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.started[name] = subprocess.Popen(
                [*self.inside, sys.executable, "-m", "airflow", *words], env=self.env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )  # fmt: skip

    def start(self, *, more: Sequence[Sequence[str]] = ()) -> AirflowClient:
        """Prepare the database, start the services, wait until they are healthy, and return a client."""
        self.command("db", "migrate")
        self.begin(*SERVICES[0])
        wait_for(
            "Airflow's API",
            lambda: AirflowClient.health(self.url).get("metadatabase") == "healthy",
            300,
            every=1.0,
            seen=self.log,
        )
        for words in (*SERVICES[1:], *more):
            self.begin(*words)
        wanted = ("scheduler", "triggerer", "dag_processor")
        wait_for(
            "Airflow", lambda: all(AirflowClient.health(self.url).get(name) == "healthy" for name in wanted), 300, every=1.0, seen=self.log
        )  # fmt: skip
        return self.client()

    def client(self) -> AirflowClient:
        """Return a client that has logged in."""
        return AirflowClient(self.url, "admin", "of-the-tests")

    def get(self, path: str, **params: Any) -> Any:
        """Return what the API, or a page below Airflow's address, answers."""
        login = {"username": "admin", "password": "of-the-tests"}
        token = httpx.post(f"{self.url}/auth/token", json=login, trust_env=False, timeout=60).json()["access_token"]
        bearer = {"Authorization": f"Bearer {token}"}
        answer = httpx.get(f"{self.url}{path}", params=params, headers=bearer, trust_env=False, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def log(self) -> str:
        """Return the end of each service's log, for messages."""
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in self.folder.glob("*.log")
        )

    def stop(self) -> None:
        """End all of it."""
        end_sessions(process.pid for process in self.started.values())
        for process in self.started.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)


@contextmanager
def own_airflow(
    folder: Path, installed: Path, variables: Mapping[str, str], host: str = "127.0.0.1", inside: Sequence[str] = ()
) -> Iterator[OwnAirflow]:
    """Give an Airflow that is not started yet, and end whatever was started of it."""
    with ExitStack() as held:
        (port,) = held.enter_context(held_ports(1))
        made = OwnAirflow(folder, installed, port, variables, host, inside)
        held.callback(made.stop)
        yield made
