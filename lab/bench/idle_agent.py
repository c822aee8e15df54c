"""What an idle agent costs as history grows: the share of a core, and the memory, of `rivertwice agent run` over a stopped pipeline.

`PYTHONPATH=tests .venv/bin/python -m lab.bench.idle_agent [LENGTH ...]` makes homes of so many batches (`bench.history`), starts the agent
as a user does, leaves it a minute for its first looks and upkeep, and measures the next two. No broker and no Spark is needed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from lab.bench.history import KEYS, LENGTHS, make_history
from lab.bench.measure import tree_cpu_s
from rivertwice.core.instants import utc_now
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.served import rebuild_served

WARM_S, SHOWN_S = 60.0, 120.0


def measure(folder: Path) -> tuple[float, float]:
    """Return the share of a core and the resident megabytes of an idle agent."""
    env = {**os.environ, "RIVERTWICE_PROJECT": str(folder / "project"), "RIVERTWICE_HOME": str(folder / "home")}
    command = [str(Path(sys.executable).with_name("rivertwice")), "agent", "run"]
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder)
    try:
        time.sleep(WARM_S)
        root = psutil.Process(agent.pid)
        before, began = tree_cpu_s(root), time.monotonic()
        time.sleep(SHOWN_S)
        after = tree_cpu_s(root)
        spent = sum(after[key] - before.get(key, 0.0) for key in after)
        return spent / (time.monotonic() - began), root.memory_info().rss / 1e6
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)


def main(lengths: list[int]) -> None:
    print("| batches / served rows | share of a core | MB |\n|---|---|---|")
    for batches in lengths:
        with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as root:
            folder = Path(root)
            home, bundle = make_history(folder, batches)
            rebuild_served(home, bundle.definition)
            write_intent(home, "stopped", by="bench", now=utc_now())
            share, megabytes = measure(folder)
            print(f"| {batches:,} / {batches * KEYS:,} | {share:.1%} | {megabytes:.0f} |", flush=True)


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or list(LENGTHS))
