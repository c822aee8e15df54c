"""What the savepoint cases share: rotations as processes of their own, damage under an agent, proofs at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.faults.cases import LabError, require
from lab.faults.lab import PIPELINE, RUN_S, Lab
from lab.faults.processes import end_group, start_process
from rivertwice.agent.memory import load_memory
from rivertwice.core.instants import utc_now
from rivertwice.savepoint.catalogue import Savepoint, list_savepoints
from rivertwice.savepoint.operations.record import read_fall_back
from rivertwice.savepoint.take import take_savepoint
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Heartbeat, write_intent
from rivertwice.timeline.sequence import head

CLI = (sys.executable, "-m", "rivertwice.cli.main", "--output", "json")


def start_command(lab: Lab, *words: str) -> subprocess.Popen[bytes]:
    """Start a command of the command line in a session of its own; its output goes to `commands.log`."""
    process = start_process((*CLI, *words), log=lab.folder / "commands.log", env=lab.env(), cwd=lab.settings.project)
    lab.at_end(lambda: end_group(process))
    return process


def command_log(lab: Lab, size: int = 3000) -> str:
    """Return where the commands' log ends."""
    path = lab.folder / "commands.log"
    return path.read_text(errors="replace")[-size:] if path.exists() else "(nothing)"


def run_command(lab: Lab, *words: str, patience_s: float = RUN_S) -> None:
    """Run a command to its end.

    Raises:
        LabError: it did not exit with 0.
    """
    code = lab.wait(start_command(lab, *words), patience_s)
    if code != 0:
        message = f"rivertwice {' '.join(words)} ended with {code}: {command_log(lab)}"
        raise LabError(message)


def begin(lab: Lab, batches: int) -> None:
    """Produce the story and stream so many batches of it, then kill the driver: the rest of the log is still unread."""
    lab.produce()
    driver, steps = lab.start_driver(), lab.steps()
    struck = lab.kill_when(driver, lambda: steps.finished(batches))
    require(struck, f"the driver ended before batch {batches} was finished; {lab.log_end()}")


def take(lab: Lab) -> Savepoint:
    """Take a savepoint."""
    return take_savepoint(lab.settings, PIPELINE, now=utc_now(), reason="fault lab")


def prove_listed(lab: Lab) -> dict[str, dict[str, Any]]:
    """Verify every byte of every listed savepoint and prove each up to the last committed batch.

    Raises:
        CaseFailedError: one is listed and not whole, or its replay differs from what the ledger recorded.
    """
    savepoints = list_savepoints(lab.home)
    for savepoint in savepoints:
        savepoint.verify_files()
    began = time.monotonic()
    job = subprocess.run(
        [sys.executable, "-m", "lab.faults.prove_all", "--pipeline", PIPELINE],
        cwd=lab.settings.project,
        env=lab.env(),
        capture_output=True,
        text=True,
        timeout=2 * RUN_S,
        check=False,
    )
    if not job.stdout.strip():
        message = f"the proofs ended with {job.returncode} and printed nothing: {job.stderr[-3000:]}"
        raise LabError(message)
    results: dict[str, dict[str, Any]] = json.loads(job.stdout.splitlines()[-1])
    lab.fact("savepoints_proved", f"{sum(proof['proved'] for proof in results.values())}/{len(savepoints)}")
    lab.fact("proofs_s", round(time.monotonic() - began, 1))
    bad = {name: proof["reason"] for name, proof in results.items() if not proof["proved"]}
    require(
        not bad and set(results) == {proof.id for proof in savepoints}, f"listed savepoints that are not proved: {bad}"
    )
    return results


@dataclass(frozen=True)
class Moment:
    """A step of a protocol, seen from outside.

    Attributes:
        name: for the outcome.
        seen: asked about once a millisecond.
    """

    name: str
    seen: Callable[[], bool]


def kill_at(lab: Lab, words: Sequence[str], moment: Moment, patience_s: float = 120.0) -> bool:
    """Start a command and kill it with all it started at a moment; False if it ended before."""
    process = start_command(lab, *words)
    try:
        return lab.kill_when(process, moment.seen, patience_s=patience_s)
    except LabError as error:
        end_group(process)
        message = f"moment '{moment.name}': {error}; the command's log ends: {command_log(lab)}"
        raise LabError(message) from error


# ---- damage under an agent


def snapshots_often(lab: Lab) -> None:
    """Let Spark write snapshots of the state every second batch, as it does every tenth in a stream that runs longer."""
    folder = lab.folder / "spark-conf"
    folder.mkdir()
    lines = (
        "spark.sql.streaming.stateStore.maintenanceInterval 500ms",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot 2",
    )
    (folder / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    before = {name: value for name, value in os.environ.items() if name == "SPARK_CONF_DIR"}
    os.environ["SPARK_CONF_DIR"] = str(folder)

    def restore() -> None:
        del os.environ["SPARK_CONF_DIR"]
        os.environ.update(before)

    lab.at_end(restore)


def alerts(lab: Lab) -> list[dict[str, Any]]:
    """Return the alerts of the run's home."""
    path = lab.settings.home / "alerts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def events(lab: Lab) -> list[str]:
    """Return the kinds of the agent's events."""
    return [event["kind"] for event in _read_events(lab)]


def events_of(lab: Lab, kind: str) -> list[dict[str, Any]]:
    """Return the agent's events of one kind."""
    return [event for event in _read_events(lab) if event["kind"] == kind]


def _read_events(lab: Lab) -> list[dict[str, Any]]:
    path = lab.settings.home / "agent" / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kill_owned(lab: Lab) -> None:
    """Kill the driver that an agent of the run left running, with its JVM."""
    owner = lease_owner(lab.home)
    if owner is None:
        return
    os.killpg(owner.pid, signal.SIGKILL)
    lab.kills += 1
    lab.until(lambda: lease_owner(lab.home) is None, 30, "the driver's end")


def reaction(lab: Lab) -> str:
    """Return how the agent answered so far: `stopped: why`, `fell back`, or `unharmed`."""
    memory = load_memory(lab.settings, PIPELINE)
    if memory.broken_at is not None:
        return f"stopped: {memory.broken_because}"
    return "fell back" if "fell_back" in [alert["kind"] for alert in alerts(lab)] else "unharmed"


def recover_under_agent(lab: Lab, *, patience_s: float = 240.0) -> str:
    """Let an agent bring the stream to the end of the log; return how it answered.

    Facts: seconds until the log's end, and of the fall-back itself, of the last time.
    """
    began = time.monotonic()
    write_intent(lab.home, "running", by="lab", now=utc_now())
    with lab.agent():

        def over() -> bool:
            return caught_up(lab) or reaction(lab).startswith("stopped")

        lab.until(over, patience_s, "the end of the log, or a named stop,")
        lab.fact("recovered_s", round(time.monotonic() - began, 1))
        answer = reaction(lab)
    kill_owned(lab)
    report = read_fall_back(lab.home)
    if report is not None and report.restored:
        lab.fact("fall_back_s", report.seconds)
        lab.fact("replayed", report.replayed)
    lab.fact("head", head(lab.home))
    return answer


def caught_up(lab: Lab) -> bool:
    """Say whether the living driver has committed every record of the log, by its heartbeat."""
    owner, beat = lease_owner(lab.home), Heartbeat.load(lab.home)
    if owner is None or beat is None or beat.epoch != owner.epoch or beat.state not in ("running", "idle"):
        return False
    return sum(int(end) for end in beat.end_offsets.get(lab.topic, {}).values()) >= lab.produced
