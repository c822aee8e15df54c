"""The soak: one stream under an agent, fed without end, with a random fault every minute; its use of resources must stay flat.

Every ten seconds it writes down the memory of driver and agent, the files of every table, and the bytes of checkpoint and
savepoints. At the end the producer stops, the stream reads the rest, and the oracle judges everything that was produced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from lab.faults.lab import PIPELINE, Lab
from rivertwice.agent.launch import agent_status
from rivertwice.agent.metrics import sizes_below
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Progress
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.log import kafka
from rivertwice.savepoint.prune import prune_savepoints
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.blobs import files_below
from rivertwice.storage.table_care import TableCare
from rivertwice.stream.heartbeat import lag_of
from rivertwice.stream.lease import Owner, lease_owner
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.upkeep import keep_up, tables_of

SAMPLE_S = 10.0
FAULT_S = 60.0
UPKEEP_S = 120.0
ROTATE_S = 180.0
KEPT = timedelta(minutes=3)
CHAPTER = 300
LAG = 10 * CHAPTER
"""Records that may wait before feeding pauses: a busy machine would else end with hours to read."""
PATIENCE_S = 300.0
READING_S = 1800.0
REST_S = 45.0


@dataclass(frozen=True)
class Sample:
    """The resources that the system used at one moment.

    Attributes:
        at_s: seconds since the soak began.
        driver_mb, agent_mb: resident memory of driver with its JVM, and of the agent; None while it does not live.
        table_files: data and log files of all tables together.
        checkpoint_files, checkpoint_bytes: figures of the head timeline.
        savepoint_bytes: bytes of all savepoints.
        batches: batches committed on the head's path.
    """

    at_s: float
    driver_mb: float | None
    agent_mb: float | None
    table_files: int
    checkpoint_files: int
    checkpoint_bytes: int
    savepoint_bytes: int
    batches: int


@dataclass(frozen=True)
class Trend:
    """One figure over the soak: medians of its second quarter and of its last, and their ratio."""

    figure: str
    second_quarter: float
    last_quarter: float
    ratio: float
    largest: float


def trend_of(figure: str, values: Sequence[float]) -> Trend:
    """Return a figure's trend; the first quarter is warm-up. Needs eight values at least. Pure."""
    quarter = len(values) // 4
    second, last = statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])
    return Trend(figure, second, last, last / second if second else float("inf") if last else 1.0, max(values))


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Return the trend of every figure that must stay flat."""
    figures = ("driver_mb", "agent_mb", "table_files", "checkpoint_files", "checkpoint_bytes", "savepoint_bytes")
    columns = {name: [getattr(sample, name) for sample in samples] for name in figures}
    return [trend_of(name, [value for value in column if value is not None]) for name, column in columns.items()]


class Soak:
    """One soak over one lab."""

    def __init__(self, lab: Lab, minutes: float, records_file: Path, progress: Progress) -> None:
        """Create a soak of so many minutes; samples and faults go to `records_file` as JSON lines."""
        self._lab = lab
        self._seconds = minutes * 60
        self._file = records_file
        self._progress = progress
        self._moments = random.Random(lab.seed)  # noqa: S311 (test data, not a secret)
        self._began = time.monotonic()
        self._over = threading.Event()
        self.samples: list[Sample] = []
        self.faults: list[str] = []
        self.errors: list[str] = []

    def run(self) -> None:
        """Prepare the tables, feed, break, sample, and end with the stream at rest at the end of the log."""
        lab = self._lab
        lab.produce(lab.next_plan(records=CHAPTER, closing=False))
        lab.run_to_end()
        rebuild_served(
            lab.home, lab.definition
        )  # the agent would make it, but retention is changed while nothing writes
        for path in tables_of(lab.home.tables).values():
            TableCare(path).set_retention(
                log=KEPT, removed=KEPT
            )  # hours, in the product; here they must pass within the soak
        lab.start_agent()
        write_intent(lab.home, "running", by="soak", now=utc_now())
        threads = [
            threading.Thread(target=self._every, args=(every, work), name=work.__name__, daemon=True)
            for every, work in (
                (12.0, self._feed),
                (SAMPLE_S, self._sample),
                (UPKEEP_S, self._keep_up),
                (ROTATE_S, self._rotate),
            )
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() - self._began < self._seconds:
            time.sleep(FAULT_S * self._moments.uniform(0.8, 1.2))
            self._break()
        self._over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        self._settle()

    def _every(self, every_s: float, work: Callable[[], None]) -> None:
        while not self._over.wait(every_s):
            try:
                work()
            except (RivertwiceError, OSError, psutil.Error) as error:
                self._note("error", f"{work.__name__}: {type(error).__name__}: {error}")
                self.errors.append(f"{work.__name__}: {error}")

    def _feed(self) -> None:
        lab = self._lab
        ends = {lab.topic: kafka.end_offsets(lab.settings, lab.topic)}
        if lag_of(path_ledger(lab.home)[-1].end_offsets, ends) < LAG:
            lab.produce(lab.next_plan(records=CHAPTER, closing=False))

    def _keep_up(self) -> None:
        for report in keep_up(self._lab.home, now=utc_now()):
            if report.deleted:
                self._note(
                    "upkeep", f"{report.table} {report.files_before} to {report.files_after}, {report.deleted} deleted"
                )

    def _rotate(self) -> None:
        savepoint = take_savepoint(self._lab.settings, PIPELINE, now=utc_now(), reason="soak")
        report = prune_savepoints(self._lab.home, keep=2, now=utc_now())
        self._note("rotation", f"{savepoint.id}, pruned {len(report.deleted)}")

    def _sample(self) -> None:
        home, owner = self._lab.home, lease_owner(self._lab.home)
        agent = agent_status(self._lab.settings)
        checkpoint = sizes_below(self._lab.checkpoint)
        sample = Sample(
            at_s=round(time.monotonic() - self._began, 1),
            driver_mb=None if owner is None else _memory_mb((owner.pid, owner.jvm_pid)),
            agent_mb=None if agent is None else _memory_mb((agent.pid,)),
            table_files=sum(1 for _ in files_below(home.root / "tables")),
            checkpoint_files=len(checkpoint),
            checkpoint_bytes=sum(checkpoint.values()),
            savepoint_bytes=sum(sizes_below(home.savepoints).values()),
            batches=len(path_ledger(home)),
        )
        self.samples.append(sample)
        self._write({"kind": "sample", **asdict(sample)})

    # ---- faults

    def _break(self) -> None:
        faults = (self._kill_driver, self._kill_jvm, self._kill_agent, self._freeze_driver, self._drain_by_signal)
        fault = self._moments.choice(faults)
        owner = lease_owner(self._lab.home)
        outcome = "no driver is running at this moment" if owner is None else fault(owner)
        self.faults.append(fault.__name__)
        self._note("fault", f"{fault.__name__.strip('_')}: {outcome}")

    def _kill_driver(self, owner: Owner) -> str:
        self._lab.kill_pid(owner.pid)
        return f"killed pid {owner.pid} (epoch {owner.epoch})"

    def _kill_jvm(self, owner: Owner) -> str:
        if owner.jvm_pid is None or not psutil.pid_exists(owner.jvm_pid):
            return "its JVM is not there yet"
        self._lab.kill_pid(owner.jvm_pid)
        return f"killed JVM {owner.jvm_pid} (epoch {owner.epoch})"

    def _kill_agent(self, owner: Owner) -> str:
        agent = agent_status(self._lab.settings)
        if agent is not None:
            self._lab.kill_pid(agent.pid)
        self._lab.start_agent()
        return f"killed the agent; driver {owner.pid} (epoch {owner.epoch}) continues"

    def _freeze_driver(self, owner: Owner) -> str:
        frozen = [pid for pid in (owner.pid, owner.jvm_pid) if pid is not None]
        with contextlib.suppress(psutil.NoSuchProcess):
            for pid in frozen:
                psutil.Process(pid).send_signal(signal.SIGSTOP)
            time.sleep(15)
        with contextlib.suppress(psutil.NoSuchProcess):
            for pid in frozen:
                psutil.Process(pid).send_signal(signal.SIGCONT)
        return f"stopped pid {owner.pid} for 15 s and let it continue"

    def _drain_by_signal(self, owner: Owner) -> str:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(owner.pid).terminate()
        return f"asked pid {owner.pid} to drain by SIGTERM"

    # ---- the end

    def _settle(self) -> None:
        lab = self._lab
        lab.produce(lab.next_plan(records=CHAPTER))
        write_intent(lab.home, "stopped", by="soak", now=utc_now())
        ran_at = time.monotonic()

        def rests() -> bool:
            nonlocal ran_at  # a driver that was being started owns nothing yet, and is drained when it does
            ran_at = time.monotonic() if lease_owner(lab.home) is not None else ran_at
            return time.monotonic() - ran_at > REST_S

        lab.until(rests, PATIENCE_S, "the driver's end")
        lab.stop_agent()
        lab.run_to_end(patience_s=READING_S)

    def _note(self, kind: str, text: str) -> None:
        at_s = round(time.monotonic() - self._began, 1)
        self._write({"kind": kind, "at_s": at_s, "text": text})
        if kind != "upkeep":
            self._progress(f"{at_s:7.1f} s  {kind}: {text}")

    def _write(self, line: dict[str, Any]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def run_soak(settings: Settings, folder: Path, *, seed: int, minutes: float, progress: Progress) -> dict[str, Any]:
    """Run a soak in `folder` on a broker of its own; return verdict, trends and counts."""
    own = replace(settings, home=folder / "broker-home", bootstrap=None)
    broker = start_broker(own)
    try:
        lab = Lab(replace(own, bootstrap=broker.bootstrap), folder / "run", seed)
        try:
            soak = Soak(lab, minutes, folder / "soak.jsonl", progress)
            soak.run()
            judgement = lab.judge()
            return {
                "seed": seed,
                "minutes": minutes,
                "judgement": asdict(judgement),
                "faults": {name: soak.faults.count(name) for name in sorted(set(soak.faults))},
                "kills": lab.kills,
                "errors": soak.errors,
                "batches": soak.samples[-1].batches,
                "trends": [asdict(trend) for trend in trends(soak.samples)],
            }
        finally:
            lab.close(keep=True)
    finally:
        stop_broker(own)


def _memory_mb(pids: Sequence[int | None]) -> float | None:
    try:
        return round(sum(psutil.Process(pid).memory_info().rss for pid in pids if pid is not None) / 1e6, 1)
    except psutil.NoSuchProcess:
        return None


def main() -> int:
    """Run a soak from the command line; exit 0 only if nothing was lost, duplicated, wrong or unexplained."""
    parser = argparse.ArgumentParser(prog="python -m lab.faults.soak", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where everything of the run lies; kept")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)

    def tell(line: str) -> None:
        sys.stderr.write(line + "\n")

    result = run_soak(Settings.from_env(), asked.folder, seed=asked.seed, minutes=asked.minutes, progress=tell)
    sys.stdout.write(json.dumps(result, indent=2, sort_keys=True, default=str) + "\n")
    exact = not any(result["judgement"][name] for name in ("lost", "duplicated", "wrong", "unexplained"))
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
