"""F56/streams: both streams' drivers and the agent killed at each step of an upgrade, a switch and the way back; they run again by themselves."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

from lab.faults.cases import case, require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.retention_runs import ask
from lab.faults.savepoint_runs import command_log, start_command
from lab.faults.strikes import Hold
from lab.faults.version_runs import (
    NEW,
    SWITCHED,
    UPGRADE,
    Rows,
    await_all_read,
    change_definition,
    has_begun,
    owner_of,
    public_rows,
    require_proved,
    require_served,
    require_switches,
    want,
)
from rivertwice.core.instants import utc_now
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.version_records import read_versions

AGENT = "the agent"
VICTIMS = (PIPELINE, NEW, AGENT)


@case(
    "F56/streams",
    "the drivers of both versions and the agent killed while a version begins, is compared, serves and goes back",
    kills=5 + 2 * len(VICTIMS),
)
def killed_around_a_version(lab: Lab) -> None:
    """The agent, or the next one, starts them again: nobody repairs anything, and a command that ended is called again."""
    lab.produce(lab.next_plan(records=400, late_share=0.2, closing=False))
    write_intent(lab.home, "running", "lab", utc_now())
    try:
        lab.start_agent()
        lab.until(lambda: lab.steps().idle(lab.produced), 180, "the end of the log")
        change_definition(lab)
        _begin(lab)
        lab.produce(lab.next_plan(records=160, late_share=0.2))
        _kill(lab, PIPELINE)
        await_all_read(lab)
        rows = require_proved(lab)
        require(rows[PIPELINE] != rows[NEW], "both versions have the same rows")
        _compare(lab)
        _switch(lab, PIPELINE, NEW, rows)
        rows = _go_on(lab, NEW)
        _switch(lab, NEW, PIPELINE, rows)
        rows = _go_on(lab, PIPELINE)
        require_switches(lab, NEW, PIPELINE)
        want(lab, "stopped")
    finally:
        lab.stop_agent()
    lab.run_to_end()
    require_served(lab, rows, PIPELINE, "in the end")


def _begin(lab: Lab) -> None:
    """Begin the version; the old stream dies once it is recorded, then the agent, then the version's own driver."""
    upgrade = start_command(lab, *UPGRADE)
    lab.until(lambda: bool(read_versions(lab.home)), 120, "the version's record")
    _kill(lab, PIPELINE)
    lab.until(partial(has_begun, lab), 240, "the first batch of the version")
    _kill(lab, AGENT)
    _kill(lab, NEW, back=False)
    time.sleep(lab.random.uniform(0, 5))
    lab.start_agent()
    code = lab.wait(upgrade)
    lab.fact("upgrade_ended_as", code)
    if code != 0:
        ask(lab, *UPGRADE)
    require([each.name for each in read_versions(lab.home)] == [NEW], "the version was not recorded once")
    require(FirstLoad.load(lab.settings.pipeline(NEW)) is not None, "the version streams the whole log")


def _compare(lab: Lab) -> None:
    """Compare the versions while the stream that serves dies."""
    compare = start_command(lab, "version", "compare", NEW)
    time.sleep(lab.random.uniform(0, 12))
    _kill(lab, PIPELINE)
    code = lab.wait(compare)
    require(code == 0, f"the comparison ended with {code}: {command_log(lab)}")


def _switch(lab: Lab, source: str, target: str, rows: dict[str, Rows]) -> None:
    """Let another version serve; while the switch stands at one of its steps, all others die, and come back."""
    strike, is_done = lab.random.choice(SWITCHED)
    lab.fact(f"killed_before_{target}_serves", strike.name)
    hold = Hold(lab, strike)
    switch = hold.start("version", "serve", target, "--yes")
    hold.await_held()
    serving = target if is_done else source
    for victim in lab.random.sample(VICTIMS, len(VICTIMS)):
        _kill(lab, victim, back=False)
        require(public_rows(lab) == rows[serving], f"{victim} killed at '{strike.name}': not the rows of {serving}")
    if lab.random.random() < 0.5:  # they come back before the switch is done, or after it
        _come_back(lab)
    hold.release()
    code = lab.wait(switch)
    require(code == 0, f"the switch ended with {code}: {command_log(lab)}")
    _come_back(lab)
    require_served(lab, rows, target, "after the switch")
    again = ask(lab, "version", "serve", target, "--yes")
    require(not again["changed"], f"a switch that was done was done again: {again}")


def _go_on(lab: Lab, serving: str) -> dict[str, Rows]:
    """Stream another chapter; both versions are proved again, and consumers read those of one."""
    before = public_rows(lab)
    lab.produce(lab.next_plan(records=100, late_share=0.2))
    await_all_read(lab)
    rows = require_proved(lab)
    require_served(lab, rows, serving, "once the streams went on")
    require(len(rows[serving]) > len(before), "the streams went on, and nothing more is served")
    require({row[:2] for row in before} <= {row[:2] for row in rows[serving]}, "rows that were served are gone")
    return rows


def _kill(lab: Lab, victim: str, *, back: bool = True) -> None:
    """Kill a driver with its JVM, or the agent, and wait until a driver runs again, unless `back` is false."""
    if victim == AGENT:
        lab.kill_pid(lab.start_agent().pid)
        return
    lab.until(lambda: owner_of(lab, victim) is not None, 120, f"a driver of {victim}")
    owner = owner_of(lab, victim)
    assert owner is not None, "it was there"
    os.killpg(owner.pid, signal.SIGKILL)
    lab.kills += 1
    lab.until(lambda: owner_of(lab, victim) != owner, 30, f"the end of the driver of {victim}")
    if back:
        lab.until(lambda: owner_of(lab, victim) not in (None, owner), 180, f"another driver of {victim}")


def _come_back(lab: Lab) -> None:
    """Start an agent unless one lives, and wait until both streams run."""
    lab.start_agent()
    for name in (PIPELINE, NEW):
        lab.until(lambda name=name: owner_of(lab, name) is not None, 180, f"a driver of {name}")  # type: ignore[misc]
