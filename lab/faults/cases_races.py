"""F48 and F49: the machine's clock set while processes run; a value erased while another host appends to the archive."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.faults.cases import LabError, case, require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.processes import end_group, start_process
from lab.faults.retention_runs import ask
from rivertwice.agent.launch import agent_status
from rivertwice.core.errors import LostRaceError
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from rivertwice.log.archive import extend_archive
from rivertwice.storage.table import Table
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Exit

STEPS_S = (-3600, -61, -2, 2, 61, 3600)
STEPPED = (sys.executable, "-m", "lab.faults.stepped")
PAUSED = (sys.executable, "-m", "lab.faults.paused")


def ask_stepped(lab: Lab, seconds: int, *words: str) -> dict[str, Any]:
    """Run a command as if it started after the clock was set, and return the JSON it prints."""
    return _ask_by(lab, (*STEPPED, str(seconds)), *words)


def _ask_by(lab: Lab, program: Sequence[str], *words: str) -> dict[str, Any]:
    """Run a command through a program that changes its environment, and return the JSON it prints."""
    command = (*program, "rivertwice.cli.main", "--output", "json", *words)
    done = subprocess.run(
        command, env=lab.env(), cwd=lab.settings.project, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        message = f"rivertwice {' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}"
        raise LabError(message)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@case("F48", "the machine's clock set by a second or an hour while a driver runs; then status, start and stop")
def clock_step(lab: Lab) -> None:
    """The driver is recognised: adopted, not started twice, and drained by a stop that waits for it."""
    lab.produce()
    lab.start_agent()
    ask(lab, "start", PIPELINE, "--wait")
    steps, batch = lab.steps(), lab.random.randrange(1, 5)
    lab.until(lambda: steps.finished(batch), 120, f"commits/{batch}")
    owner = lease_owner(lab.home)
    require(owner is not None, "a driver runs and no lease has an owner")
    lab.stop_agent()
    seconds = lab.random.choice(STEPS_S)
    lab.fact("step_s", seconds)
    lab.start_driver(program=(*STEPPED, str(seconds), "rivertwice.agent.agent"))
    lab.until(lambda: PIPELINE in _supervised(lab), 60, "a pass of the agent after the step")
    status = next(
        pipeline for pipeline in ask_stepped(lab, seconds, "status")["pipelines"] if pipeline["name"] == PIPELINE
    )
    expected = None if owner is None else {"pid": owner.pid, "epoch": owner.epoch}
    require(status["driver"] == expected, f"status says {status['driver']} of the driver {expected}")
    ask_stepped(lab, seconds, "start", PIPELINE)
    time.sleep(3)  # six passes
    require(lease_owner(lab.home) == owner, "another driver took the lease beside a living one")
    ask_stepped(lab, seconds, "stop", PIPELINE, "--wait", "--timeout", "120")
    record = Exit.load(lab.home)
    require(
        record is not None and record.clean and owner is not None and record.epoch == owner.epoch,
        f"stop said stopped, and the driver's end is {record}",
    )
    require(lease_owner(lab.home) is None, "stop said stopped, and the driver lives")
    lab.stop_agent()
    lab.run_to_end()


def _supervised(lab: Lab) -> dict[str, Any]:
    status = agent_status(lab.settings)
    return {} if status is None else status.pipelines


class _OtherHost:
    """Produces and archives from a home of its own, over the same shared place, whenever an erasure is about to overwrite.

    Every second time it takes no lock, as an older version, or a host that was suspended while it held the lock.
    """

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self._folder = folder
        self._settings: Settings = replace(lab.settings, home=lab.folder / "home-two")
        self._stop = threading.Event()
        self.rounds = self.kept_away = self.passed = 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            for at in sorted(self._folder.glob("*.at")):
                go = at.with_suffix(".go")
                if not go.exists():
                    try:
                        self._meet()
                    except Exception as error:  # a thread's error must reach the case
                        self.error = error
                    go.touch()

    def _meet(self) -> None:
        self.rounds += 1
        self._lab.produce(self._lab.next_plan(records=20, closing=False))
        try:
            if self.rounds % 2:
                self.passed += extend_archive(None, self._settings, self._lab.topic, held=lambda: None).commits
            else:
                extend_archive(None, self._settings, self._lab.topic)
        except LostRaceError:
            self.kept_away += 1

    def end(self) -> None:
        """Stop, and archive the rest."""
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        extend_archive(None, self._settings, self._lab.topic)


@case(
    "F49",
    "a value erased, killed and resumed; another host appends to the archive before each overwrite: every record once, none with it",
    kills=1,
)
def erasure_against_appends(lab: Lab) -> None:
    """What is appended between an erasure's reads and its overwrites stays, and what is erased stays away."""
    lab.settings = replace(lab.settings, shared=lab.folder / "shared")
    lab.produce()
    lab.run_to_end()
    value = _first_id(lab)
    stops = lab.folder / "stops"
    stops.mkdir()
    other_host = _OtherHost(lab, stops)
    erase = ("admin", "privacy", "erase", PIPELINE, "--field", "id", "--value", value, "--reason", "lab", "--yes")
    try:
        command = [*PAUSED, str(stops), "rivertwice.cli.main", "--output", "json", *erase]
        process = start_process(command, log=lab.folder / "commands.log", env=lab.env(), cwd=lab.settings.project)
        lab.at_end(lambda: end_group(process))
        began, patience_s = time.monotonic(), lab.random.uniform(1.0, 12.0)
        lab.fact("killed", lab.kill_when(process, lambda: time.monotonic() - began > patience_s))
        for erasure in _erasures(lab):
            _ask_by(lab, (*PAUSED, str(stops)), "admin", "privacy", "resume", erasure)
        if not _erasures(lab):  # killed before it was recorded
            _ask_by(lab, (*PAUSED, str(stops)), *erase)
    finally:
        other_host.end()
    met = other_host.kept_away + other_host.passed
    lab.fact(
        "met",
        f"{met} of {other_host.rounds}: {other_host.passed} appended in between, {other_host.kept_away} kept away",
    )
    require(other_host.passed > 0, f"no append came between a read and its overwrite ({other_host.rounds} overwrites)")
    require(met == other_host.rounds, f"an append neither passed nor was kept away: {met} of {other_host.rounds}")
    _check_archive(lab, value)
    lab.run_to_end()


def _erasures(lab: Lab) -> list[str]:
    listed: Any = ask(lab, "admin", "privacy", "list")
    return [erasure["id"] for erasure in listed]


def _first_id(lab: Lab) -> str:
    with (lab.folder / "produced.jsonl").open() as notes:
        for line in notes:
            value = json.loads(line)["value"]
            try:
                return str(json.loads(base64.b64decode(value or ""))["id"])
            except (ValueError, KeyError, TypeError):
                continue  # a poison record
    message = "no produced record has an id"
    raise LabError(message)


def _check_archive(lab: Lab, value: str) -> None:
    rows = Table(lab.settings.archive(lab.topic)).read(columns=["partition", "offset", "value"])
    require(rows is not None, "there is no archive")
    if rows is None:
        return
    places = Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    wanted = {(p, o) for p, end in kafka.end_offsets(lab.settings, lab.topic).items() for o in range(end)}
    lost, doubled = wanted - set(places), [place for place, count in places.items() if count > 1]
    require(not lost, f"{len(lost)} records are gone from the archive: {sorted(lost)[:5]}")
    require(not doubled, f"records are archived twice: {doubled[:5]}")
    word = json.dumps(value).encode()
    left = sum(word in item for item in rows["value"].to_pylist() if item is not None)
    require(not left, f"{left} archived records hold the value still")
