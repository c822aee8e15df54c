"""F23/agent-home: the disk of the whole home full under a running agent, for seconds or for a minute; then freed."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil

from lab.faults.cases import case, require
from lab.faults.cases_store import fill, small_disk, take_whole
from lab.faults.lab import Lab
from lab.faults.savepoint_runs import alerts, caught_up, events, kill_owned
from rivertwice.agent.disk import KIND
from rivertwice.agent.launch import agent_status
from rivertwice.agent.observe import RESERVE
from rivertwice.core.instants import utc_now
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.served_stamp import read_served_stamp

DISK_MB = 128
LEFT = 80_000
"""Bytes that may be free while the disk counts as full."""


@case(
    "F23/agent-home",
    "the disk of the home full under a running agent, then freed: the agent lives, reports it, and continues",
    kills=1,
    proves=("howto-stream.md#how-a-failure-is-answered",),
)
def agent_home_full(lab: Lab) -> None:
    """Nobody starts anything afterwards: the agent that met the full disk brings the stream to the end."""
    home = lab.settings.home
    disk = small_disk(home, DISK_MB)
    disk.__enter__()
    lab.at_end(lambda: disk.__exit__(None, None, None))
    lab.produce()
    write_intent(lab.home, "running", by="lab", now=utc_now())
    agent = lab.start_agent()
    batch, steps = lab.random.randrange(2, 6), lab.steps()
    lab.until(lambda: steps.finished(batch), 180, f"batch {batch}")
    filler = fill(home, lab.random.randrange(0, 60_000))
    lab.until(lambda: _said(lab), 120, "an alert of the full disk")
    held_s = lab.random.choice([lab.random.uniform(0, 10), lab.random.uniform(40, 70)])
    began = time.monotonic()
    while time.monotonic() - began < held_s:
        _refill(lab, DISK_MB << 20)
        require(psutil.pid_exists(agent.pid), f"the agent died on the full disk: {_agent_log(lab)}")
        time.sleep(0.5)
    lab.fact("full_s", round(held_s, 1))
    lab.produce(lab.next_plan(records=60))
    filler.unlink()
    for more in home.glob(".filler-*"):
        more.unlink()
    lab.until(lambda: f"{KIND}_over" in events(lab), 60, "word of the agent that there is room again")
    lab.until(lambda: caught_up(lab), 240, "the end of the log under the agent")
    newest = steps.last_finished()
    lab.until(
        lambda: (shown := read_served_stamp(lab.home)) is not None and shown.batch >= newest, 60, "what is served"
    )
    now = agent_status(lab.settings)
    require(now is not None and now.pid == agent.pid, f"another agent runs: {now}, before {agent.pid}")
    require((home / "agent" / "reserve").stat().st_size >= RESERVE, "no reserve is kept for the next message")
    lab.fact("starts", events(lab).count("start"))
    lab.fact("alerts", sorted(set(_kinds(lab))))
    lab.stop_agent()
    kill_owned(lab)
    lab.run_to_end()
    take_whole(lab)


def _kinds(lab: Lab) -> list[str]:
    return [alert["kind"] for alert in alerts(lab)]


def _said(lab: Lab) -> bool:
    """Say whether the agent has reported it; the room that it keeps for its message is left to it until then."""
    if KIND in _kinds(lab):
        return True
    _refill(lab, RESERVE)
    return False


def _refill(lab: Lab, most: int) -> None:
    """Fill the space that became free meanwhile, if it is less than `most` bytes: the disk stays full."""
    home = lab.settings.home
    free = psutil.disk_usage(str(home)).free
    if LEFT < free < most:
        with suppress(OSError), (home / f".filler-{len(list(home.glob('.filler-*')))}").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free - LEFT // 2)


def _agent_log(lab: Lab) -> str:
    path = lab.settings.home / "agent" / "log"
    return path.read_text(errors="replace")[-2000:] if path.exists() else "(no log)"
