"""A bug in production, found, fixed and switched under a running stream, over the year of flights; what that costs beside a replay.

`PYTHONPATH=tests .venv/bin/python -m lab.bench.new_version [--last N]` starts a broker and an agent of its own, and asks by the command line as a
person does. The bug: `delay_mean` is the mean of absolute delays. The stream with the bug reads all but the last N flights, then runs
while these come. Costs are CPU-seconds of process trees; a version's stream is the driver that the agent started. Beside it: a new
pipeline of the fixed definition in a home of its own that streams the whole log in the same batches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from homes.project import replace_text
from lab.bench.measure import Cost, living_cpu_s, run_measured, tree_cpu_s
from lab.flights.replay import ReplayRequest, replay
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.storage.table import Table
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served import export_sha256
from streams.flights import PIPELINE, make_flights_project

NEW = f"{PIPELINE}@v2"
FLIGHTS = 336_776
RIGHT, WRONG = "CAST(sum(dep_delay) AS DECIMAL(18, 0))", "CAST(sum(abs(dep_delay)) AS DECIMAL(18, 0))"
BATCH = 2_000
PATIENCE_S = 1_800
DECLARED = {
    "reason": "the mean was of absolute delays",
    "rows": [
        {
            "columns": ["delay_mean"],
            "where": "new.delay_mean < old.delay_mean",
            "reason": "early departures count as negative",
        }
    ],
}


class Run:
    """A home with an agent, and what each command of it cost."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self._folder = settings, folder
        self.cost = Cost(0.0, 0.0)
        self._env = {**os.environ, **settings.to_env()}

    def ask(self, *arguments: str, code: int = 0) -> Any:
        """Run a command and return what it printed as JSON; its cost is printed."""
        command = [sys.executable, "-m", "rivertwice.cli.main", "--output", "json", *arguments]
        answer = self._folder / "answer.json"
        begun = time.monotonic()
        with answer.open("wb") as out, (self._folder / "commands.log").open("ab") as err:
            child = subprocess.Popen(command, env=self._env, stdout=out, stderr=err)
            root = psutil.Process(child.pid)
            spent: dict[tuple[int, float], float] = {}
            while child.poll() is None:
                spent |= tree_cpu_s(root)
                time.sleep(0.1)
        self.cost = Cost(sum(spent.values()), time.monotonic() - begun)
        say(" ".join(arguments[:3]), self.cost)
        if child.returncode != code:
            said = answer.read_text()[-2000:] + (self._folder / "commands.log").read_text()[-2000:]
            message = f"{arguments} ended with {child.returncode}: {said}"
            raise RuntimeError(message)
        text = answer.read_text()
        return json.loads(text) if text else None

    def read(self, name: str) -> int:
        """Return how many records a version has read, or that a load by batch took over, since its first timeline began."""
        home = self.settings.pipeline(name)
        rows = path_ledger(home) if head(home) is not None else []
        return sum(end for parts in rows[-1].end_offsets.values() for end in parts.values()) if rows else 0

    def wait_for(self, name: str, records: int) -> None:
        """Wait until a version's stream has committed so many records of the log."""
        begun = time.monotonic()
        Deadline.after(PATIENCE_S).wait_until(lambda: self.read(name) >= records, every=0.5)
        print(f"| {name} caught up | | {time.monotonic() - begun:.1f} | {records:,} records |", flush=True)

    def driver_cpu_s(self, name: str) -> float:
        """Return what the driver of a version has spent by now."""
        owner = lease_owner(self.settings.pipeline(name))
        return 0.0 if owner is None else living_cpu_s(psutil.Process(owner.pid))

    def digest(self, step: str) -> None:
        """Print the SHA-256 of the rows of both versions, and which of them consumers read."""
        home = self.settings.pipeline(PIPELINE)
        sums = {name: export_sha256(self.settings.pipeline(name))[:16] for name in (PIPELINE, NEW)}
        table = Table(home.public_served).read()
        rows = 0 if table is None else table.num_rows
        print(f"| SHA-256 {step} | | | {sums}; {home.serving_version} serves, {rows:,} rows |", flush=True)


