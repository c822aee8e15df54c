"""A backfill of 20 chunks by Airflow's DAG against the same backfill by the command: wall and CPU-seconds. Report only.

`python -m lab.bench.airflow_backfill [--rounds 3] [--windows 8]`. The log and the pipeline are those of `bench.minutes`; a chunk has so many
windows of 6,000 records. Each round takes windows of its own, in some 20 chunks, and both ways compute, audit and publish them, in turn:

- the command: `rivertwice backfill run --id`, over a copy of the home. Its process from start to end.
- the DAG: a real Airflow, from the request of a run until its task `publish` has ended. CPU-seconds are those of all processes of
  Airflow's services until the run is over; what they spend at rest in the same time is told too. The agent's are left out.

Airflow and the agent run beside both ways. A plan cuts chunks of two million records; here the project's own DAG file makes them smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import psutil

from homes.project import link
from lab.bench.measure import describe, run_measured
from lab.bench.minutes import NAME, fill, make_minutes_project, stream, windows
from lab.bench.reconcile import STEP_MS, WINDOW_MS
from rivertwice.agent.launch import start_agent, stop_agent
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.backfill.model import BackfillRequest
from rivertwice.backfill.prepare import make_plan
from rivertwice.backfill.store import list_backfills, load_backfill_plan, save_plan
from rivertwice.core.instants import TimeRange, to_iso, utc_now
from rivertwice.core.processes import session_members
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import airflow_home, client
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.timeline.intent import write_intent
from servers.airflow import run_dag, start_quiet_airflow, stop_quiet_airflow

TOPIC = "bench-airflow"
CHUNKS = 20
DAG_ID = f"backfill__{NAME}"
REST_S = 20.0
DAG_FILE = """# Airflow reads a file for DAGs only if it has both words.
from rivertwice.backfill.plan import plan_backfill
from rivertwice.airflow.factory import every_dag

plan_backfill.__kwdefaults__["chunk_records"] = {records}
for dag in every_dag("backfill"):
    globals()[dag.dag_id] = dag
