"""Whether the advice of *Where the time goes* brings what it says: a stream as it is, and with the one setting that is advised, in turn.

    PYTHONPATH=.:tests .venv/bin/python -m lab.bench.advised [--pairs 3] [--only full partitions often] [--seconds 120]

Report only. A stream of flights runs with a setting that asks for advice; what `rivertwice status --time` would say is asked for, and the
stream runs again over the same log with that setting changed, each run in a home of its own. `full` and `partitions` read a log to its
end and compare the time of their batches, the driver's first one left out; `often` reads records that come steadily, and compares the
CPU-seconds of its processes, because there the time between batches is what is saved.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import psutil

from homes.project import TO_RUN, make_project
from lab.bench.many import PARTITIONS, SQL, YAML, produce_steadily
from lab.bench.measure import living_cpu_s, run_measured
from lab.bench.ours import our_command
from lab.flights.replay import ReplayRequest, replay
from rivertwice.agent.ring import LEVELS
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.log.kafka import ensure_topic
from rivertwice.read.time_advice import TimeAdvice
from rivertwice.read.where_time import describe_time
from rivertwice.timeline.batch_times import BatchTimes
from streams.flights import PIPELINE, make_flights_project

TOPIC, STEADY = "advised", "steady"
PINS: Mapping[str, Mapping[str, Any]] = {
    "full": {"max_offsets_per_trigger": 100},
    "partitions": {"max_offsets_per_trigger": 100, "shuffle_partitions": 16},
    "often": {"trigger": "0 seconds"},
}
SETTING = {"full": "max_offsets_per_trigger", "partitions": "shuffle_partitions", "often": "trigger"}
FLIGHTS, PER_S, WARM_S = 6_000, 20, 30.0
DAYS = (date(2013, 1, 1), date(2013, 1, 10))


@dataclass(frozen=True)
class Seen:
    """One run: what it took (seconds of its batches, or CPU-seconds a second), how many batches, and the advice."""

    took: float
    batches: int
    advice: tuple[TimeAdvice, ...]


def _advice(settings: Settings, name: str) -> tuple[TimeAdvice, ...]:
    definition = load_definition(settings.definition_folder(name))
    return tuple(describe_time(settings.pipeline(name), definition, LEVELS[0], utc_now()).advice)


def read_to_end(settings: Settings, folder: Path, pins: Mapping[str, Any]) -> Seen:
    """Run the flights to the end of their log."""
    own = make_flights_project(folder, bootstrap=settings.bootstrap_servers(), topic=TOPIC, pins=pins)
    run_measured(*our_command(own), folder / "log")
    batches = BatchTimes.newest(own.pipeline(PIPELINE))[1:]
    return Seen(sum(each.ms for each in batches) / 1000, len(batches), _advice(own, PIPELINE))


def read_steadily(settings: Settings, folder: Path, pins: Mapping[str, Any], seconds: float) -> Seen:
    """Run a stream while records come; of the first half minute nothing is counted."""
    texts = {"pipeline.yaml": YAML.format(name=STEADY, stream=dict(pins)), "transform.sql": SQL}
    own = make_project(folder, {STEADY: texts}, links=TO_RUN, bootstrap=settings.bootstrap_servers())
    command, env = our_command(own)
    command = [STEADY if word == PIPELINE else word for word in command if word != "--until-end"]
    over = threading.Event()
    sender = threading.Thread(target=produce_steadily, args=(own, [STEADY], PER_S, over))
    with (folder / "log").open("wb") as out:
        driver = subprocess.Popen(command, env={**env, "RIVERTWICE_SPARK_MASTER": "local[2]"}, stdout=out, stderr=out)
        sender.start()
        try:
            time.sleep(WARM_S)
            before = living_cpu_s(psutil.Process(driver.pid))
            time.sleep(seconds)
            took = (living_cpu_s(psutil.Process(driver.pid)) - before) / seconds
        finally:
            over.set()
            sender.join()
            driver.send_signal(signal.SIGTERM)
            driver.wait(120)
    return Seen(took, len(BatchTimes.newest(own.pipeline(STEADY))), _advice(own, STEADY))


def main() -> None:
    """Measure and print a row for each pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(PINS), choices=list(PINS))
    parser.add_argument("--seconds", type=float, default=120)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as root:
        settings = Settings(project=Settings.from_env().project, home=Path(root) / "home", spark_master="local[2]")
        start_broker(settings)
        try:
            ensure_topic(settings, STEADY, PARTITIONS)
            replay(settings, ReplayRequest(topic=TOPIC, days=DAYS, limit=FLIGHTS))
            for case in given.only:
                measure(settings, Path(root), case, given.pairs, given.seconds)
        finally:
            stop_broker(settings)


def measure(settings: Settings, root: Path, case: str, pairs: int, seconds: float) -> None:
    """Run one case in pairs."""

    def run(name: str, pins: Mapping[str, Any]) -> Seen:
        folder = root / f"{case}-{name}"
        folder.mkdir()
        return (
            read_steadily(settings, folder, pins, seconds) if case == "often" else read_to_end(settings, folder, pins)
        )

    said, saved = [], []
    for number in range(pairs):
        first = run(f"{number}-now", PINS[case])
        advice = next((each for each in first.advice if each.setting == f"stream.{SETTING[case]}"), None)
        if advice is None or advice.saves is None:
            others = ", ".join(each.setting for each in first.advice) or "none"
            print(
                f"{case}: no such advice after {first.batches} batches in {first.took:.1f} s; others: {others}",
                flush=True,
            )
            return
        to: Any = advice.to.replace(" s", " seconds") if case == "often" else int(advice.to)
        then = run(f"{number}-then", {**PINS[case], SETTING[case]: to})
        said.append(advice.saves)
        saved.append(1 - then.took / first.took)
        print(
            f"{case}: {advice.setting} {advice.now} -> {advice.to}: {first.took:.2f} -> {then.took:.2f} "
            f"({first.batches} -> {then.batches} batches), said {said[-1]:.0%}, saved {saved[-1]:.0%}",
            flush=True,
        )
    print(f"{case}: median said {statistics.median(said):.0%}, saved {statistics.median(saved):.0%}", flush=True)


if __name__ == "__main__":
    main()
