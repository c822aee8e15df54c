"""What the cases of a switch by `operate__NAME` share: an Airflow over a lab's project, whose task `serve` can be stopped at one of its calls."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from lab.faults.cases import require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.strikes import Hold, Strike
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.core.processes import session_members
from rivertwice.local.airflow import SERVICES, client, start_airflow, stop_airflow
from rivertwice.storage.local import replace_json

SWITCH = f"operate__{PIPELINE}"
START_S = 300.0
RUN_S = 900.0
READING_S = 3.0
ARMED = "strike.json"
PUT = f'''
from pathlib import Path  # the lab: a task is stopped at a call, if a file asks for it

from lab.faults.struck import put_strike_of

put_strike_of(Path(__file__).with_name("{ARMED}"))
'''


@contextmanager
def airflow_over(lab: Lab) -> Iterator[None]:
    """Run an Airflow of the lab's own that knows `operate__NAME` alone."""
    repository = Path(os.environ.get("RIVERTWICE_PROJECT") or Path.cwd())
    for name in ("plugins", "spark_jobs"):
        (lab.settings.project / name).symlink_to(repository / name)
    dags = lab.settings.project / "dags"
    dags.mkdir()
    (dags / "operate.py").write_text((repository / "dags" / "operate.py").read_text() + PUT)
    try:
        start(lab)
        yield
    finally:
        stop_airflow(lab.settings)


def start(lab: Lab) -> None:
    """Start what does not run of Airflow, as `rivertwice up` does."""
    start_airflow(lab.settings, timeout=START_S)
    client(lab.settings).wait_for_dags({SWITCH}, timeout=START_S)


def arm(lab: Lab, strike: Strike) -> Hold:
    """Let the next task whose process makes a call be stopped there; `disarm` once it is."""
    hold = Hold(lab, strike)
    replace_json(lab.settings.project / "dags" / ARMED, hold.strike.plain(str(hold.folder)))
    return hold


def disarm(lab: Lab) -> None:
    """Let no further process be stopped."""
    (lab.settings.project / "dags" / ARMED).unlink()


def kill_services(lab: Lab, names: Sequence[str] = SERVICES) -> None:
    """Kill services of Airflow; if all of them, with every task that they run."""
    marks = json.loads((lab.settings.home / "airflow" / "services.json").read_text())["services"]
    pids = [marks[name]["pid"] for name in names]
    struck = session_members(pids) if set(names) == set(SERVICES) else [psutil.Process(pid) for pid in pids]
    for process in struck:
        process.kill()
    psutil.wait_procs(struck, timeout=20)
    lab.kills += len(names)


def compare_processes(lab: Lab) -> list[psutil.Process]:
    """Return the processes of the Spark job that compares: `spark-submit`, its JVM and its Python."""
    marks = json.loads((lab.settings.home / "airflow" / "services.json").read_text())["services"]
    found = []
    for process in session_members([marks["scheduler"]["pid"]]):
        try:
            if any(word.endswith("spark_jobs/compare.py") for word in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def await_question(lab: Lab, run: str) -> None:
    """Wait until a run asks a person, and has asked for as long as one needs to read it.

    Airflow fails a task that is answered before its scheduler has heard that it waits: "finished with state success, but the task
    instance's state attribute is queued". That takes the scheduler up to a second.

    Raises:
        CaseFailedError: it failed instead.
    """
    airflow = client(lab.settings)

    def asks() -> bool:
        state = airflow.state(SWITCH, run)
        require(state != "failed", f"{SWITCH} failed before it asked: {_failures(airflow, run)}")
        return airflow.question(SWITCH, run, "approve") is not None

    lab.until(asks, RUN_S, f"the question of {SWITCH}")
    time.sleep(READING_S)


def approve(lab: Lab, run: str) -> None:
    """Answer what a run asks."""
    client(lab.settings).answer(SWITCH, run, "approve", "Approve")


def await_end(lab: Lab, run: str) -> None:
    """Wait for the end of a run, and require that it is a good one."""
    airflow = client(lab.settings)
    state = airflow.wait(SWITCH, run, RUN_S)
    require(state == "success", f"{SWITCH} ended as {state}: {_failures(airflow, run) if state != 'success' else ''}")
    tries = {task.task_id: task.try_number for task in airflow.tasks(SWITCH, run) if task.try_number > 1}
    lab.fact(f"tries_{len(lab.facts)}", tries)


def _failures(airflow: AirflowClient, run: str) -> str:
    return airflow.failures(SWITCH, run, 30)