def say(what: str, cost: Cost) -> None:
    print(f"| {what} | {cost.cpu_s:.1f} | {cost.wall_s:.1f} | |", flush=True)


def fix(settings: Settings) -> None:
    replace_text(settings.definitions / PIPELINE / "transform.sql", WRONG, RIGHT)


def story(run: Run, topic: str, last: int) -> float:
    """Find the bug, fix it, switch, roll back, switch again; return the CPU-seconds of the version's past and present."""
    settings = run.settings
    run.ask("agent", "start")
    run.ask("start", PIPELINE)
    run.wait_for(PIPELINE, FLIGHTS - last)
    fix(settings)
    found = run.ask("try", PIPELINE)["rows"]
    print(f"| try found | | | {found['changed']} changed, {found['equal']} equal |")
    send = threading.Thread(target=replay, args=(settings, ReplayRequest(topic=topic)), daemon=True)
    send.start()  # the stream runs while the version begins
    begun = run.ask("upgrade", PIPELINE, "--new-version", "--yes")
    spent = run.cost.cpu_s
    print(f"| published by batch | | | {begun['load']} |")
    send.join()
    for name in (PIPELINE, NEW):
        run.wait_for(name, FLIGHTS)
    spent += run.driver_cpu_s(NEW)
    print(f"| the version's stream | {run.driver_cpu_s(NEW):.1f} | | |")
    for name in (PIPELINE, NEW):
        run.ask("admin", "rebuild", name)
        run.ask("reconcile", name)
    refused = run.ask("version", "compare", NEW, code=3)
    print(f"| refused | | | {refused['reasons']} |")
    path = settings.definitions / PIPELINE / "changes" / "v2.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(DECLARED))
    passed = run.ask("version", "compare", NEW)
    rows = passed["rows"]
    print(
        f"| compared | | | {rows['equal']} equal, {rows['declared']} declared, {passed['late']} late, {passed['left_out']} left out |"
    )
    run.digest("before")
    for name in (NEW, PIPELINE, NEW):
        run.ask("version", "serve", name, "--yes")
        for each in (PIPELINE, NEW):  # the agent does it with its next look
            run.ask("admin", "rebuild", each)
        run.digest(f"{name} serves")
    return spent


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.new_version", description=__doc__)
    parser.add_argument("--last", type=int, default=10_000, help="flights that come while the version begins")
    last = parser.parse_args(arguments).last
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        own = Settings(Settings.from_env().project, root / "broker", spark_master="local[2]")
        broker = start_broker(own)
        pins = {"max_offsets_per_trigger": BATCH, "catch_up_share": 0.1}
        sides = [
            make_flights_project(root / side, bootstrap=broker.bootstrap, topic="flights", pins=pins)
            for side in ("version", "replay")
        ]
        replace_text(sides[0].definitions / PIPELINE / "transform.sql", RIGHT, WRONG)
        run = Run(sides[0], root)
        try:
            print("| step | CPU-s | s | |\n|---|---|---|---|")
            replay(own, ReplayRequest(topic="flights", limit=FLIGHTS - last))
            spent = story(run, "flights", last)
            for name in (NEW, PIPELINE):
                run.ask("stop", name, "--wait")
            env = {**os.environ, **sides[1].to_env()}
            driver = [sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", PIPELINE, "--until-end"]
            cost = run_measured(driver, env, root / "replay.log")
            say("a replay through the stream", cost)
            print(
                f"| replay / version | {cost.cpu_s / spent:.2f} | | {spent:.1f} CPU-s of the upgrade and the version's stream |"
            )
        finally:
            env = {**os.environ, **run.settings.to_env()}
            for last_words in (["stop", NEW, "--wait"], ["stop", PIPELINE, "--wait"], ["agent", "stop"]):
                subprocess.run([sys.executable, "-m", "rivertwice.cli.main", *last_words], env=env, check=False)
            stop_broker(own)


if __name__ == "__main__":
    main()
