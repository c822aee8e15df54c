"""docker-compose.yml in a Docker engine, as a user starts it: a stream loses its worker, its Airflow does every verb, all containers are restarted.

Slow: sixteen containers. `lab/kube` makes engine and images where no registry is reached.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from boxes.compose_file import COMPOSE, compose_document, make_secrets
from homes.project import REPOSITORY
from lab import kube
from rivertwice.airflow.airflow_api import AirflowClient
from running.deployed import Deployed
from servers.airflow import PIPELINE

IMAGES = sorted({each["image"] for each in compose_document()["services"].values() if not each.get("profiles")})
WHY_NOT = kube.why_no_containers(IMAGES)
pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]
RECORDS = 600
MORE = 60


class Compose(Deployed):
    """The project of the compose file, under a name of its own and with nothing published."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        variables = make_secrets() | {
            "REPOSITORY": str(REPOSITORY.resolve()),
            "FLIGHTS": str((REPOSITORY / ".build" / "data").resolve()),
        }
        env = folder / "env"
        env.touch(0o600)
        env.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        files = ("--file", str(COMPOSE), "--file", str(kube.HERE / "compose.yaml"))
        name = f"rivertwice-{secrets.token_hex(3)}"
        self.command = ["docker", "compose", "--project-name", name, "--env-file", str(env), *files]

    def compose(self, *words: str, timeout: float = 900.0) -> str:
        """Run `docker compose WORDS` to its good end and return what it printed."""
        done = subprocess.run(
            [*self.command, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False
        )  # fmt: skip
        assert done.returncode == 0, f"docker compose {' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def up(self) -> None:
        """Start what does not run, and wait until all of it is healthy."""
        self.compose("up", "--detach", "--wait", "--no-build", "--pull", "never")

    def inside(self, service: str, *words: str) -> list[str]:
        """Return the command that runs words in a service's container."""
        return ["exec", "--no-TTY", service, *words]

    def ask(self, *words: str) -> str:
        return self.compose(*self.inside("agent", "rivertwice", *words))

    def look(self, service: str, what: str) -> str:
        """Return a field of a service's container."""
        container = self.compose("ps", "--quiet", service).strip()
        return subprocess.check_output(["docker", "inspect", "--format", what, container], text=True).strip()

    def send(self, records: int, speed: float = 0.0) -> subprocess.Popen[bytes]:
        """Begin to send the next flights of a day."""
        day = ("--from", "2013-06-30", "--to", "2013-06-30")
        words = ("rivertwice", "replay", "flights", *day, "--limit", str(records), "--speed", str(speed))
        return subprocess.Popen([*self.command, *self.inside("lab", *words)], stdout=subprocess.DEVNULL)

    def airflow(self) -> AirflowClient:
        """Return a client of its Airflow, who has read the password as docs/howto-deploy.md says."""
        passwords = self.compose(*self.inside("airflow-api", "cat", "/var/lib/rivertwice/airflow/passwords.json"))
        address = self.look("airflow-api", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
        return AirflowClient(f"http://{address}:8080", "admin", json.loads(passwords)["admin"], timeout=120)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Compose]:
    made = Compose(tmp_path)
    try:
        made.timed("up", made.up)
        yield made
    finally:
        (tmp_path / "compose.log").write_text(made.compose("logs", "--timestamps"))
        made.compose("down", "--volumes", "--timeout", "5")


@pytest.mark.proves("howto-deploy.md#docker-compose", "howto-deploy.md#start-it")
def test_a_stream_and_every_verb_of_airflow_outlive_a_killed_worker_and_a_restart(here: Compose) -> None:
    here.timed("start", lambda: here.ask("start", PIPELINE, "--wait"))
    sending = here.send(RECORDS, speed=600.0)
    here.timed("the first batch", lambda: here.until_streams(0))

    worker = here.look("spark-worker", "{{.State.StartedAt}}")
    os.kill(int(here.look("spark-worker", "{{.State.Pid}}")), signal.SIGKILL)  # `docker kill` would not restart it
    here.timed("a batch after the worker was killed", lambda: here.until_streams(here.batch()))
    assert here.look("spark-worker", "{{.State.StartedAt}}") != worker

    here.by_airflow(here.airflow(), "rotate", "archive")
    here.say(f"{here.proved()} is proved")
    assert sending.wait(1800) == 0
    seen = here.timed("the rest of the log", here.until_read)

    here.timed("docker compose restart", lambda: here.compose("restart"))
    here.timed("all of it is healthy", here.up)
    assert here.send(RECORDS + MORE).wait(300) == 0
    here.timed("a batch after it", lambda: here.until_streams(seen["batch"], seen["driver"]["epoch"] + 1))
    here.until_read()
    here.by_airflow(here.airflow(), "reconcile", "backfill")
    assert [each["published"] for each in here.json("backfill", "list", PIPELINE)] == [2]  # 1 is the head
    here.nothing_lost(RECORDS + MORE)
