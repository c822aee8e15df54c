"""F56/airflow: Airflow, or a task of it, killed while `operate__NAME` compares, waits for a person and lets a version serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil

from lab.faults.cases import case, require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.retention_runs import ask
from lab.faults.strikes import Hold
from lab.faults.switch_dags import (
    RUN_S,
    SWITCH,
    airflow_over,
    approve,
    arm,
    await_end,
    await_question,
    compare_processes,
    disarm,
    kill_services,
    start,
)
from lab.faults.version_runs import (
    NEW,
    SWITCHED,
    UPGRADE,
    Rows,
    await_all_read,
    change_definition,
    public_rows,
    require_proved,
    require_served,
    require_switches,
    want,
)
from rivertwice.core.instants import utc_now
from rivertwice.local.airflow import SERVICES, client
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.served_stamp import serving_by_stamp
from rivertwice.versions.comparisons import newest_comparison

ALL, JOB, TASK, SCHEDULER = "all of Airflow", "the job", "the task", "the scheduler"
ORPHAN, CLEARED = "the scheduler, and the task continues without it", "the task, and the run is cleared"
WHILE_IT_COMPARES = (JOB, TASK, SCHEDULER, ALL)
WHILE_IT_ASKS = (*SERVICES, ALL)
WHILE_IT_SERVES = (TASK, ORPHAN, CLEARED, SCHEDULER, ALL)


@case(
    "F56/airflow",
    "Airflow, its scheduler or a task killed while the DAG of a switch compares, waits for a person and lets a version serve",
    kills=5,
)
def airflow_killed_in_a_switch(lab: Lab) -> None:
    """Airflow's own retry, or the next start, ends the run: one switch each, and consumers read one version's rows."""
    lab.produce(lab.next_plan(records=400, late_share=0.2, closing=False))
    write_intent(lab.home, "running", "lab", utc_now())
    with lab.agent():
        lab.until(lambda: lab.steps().idle(lab.produced), 180, "the end of the log")
        change_definition(lab)
        ask(lab, *UPGRADE)
        lab.produce(lab.next_plan(records=160, late_share=0.2))
        await_all_read(lab)
        want(lab, "stopped")
        rows = require_proved(lab)
        require(rows[PIPELINE] != rows[NEW], "both versions have the same rows")
        with airflow_over(lab):
            _switch(lab, {}, PIPELINE, NEW, rows)
            require_switches(lab, NEW)
            _switch(lab, {"version": PIPELINE}, NEW, PIPELINE, rows)
            require_switches(lab, NEW, PIPELINE)
    lab.run_to_end()
    require_served(lab, rows, PIPELINE, "in the end")


def _switch(lab: Lab, form: Mapping[str, Any], source: str, target: str, rows: dict[str, Rows]) -> None:
    """Let a version serve by the DAG, with a kill in each of its parts; then clear the run, which must change nothing."""
    number = lab.seed + (0 if target == NEW else 3)  # so that five seeds have each victim of each part
    strike, is_done = SWITCHED[number % len(SWITCHED)]
    hold = arm(lab, strike)
    airflow = client(lab.settings)
    run = airflow.trigger(SWITCH, {"act": "version.serve", **form})
    if target == NEW:
        _kill_while_it_compares(lab, WHILE_IT_COMPARES[number % len(WHILE_IT_COMPARES)])
    await_question(lab, run)
    _kill_while_it_asks(lab, WHILE_IT_ASKS[number % len(WHILE_IT_ASKS)])
    await_question(lab, run)
    approve(lab, run)
    victim = WHILE_IT_SERVES[number % len(WHILE_IT_SERVES)]
    lab.fact(f"{target}_serves", f"{victim} at: {strike.name}")
    pid = hold.await_held(RUN_S)
    disarm(lab)
    serving = target if is_done else source
    require(public_rows(lab) == rows[serving], f"at '{strike.name}' consumers do not read the rows of {serving}")
    _kill_while_it_serves(lab, victim, pid, hold, target)
    if victim == CLEARED:
        airflow.clear(SWITCH, run)
        if is_done:
            _require_refused(lab, run)
        else:
            await_question(lab, run)
            approve(lab, run)
            await_end(lab, run)
    else:
        if victim != ORPHAN:
            require(public_rows(lab) == rows[serving], f"{victim} killed at '{strike.name}': not the rows of {serving}")
        await_end(lab, run)
    require_served(lab, rows, target, "after the switch")
    airflow.clear(SWITCH, run)
    _require_refused(lab, run)
    require_served(lab, rows, target, "after a run that had ended was cleared")


def _kill_while_it_compares(lab: Lab, victim: str) -> None:
    """Kill while the Spark job that compares runs and has not stored its result."""
    lab.until(lambda: bool(compare_processes(lab)), RUN_S, "the job that compares")
    require(newest_comparison(lab.settings.pipeline(NEW)) is None, "the comparison is stored before its job was killed")
    lab.fact("compares", victim)
    job = compare_processes(lab)
    pids = {process.pid for process in job}
    if victim == JOB:
        for process in job:
            process.kill()
        lab.kills += 1
    elif victim == TASK:
        (task,) = {process.ppid() for process in job} - pids
        lab.kill_pid(task)
    else:
        _kill_and_start(lab, victim)


def _kill_while_it_asks(lab: Lab, victim: str) -> None:
    """Kill a service, or all of Airflow, while a person is asked."""
    lab.fact("asks", victim)
    kill_services(lab, SERVICES if victim == ALL else (victim,))
    start(lab)


def _kill_while_it_serves(lab: Lab, victim: str, pid: int, hold: Hold, target: str) -> None:
    """Kill while the task stands at a step of the switch."""
    if victim in (TASK, CLEARED):
        lab.kill_pid(pid)
    elif victim == ORPHAN:
        kill_services(lab, ("scheduler",))
        hold.release()
        lab.until(lambda: serving_by_stamp(lab.home) == target, 60, "the switch by a task whose scheduler is gone")
        lab.until(lambda: not psutil.pid_exists(pid), 60, "the end of that task")
        start(lab)
    else:
        _kill_and_start(lab, victim)


def _kill_and_start(lab: Lab, victim: str) -> None:
    kill_services(lab, ("scheduler",) if victim == SCHEDULER else SERVICES)
    start(lab)


def _require_refused(lab: Lab, run: str) -> None:
    """Require that a cleared run fails because its version serves already."""
    airflow = client(lab.settings)
    state = airflow.wait(SWITCH, run, RUN_S)
    said = airflow.failures(SWITCH, run)
    require(
        state == "failed" and ("serves already" in said or "which serves" in said),
        f"a run that was cleared after its switch ended as {state}: {said}",
    )
