"""F13 to F16: zombies, double starts, half-killed drivers, drivers without memory; and an agent that is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import pairwise

from lab.faults.cases import case, require
from lab.faults.cases_driver import Reached, stop_at_step
from lab.faults.lab import Lab
from lab.faults.processes import jvm_of
from lab.faults.steps import Steps
from rivertwice.agent.launch import agent_status
from rivertwice.agent.memory import load_memory
from rivertwice.core.instants import utc_now
from rivertwice.storage.local import read_json, replace_json
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Exit, write_intent

LEASE_LOST = "lease_lost"


@case(
    "F13",
    "stopped in a batch; a successor is refused while it lives; continued, it finishes the log",
    proves=("failure-modes.md#two-drivers-and-halves-of-one",),
)
def stopped_and_continued(lab: Lab) -> None:
    """A stopped process still holds its lock: it owns the stream, and no other process may take it."""
    lab.produce()
    driver, steps = lab.start_driver(), lab.steps()
    batch = lab.random.randrange(1, 6)
    require(lab.kill_when(driver, lambda: steps.planned(batch), sig=signal.SIGSTOP), lab.log_end())
    before = (steps.last_planned(), steps.last_finished())
    successor = lab.start_driver()
    code = lab.wait(successor, 60)
    record = Exit.load(lab.home)
    require(code == 1, f"the successor of a stopped driver ended with {code}, it must be refused")
    require(record is not None and record.failure == LEASE_LOST, f"the refusal is recorded as {record}")
    require(before == (steps.last_planned(), steps.last_finished()), "the refused successor touched the checkpoint")
    lab.signal_group(driver, signal.SIGCONT)
    lab.until(lambda: steps.idle(lab.produced), 90, "the continued driver's end of the log")
    lab.kill_when(driver, lambda: True)
    lab.run_to_end()


def forget_the_living(lab: Lab) -> None:
    """Make the home as another host sees it: no lock of this system is held, and no process of it lives here."""
    (lab.home.lease / "lock").unlink()
    owner = read_json(lab.home.lease / "owner.json") or {}
    replace_json(lab.home.lease / "owner.json", {**owner, "jvm_pid": None, "jvm_started": None})


def outlive(lab: Lab, reached: Reached, hit: Reached) -> None:
    """Stop a driver in a batch, let a successor that knows nothing of it finish the log, then continue the zombie."""
    lab.produce()
    zombie, steps = lab.start_driver(), lab.steps()
    lab.fact("stops_beside_it", stop_at_step(lab, zombie, reached, hit, lab.random.randrange(1, 6)))
    forget_the_living(lab)
    lab.run_to_end()
    settled = steps.versions()
    record = Exit.load(lab.home)
    lab.signal_group(zombie, signal.SIGCONT)
    code = lab.wait(zombie, 90)
    ending = Exit.load(lab.home)
    lab.fact(
        "zombie_ended_as", None if ending is None or ending == record else f"{ending.failure}: {ending.message[:90]}"
    )
    require(code != 0, f"a driver whose successor has finished the log ended with {code}")
    require(steps.versions() == settled, "the zombie committed to the changelog after its successor")
    lab.produce(lab.next_plan(records=100))
    lab.run_to_end()


@case(
    "F13/zombie",
    "stopped after offsets/N, outlived by a successor on what looks like another host",
    quick=True,
    proves=("guarantees.md#what-everything-needs",),
)
def zombie_before_its_check(lab: Lab) -> None:
    """It wakes before it checks its lease for the last time: the epoch stops it."""
    outlive(lab, Steps.planned, lambda steps, n: not steps.published(n))


@case(
    "F13/late-zombie",
    "stopped with its files written, before its commit, and outlived",
    proves=("guarantees.md#what-everything-needs",),
)
def zombie_behind_its_check(lab: Lab) -> None:
    """It wakes after its last check: only the transaction (timeline, batch) can stop it."""
    outlive(lab, Steps.files_written, Steps.files_written)


@case(
    "F14",
    "two drivers started with a random gap",
    kills=1,
    proves=("howto-stream.md#what-a-crash-of-the-agent-leaves-behind", "guarantees.md#what-everything-needs"),
)
def double_start(lab: Lab) -> None:
    """One of them streams, the other ends with a named reason, whatever the gap."""
    lab.produce()
    gap_s = lab.random.choice([0.0, lab.random.uniform(0, 0.3), lab.random.uniform(0, 6)])
    drivers = [lab.start_driver()]
    time.sleep(gap_s)
    drivers.append(lab.start_driver())
    lab.fact("gap_s", round(gap_s, 2))
    lab.until(lambda: any(each.poll() is not None for each in drivers), 60, "the end of one of two drivers")
    ended = [each for each in drivers if each.poll() is not None]
    record = Exit.load(lab.home)
    require(len(ended) == 1 and ended[0].returncode == 1, f"of two drivers {[each.poll() for each in drivers]} ended")
    require(record is not None and record.failure == LEASE_LOST, f"the loser is recorded as {record}")
    winner = next(each for each in drivers if each.poll() is None)
    steps = lab.steps()
    lab.kill_when(winner, lambda: steps.finished(lab.random.randrange(4, 9)))
    lab.run_to_end()


@case("F15", "the JVM of a driver killed, then the Python of one", kills=2)
def half_killed(lab: Lab) -> None:
    """Either half ends when the other is gone, and the next start waits for both."""
    lab.produce()
    driver, steps = lab.start_driver(), lab.steps()
    batch = lab.random.randrange(1, 5)
    lab.until(lambda: steps.planned(batch), 60, f"offsets/{batch}")
    jvm = jvm_of(driver)
    require(jvm is not None, "the driver has no JVM although it streams")
    if jvm is not None:
        lab.kill_pid(jvm.pid)
    code = lab.wait(driver, 60)
    require(code != 0, f"a driver whose JVM was killed ended with {code}")
    driver, steps = lab.start_driver(), lab.steps()
    batch = steps.last_planned() + lab.random.randrange(2, 5)
    lab.until(lambda: steps.planned(batch), 60, f"offsets/{batch}")
    driver.kill()
    driver.wait()
    lab.kills += 1
    lab.run_to_end()


def _breaks(lab: Lab, small: str) -> None:
    """Let an agent run a driver that cannot live; it must stop trying. Then give it what it needs."""
    lab.produce()
    write_intent(lab.home, "running", "lab", utc_now())
    os.environ["_JAVA_OPTIONS"] = small
    try:
        with lab.agent():
            lab.until(lambda: load_memory(lab.settings, lab.pipeline).broken_at is not None, 240, "the circuit's break")
            memory = load_memory(lab.settings, lab.pipeline)
            classes = [str(each.failure) for each in memory.failures]
            gaps = [round((later.at - sooner.at).total_seconds(), 1) for sooner, later in pairwise(memory.failures)]
            time.sleep(6)
            require(lease_owner(lab.home) is None, "a driver runs although the agent has given up")
            starts = [event for event in events_of(lab) if event["kind"] == "start"]
            require(len(starts) == len(classes), f"{len(starts)} starts for {len(classes)} failures")
            require(len(starts) <= 6, f"{len(starts)} starts before the agent gave up: a crash loop")
            lab.fact("failures", classes)
            lab.fact("seconds_between", gaps)
    finally:
        os.environ.pop("_JAVA_OPTIONS")
    require((lab.settings.home / "alerts.jsonl").exists(), "nobody was paged")
    lab.run_to_end()


def events_of(lab: Lab) -> list[dict[str, str]]:
    """Return the agent's events of the run's pipeline."""
    path = lab.settings.home / "agent" / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [event for event in events if event["pipeline"] == lab.pipeline]


@case("F16", "a driver that runs out of memory: the agent backs off, breaks the circuit and pages")
def out_of_memory(lab: Lab) -> None:
    """The JVM's class space is too small for the stream, so its OutOfMemoryError is certain; it comes in the start.

    The class archive would take most classes out of that space.
    """
    _breaks(lab, "-XX:MaxMetaspaceSize=72m -Xshare:off")


@case("F16/heap", "a heap too small for Spark to start at all")
def heap_too_small(lab: Lab) -> None:
    """Spark refuses less than 450 MB."""
    _breaks(lab, "-Xmx200m")


@case("F6/agent", "the agent killed while the driver runs, then the driver under the next agent", kills=3)
def agent_killed(lab: Lab) -> None:
    """The driver outlives its agent and is adopted; a driver that dies while there is no agent is started again."""
    lab.produce()
    write_intent(lab.home, "running", "lab", utc_now())
    try:
        first = lab.start_agent()
        lab.until(lambda: lab.steps().last_finished() >= 1, 90, "the second batch under the agent")
        survivor = lease_owner(lab.home)
        lab.kill_pid(first.pid)
        require(agent_status(lab.settings) is None, "a killed agent counts as living")
        second = lab.start_agent()
        require(second.pid != first.pid, "the next agent is the killed one")
        lab.until(lambda: adopted(lab), 30, "the adoption of the running driver")
        require(lease_owner(lab.home) == survivor, "the next agent did not leave the running driver alone")
        lab.kill_pid(second.pid)
        if survivor is not None:
            lab.kill_pid(survivor.pid)
        lab.produce(lab.next_plan(records=200))
        lab.start_agent()
        lab.until(lambda: lab.steps().idle(lab.produced), 120, "the end of the log under the third agent")
        write_intent(lab.home, "stopped", "lab", utc_now())
        lab.until(lambda: lease_owner(lab.home) is None, 60, "the drain")
    finally:
        lab.stop_agent()


def adopted(lab: Lab) -> bool:
    """Say whether the agent that lives knows the driver that runs."""
    owner, known = lease_owner(lab.home), load_memory(lab.settings, lab.pipeline).driver
    return agent_status(lab.settings) is not None and owner is not None and known is not None and known.pid == owner.pid
