"""One seeded run of lab_sums in a folder of its own: real log, real driver, real kills, and the oracle at the end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from lab.faults.errors import LabError
from lab.faults.events import Event, EventPlan, plan_events, produce_events
from lab.faults.judgement import Judgement
from lab.faults.lab_project import DEFINITION, PIPELINE, make_project, note_events
from lab.faults.processes import end_group, signal_group, start_process, strike_when
from lab.faults.steps import Steps
from rivertwice.agent.launch import AgentStatus, agent_status, start_agent, stop_agent
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition, load_definition
from rivertwice.engine.java import java_env
from rivertwice.log import kafka
from rivertwice.stream.begin import FIRST
from rivertwice.timeline.sequence import head

__all__ = ["DEFINITION", "DRIVER", "PIPELINE", "RUN_S", "Lab"]

DRIVER = (sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", PIPELINE)
ORACLE = (sys.executable, "-m", "lab.oracle")
RUN_S = 300.0
_T = TypeVar("_T")


class Lab:
    """One seeded run.

    Attributes:
        seed: seed of the events and of every choice the case makes.
        random: draws for the case; the events have a generator of their own.
        folder: everything of the run lies here.
        settings: project and home of the run's own, on a shared broker.
        topic: the topic of the run.
        kills: processes killed with SIGKILL so far.
        produced: records produced so far.
        facts: figures for the outcome.
        variables: of the environment of the run's processes, besides the settings.
        tables_at: the folder in which the oracle finds tables and timelines, where they are not in the home.
    """

    pipeline = PIPELINE

    def __init__(
        self, settings: Settings, folder: Path, seed: int, *, pins: Mapping[str, Any] | None = None, partitions: int = 3
    ) -> None:
        """Make project, home and topic of a new run.

        Args:
            settings: where Spark's jars and the broker are; `bootstrap` must be set.
            folder: must not exist, or be empty.
            seed: seed of the run.
            pins: values that replace the definition's stream settings.
            partitions: partitions of the topic.
        """
        self.seed = seed
        self.random = random.Random(seed)  # noqa: S311 (test data, not a secret)
        self.folder = folder
        self.topic = f"lab-{seed}-{uuid.uuid4().hex[:10]}"
        self.kills = 0
        self.facts: dict[str, Any] = {}
        self.variables: dict[str, str] = {}
        self.settings = Settings(
            project=folder / "project",
            home=folder / "home",
            bootstrap=settings.bootstrap_servers(),
            spark_master="local[2]",
        )
        self._partitions = partitions
        self._produced = folder / "produced.jsonl"
        self._story_ms: int | None = None
        self.produced = 0
        self.tables_at: Path | None = None
        self._at_end_of_log = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._at_end = ExitStack()
        make_project(settings, self.settings.project, topic=self.topic, partitions=partitions, pins=pins or {})
        kafka.ensure_topic(self.settings, self.topic, partitions)

    @property
    def home(self) -> PipelineHome:
        """The pipeline's home."""
        return self.settings.pipeline(PIPELINE)

    @property
    def definition(self) -> Definition:
        """The definition as it is now."""
        return load_definition(self.settings.definitions / PIPELINE)

    @property
    def timeline(self) -> str:
        """The head timeline, or the one the first start will create."""
        return head(self.home) or FIRST

    @property
    def checkpoint(self) -> Path:
        """Checkpoint of the head timeline."""
        return self.home.checkpoint(self.timeline)

    def steps(self) -> Steps:
        """Return a fresh watch over the head timeline's steps."""
        changelog = (self.tables_at or Path(self.home.place)) / "tables" / "changelog"
        return Steps(self.checkpoint, changelog, f"{PIPELINE}#{self.timeline}")

    def planned(self, batch: int) -> bool:
        """Say whether `offsets/N` of the head timeline exists."""
        return self.steps().planned(batch)

    def committed(self, batch: int) -> bool:
        """Say whether the batch is in the changelog; `commits/N` may still be missing."""
        return self.steps().published(batch)

    def finished(self, batch: int) -> bool:
        """Say whether `commits/N` of the head timeline exists."""
        return self.steps().finished(batch)

    # ---- the log

    def produce(self, plan: EventPlan | None = None) -> int:
        """Produce a plan's events; without one the next chapter of the seed's own story. Returns the records."""
        plan = plan or self.next_plan()
        self._story_ms = plan.end_ms
        return self.produce_events(plan_events(plan))

    def next_plan(self, **changes: Any) -> EventPlan:
        """Return the plan of the next chapter of the seed's story, with some of its fields changed."""
        plan = EventPlan(seed=self.seed, partitions=self._partitions)
        if self._story_ms is not None:
            plan = replace(plan, begin_ms=self._story_ms)
        return replace(plan, **changes)

    def produce_events(self, events: list[Event]) -> int:
        """Produce these events, and note each with its address: the broker must never lose an acknowledged record."""
        sent = produce_events(self.settings, self.topic, events)
        note_events(self._produced, events, sent)
        self.produced += len(events)
        self._at_end_of_log = False
        return len(events)

    # ---- the driver

    def start_driver(
        self,
        *,
        until_end: bool = False,
        env: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        program: Sequence[str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a driver in a session of its own; its log is `driver.log` in the run's folder.

        As the agent does, it removes the drain marker of an operation that was killed when only that was left to do.

        Args:
            until_end: it drains once everything in the log is committed.
            env: variables that are set over the environment.
            settings: instead of the run's own (another address of the broker, another host's home).
            program: runs the driver, instead of its own module.
        """
        used = settings or self.settings
        used.pipeline(PIPELINE).drain.unlink(missing_ok=True)
        command = self.command(until_end=until_end, settings=used)
        if program is not None:
            command = [*program, *command[3:]]
        process = start_process(command, log=self.folder / "driver.log", env=self.env(env, used), cwd=used.project)
        self._processes.append(process)
        return process

    def command(self, *, until_end: bool, settings: Settings) -> list[str]:
        """Return a driver's command line; its settings are in its environment."""
        return [*DRIVER, "--until-end"] if until_end else list(DRIVER)

    def env(self, extra: Mapping[str, str] | None = None, settings: Settings | None = None) -> dict[str, str]:
        """Return the environment of the run's processes."""
        used = settings or self.settings
        return {**os.environ, **java_env(self.settings), **used.to_env(), **self.variables, **(extra or {})}

    def wait(self, process: subprocess.Popen[bytes], patience_s: float = RUN_S) -> int:
        """Wait for a process's end and return its exit code."""
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            message = f"process {process.pid} still runs after {patience_s:.0f} s; {self.log_end()}"
            raise LabError(message) from None

    def run_to_end(self, env: Mapping[str, str] | None = None, patience_s: float = RUN_S) -> None:
        """Run a driver until everything in the log is committed.

        Raises:
            LabError: it did not exit with 0; the message ends with its log's end.
        """
        code = self.wait(self.start_driver(until_end=True, env=env), patience_s)
        if code != 0:
            message = f"a driver that should have reached the end of the log ended with {code}; {self.log_end()}"
            raise LabError(message)
        self._at_end_of_log = True

    def log_end(self, size: int = 3000) -> str:
        """Return where the driver's log ends."""
        log = self.folder / "driver.log"
        return f"its log ends: {log.read_text(errors='replace')[-size:]}" if log.exists() else "it has no log"

    def kill_when(
        self,
        process: subprocess.Popen[bytes],
        condition: Callable[[], bool],
        *,
        sig: int = signal.SIGKILL,
        patience_s: float = 120.0,
    ) -> bool:
        """Signal the process GROUP (driver and JVM) as soon as `condition()`; False if it ended before.

        Raises:
            LabError: the moment did not come in time.
        """
        try:
            struck = strike_when(process, condition, sig=sig, patience_s=patience_s)
        except TimeoutError as error:
            message = f"{error}; {self.log_end()}"
            raise LabError(message) from error
        if struck and sig == signal.SIGKILL:
            self.kills += 1
        return struck

    def kill_pid(self, pid: int) -> None:
        """Kill one process with SIGKILL and wait until it is gone."""
        process = psutil.Process(pid)
        process.kill()
        self.kills += 1
        psutil.wait_procs([process], timeout=20)

    def signal_group(self, process: subprocess.Popen[bytes], sig: int) -> None:
        """Send a signal (SIGSTOP, SIGCONT) to a driver and its JVM."""
        signal_group(process, sig)

    def until(
        self, what: Callable[[], bool], patience_s: float = 120.0, description: str = "what was waited for"
    ) -> float:
        """Wait until something is true; return the seconds it took.

        Raises:
            LabError: it did not become true.
        """
        began = time.monotonic()
        while not what():
            if time.monotonic() - began > patience_s:
                message = f"{description} did not happen within {patience_s:.0f} s; {self.log_end()}"
                raise LabError(message)
            time.sleep(0.01)
        return time.monotonic() - began

    # ---- the agent

    @contextmanager
    def agent(self) -> Iterator[AgentStatus]:
        """Run an agent over the run's home; it is stopped at the end, its driver ends with the lab."""
        try:
            yield self.start_agent()
        finally:
            self.stop_agent()

    def start_agent(self) -> AgentStatus:
        """Start an agent, or return the one that lives."""
        return start_agent(self.settings)

    def stop_agent(self) -> None:
        """Stop the agent if one lives; its driver is left running."""
        stop_agent(self.settings)

    # ---- the end

    def fact(self, key: str, value: Any) -> None:
        """Put a figure into the outcome."""
        self.facts[key] = value

    def judge(self) -> Judgement:
        """Let the oracle, a program of its own, compare what is on disk with what is in the log."""
        done = subprocess.run(
            ORACLE, input=json.dumps(self.request()), capture_output=True, text=True, timeout=RUN_S, check=False
        )
        if done.returncode != 0:
            message = f"the oracle ended with {done.returncode}: {done.stderr[-3000:]}"
            raise LabError(message)
        return Judgement.from_json(json.loads(done.stdout))

    def request(self) -> dict[str, Any]:
        """Return the request to the oracle."""
        return {
            "bootstrap": self.settings.bootstrap_servers(),
            "topic": self.topic,
            "home": str(self.tables_at or self.home.place),
            "produced": str(self._produced),
            "complete": self._at_end_of_log,
        }

    def at_end(self, what: Callable[[], object]) -> None:
        """Do something when the run is over and judged, with any result; the last one given is done first."""
        self._at_end.callback(what)

    def use(self, what: AbstractContextManager[_T]) -> _T:
        """Enter a context, and leave it when the run is over and judged."""
        return self._at_end.enter_context(what)

    def move_to(self, bootstrap: str) -> None:
        """Let the run's topic lie on another cluster from now on; nothing may have been produced yet."""
        kafka.delete_topic(self.settings, self.topic)
        self.at_end(partial(setattr, self, "settings", self.settings))
        self.settings = replace(self.settings, bootstrap=bootstrap)
        kafka.ensure_topic(self.settings, self.topic, self._partitions)

    def close(self, *, keep: bool = False) -> None:
        """End every process of the run and remove its topic and folder, unless they are to be kept."""
        if agent_status(self.settings) is not None:
            stop_agent(self.settings)
        for process in self._processes:
            end_group(process)
        self._end_strays()
        self._at_end.close()
        if not keep:
            kafka.delete_topic(self.settings, self.topic)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _end_strays(self) -> None:
        """End what agents of the run left running: drivers, and JVMs that outlived theirs. They know the run's home."""
        home = str(self.settings.home)
        for process in psutil.process_iter():
            try:
                if process.environ().get("RIVERTWICE_HOME") == home:
                    process.kill()
            except psutil.Error:
                continue