"""


@dataclass(frozen=True)
class Side:
    """One backfill by one way; `part_s` is what only its Spark application took, if that is known."""

    wall_s: float
    cpu_s: float
    part_s: float


def no_spark() -> object:
    message = "windows are planned without Spark"
    raise RuntimeError(message)


def by_command(settings: Settings, folder: Path, range_: TimeRange, records: int) -> Side:
    """Run the command over a copy of the home."""
    copied = replace(settings, home=folder / "home")
    shutil.copytree(settings.pipeline(NAME).root, copied.pipeline(NAME).root)
    request = BackfillRequest(NAME, range_, "bench")
    plan = save_plan(copied.pipeline(NAME), make_plan(copied, request, no_spark, chunk_records=records))  # type: ignore[arg-type]
    print(f"    {len(plan.chunks)} chunks of {plan.windows} windows")
    command = [sys.executable, "-m", "rivertwice.cli.main", "backfill", "run", NAME, "--yes", "--id", plan.id]
    cost = run_measured(command, {**os.environ, **copied.to_env()}, folder / "log")
    return Side(cost.wall_s, cost.cpu_s, cost.wall_s)


def service_pids(settings: Settings) -> list[int]:
    services = json.loads(airflow_home(settings).services.read_text())["services"]
    return [mark["pid"] for mark in services.values()]


def spent(leaders: Iterable[int]) -> float:
    """Return the CPU-seconds of the living processes of sessions, with those of the children that they waited for."""
    total = 0.0
    for process in session_members(leaders):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def task_times(settings: Settings, run: str) -> dict[str, tuple[float, float]]:
    """Return when each task of a run began and ended, in seconds since the epoch."""
    with sqlite3.connect(f"file:{airflow_home(settings).database}?mode=ro", uri=True) as database:
        query = "SELECT task_id, start_date, end_date FROM task_instance WHERE run_id = ? AND end_date IS NOT NULL"
        rows = database.execute(query, (run,)).fetchall()
    return {name: (_epoch(start), _epoch(end)) for name, start, end in rows}


def _epoch(text: str) -> float:
    instant = datetime.fromisoformat(text)
    return (instant if instant.tzinfo else instant.replace(tzinfo=utc_now().tzinfo)).timestamp()


def by_airflow(settings: Settings, airflow: AirflowClient, range_: TimeRange) -> Side:
    """Run the DAG."""
    leaders, began = service_pids(settings), time.time()
    before = spent(leaders)
    conf: dict[str, object] = {"scope": "range", "start": to_iso(range_.start), "end": to_iso(range_.end)}
    run = run_dag(airflow, DAG_ID, conf, timeout=1800)
    cpu_s = spent(leaders) - before
    home = settings.pipeline(NAME)
    plan = load_backfill_plan(home, list_backfills(home)[-1])
    print(f"    {len(plan.chunks)} chunks of {plan.windows} windows")
    times = task_times(settings, run)
    for name, (start, end) in times.items():
        print(f"    {name}: began after {start - began:.1f} s, took {end - start:.1f} s")
    start, end = times["compute"]
    return Side(times["publish"][1] - began, cpu_s, end - start)


def run_rounds(settings: Settings, root: Path, rounds: int, per_chunk: int, chunk_records: int) -> None:
    """Run both ways in turn, and print their ratios."""
    airflow = client(settings)
    leaders = service_pids(settings)
    before = spent(leaders)
    time.sleep(REST_S)
    print(f"Airflow at rest: {(spent(leaders) - before) / REST_S:.2f} CPU-s a second", flush=True)
    pairs = []
    for number in range(rounds):
        range_ = windows(number * CHUNKS * per_chunk, CHUNKS * per_chunk)
        folder = root / f"copy-{number}"
        folder.mkdir()
        found = {}
        for name in ("airflow", "command") if number % 2 else ("command", "airflow"):
            if name == "airflow":
                side = by_airflow(settings, airflow, range_)
            else:
                side = by_command(settings, folder, range_, chunk_records)
            found[name] = side
            print(f"round {number + 1} {name}: {side.wall_s:.1f} s, {side.cpu_s:.1f} CPU-s, Spark {side.part_s:.1f} s")
            sys.stdout.flush()
        shutil.rmtree(folder)
        pairs.append((found["airflow"], found["command"]))
    print(f"wall, Airflow / command: {describe([a.wall_s / b.wall_s for a, b in pairs])}")
    print(f"wall, the task compute / command: {describe([a.part_s / b.part_s for a, b in pairs])}")
    print(f"CPU-seconds, Airflow / command: {describe([a.cpu_s / b.cpu_s for a, b in pairs])}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.airflow_backfill", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=8, help="windows of a chunk")
    arguments = parser.parse_args()
    per_window = WINDOW_MS // STEP_MS
    records = (arguments.rounds * CHUNKS * arguments.windows + 3) * per_window
    chunk_records = int((arguments.windows + 0.5) * per_window)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as name:
        root = Path(name)
        own = Settings(Settings.from_env().project, root / "broker", spark_master="local[2]")
        broker = start_broker(own)
        settings = make_minutes_project(root, broker.bootstrap, TOPIC, 200_000)
        link(settings.project, ("plugins", "spark_jobs"))
        (settings.project / "dags").mkdir()
        (settings.project / "dags" / "backfill.py").write_text(DAG_FILE.format(records=chunk_records))
        try:
            fill(settings, TOPIC, 0, records)
            run = stream(settings, root)
            print(f"streamed {run.records:,} records, {run.cost.cpu_s:.1f} CPU-s", flush=True)
            write_intent(settings.pipeline(NAME), "stopped", "bench", utc_now())
            start_agent(settings)
            start_quiet_airflow(settings)
            client(settings).wait_for_dags({DAG_ID}, timeout=180)
            run_rounds(settings, root, arguments.rounds, arguments.windows, chunk_records)
        finally:
            stop_quiet_airflow(settings)
            stop_agent(settings)
            stop_broker(own)


if __name__ == "__main__":
    main()
