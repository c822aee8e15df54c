"""A stream whose driver is killed with SIGKILL at seeded moments, and started again each time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rivertwice.log.flights import STORM
from rivertwice.log.replay import ReplayRequest, replay
from rivertwice.timeline.intent import read_heartbeat
from streamed_run import PIPELINE, StreamedRun, make_project, run_driver

PATIENCE_S = 240.0


@dataclass(frozen=True)
class Kill:
    """One kill: the epoch and the last committed batch when it struck."""

    epoch: int
    batch: int | None


def stream_with_kills(
    folder: Path, *, bootstrap: str, topic: str, kills: int, seed: int, limit: int | None = None
) -> tuple[StreamedRun, list[Kill]]:
    """Replay the stormy days, kill the driver `kills` times at seeded moments, then let it finish."""
    settings = make_project(folder, bootstrap=bootstrap, topic=topic)
    report = replay(settings, ReplayRequest(topic=topic, days=STORM, limit=limit))
    run = StreamedRun(settings, topic, report.planned)
    moments = random.Random(seed)
    per_kill = max(1, report.planned // 12 // (kills + 1))
    struck = [_kill_once(run, moments, folder / "driver.log", per_kill) for _ in range(kills)]
    run_driver(settings, folder / "driver.log")
    return run, struck


def _kill_once(run: StreamedRun, moments: random.Random, log: Path, per_kill: int) -> Kill:
    command = [sys.executable, "-m", "rivertwice.stream.driver", "--pipeline", PIPELINE]
    batches, pause_s = moments.randrange(0, 2 * per_kill), moments.uniform(0.0, 0.9)
    before = read_heartbeat(run.home)
    target = (-1 if before is None or before.batch is None else before.batch) + batches
    with log.open("ab") as out:
        driver = subprocess.Popen(
            command, env={**os.environ, **run.settings.to_env()}, stdout=out, stderr=subprocess.STDOUT
        )
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert driver.poll() is None, log.read_text()[-4000:]
        beat = read_heartbeat(run.home)
        mine = beat is not None and beat.pid == driver.pid
        if (mine and beat.state in {"running", "idle"} and (beat.batch or -1) >= target) or (mine and beat.lag == 0):
            break
        time.sleep(0.05)
    time.sleep(pause_s)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    beat = read_heartbeat(run.home)
    assert beat is not None
    return Kill(beat.epoch, beat.batch)
