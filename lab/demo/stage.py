"""The demo's stage: its home folder, the services, and how all of it is taken down again."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from lab.flights.replay import ReplayRequest, send_on
from rivertwice.agent.launch import start_agent
from rivertwice.core.errors import ConfigError, ServiceError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline, Progress
from rivertwice.definition.definition import load_all
from rivertwice.local.airflow import AirflowInfo, start_airflow
from rivertwice.local.broker import start_broker
from rivertwice.log import kafka
from rivertwice.storage.local import read_json, replace_json
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Exit, Heartbeat

log = logging.getLogger(__name__)

MARKER = "demo.json"
PIPELINE = "flight_delays"


def prepare_home(settings: Settings, say: Progress) -> None:
    """Give the demo an empty home. Only a home that a demo made is ever emptied.

    Raises:
        ConfigError: the home holds state that no demo made.
    """
    marker = settings.home / MARKER
    if settings.home.exists() and any(settings.home.iterdir()):
        if read_json(marker) is None:
            message = (
                f"{settings.home} holds state that no demo made, so the demo leaves it alone; set RIVERTWICE_HOME to an "
                "empty folder and start the demo again"
            )
            raise ConfigError(message)
        say("an earlier demo left its home here; its services are stopped and its state is removed")
        take_down(settings)
        shutil.rmtree(settings.home)
    settings.home.mkdir(parents=True, exist_ok=True)
    replace_json(marker, {"format": 1, "made_by": "rivertwice demo"})


def take_down(settings: Settings) -> None:
    """Drain the streams and stop every service of this home.

    Raises:
        ServiceError: something still runs.
    """
    command = [str(Path(sys.executable).parent / "rivertwice"), "down"]
    done = subprocess.run(command, env={**os.environ, **settings.to_env()}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = f"`rivertwice down` ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
        raise ServiceError(message)


class AirflowStart(threading.Thread):
    """Starts Airflow beside the stream; `info` waits for it and raises the error if it failed."""

    def __init__(self, settings: Settings) -> None:
        """Create the thread; `start` begins."""
        super().__init__(name="airflow-start", daemon=True)
        self._settings = settings
        self._info: AirflowInfo | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Start Airflow."""
        try:
            self._info = start_airflow(self._settings)
        except Exception as error:
            self._error = error

    def info(self) -> AirflowInfo:
        """Wait until Airflow is up and return its address and login."""
        self.join()
        if self._error is not None:
            raise self._error
        if self._info is None:
            message = "Airflow's start ended without a result; look at the logs under its home"
            raise ServiceError(message)
        return self._info


class LiveFlights(threading.Thread):
    """Sends the flights that follow the story, a minute of July 2013 a second, so that the stream is at work until the demo ends."""

    DAYS = (date(2013, 7, 2), date(2013, 7, 31))
    SPEED = 60.0

    def __init__(self, settings: Settings, topic: str, partitions: int) -> None:
        """Create the thread; `start` begins."""
        super().__init__(name="live-flights", daemon=True)
        self._settings = settings
        self._request = ReplayRequest(topic=topic, partitions=partitions, days=self.DAYS, speed=self.SPEED)
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Send until the last flight, or until `stop`."""
        try:
            send_on(self._settings, self._request, self._stop_asked)
        except ServiceError:
            log.exception("no flights are sent any more")

    def stop(self) -> None:
        """Stop sending, and wait until what was sent is acknowledged."""
        self._stop_asked.set()
        self.join()


def start_services(settings: Settings, say: Progress) -> AirflowStart:
    """Start broker, topics and agent; Airflow comes up meanwhile."""
    airflow = AirflowStart(settings)
    airflow.start()
    broker = start_broker(settings)
    say(f"Kafka broker at {broker.bootstrap}, pid {broker.pid}")
    for definition in load_all(settings.definitions).values():
        for source in definition.sources.values():
            kafka.ensure_topic(settings, source.topic, source.partitions, {})
    agent = start_agent(settings)
    say(f"agent, pid {agent.pid}; Airflow is starting meanwhile")
    return airflow


def wait_for(
    what: str, condition: Callable[[], Any], home: PipelineHome, timeout_s: float, *, every: float = 0.25
) -> Any:
    """Wait until `condition` returns something true and return it.

    Raises:
        ServiceError: it did not within `timeout_s`; the message contains what the driver reported last.
    """
    for _ in Deadline.after(timeout_s).polls(every):
        result = condition()
        if result:
            return result
    message = (
        f"{what} did not happen within {timeout_s:.0f} s; the driver last said {Heartbeat.load(home)}, the last "
        f"exit was {Exit.load(home)}; see {home.logs}"
    )
    raise ServiceError(message)


def kill_driver(home: PipelineHome) -> tuple[int, int]:
    """Kill the driver with SIGKILL and return its (pid, epoch)."""
    owner = lease_owner(home)
    if owner is None:
        message = "no driver is running, so none can be killed"
        raise ServiceError(message)
    os.kill(owner.pid, signal.SIGKILL)
    return owner.pid, owner.epoch


def run_verb(settings: Settings, words: list[str], progress: Progress) -> None:
    """Run a command in a separate process, as a person would, and pass its lines on.

    Raises:
        ServiceError: it failed; the message has its last lines.
    """
    command = [sys.executable, "-m", "rivertwice.cli.main", *words]
    output: list[str] = []
    env = {**os.environ, **settings.to_env()}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        for line in child.stdout or ():
            output.append(line.rstrip())
            progress(output[-1])
    if child.returncode != 0:
        message = f"rivertwice {' '.join(words)} ended with {child.returncode}: {' | '.join(output[-5:])}"
        raise ServiceError(message)
