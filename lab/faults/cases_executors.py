"""F50/executors: executors judge a reconcile; one of their workers, or the driver before its one commit, is killed."""

from __future__ import annotations

import signal
from dataclasses import replace

from lab.faults.cases import case, require
from lab.faults.lab import Lab
from lab.faults.reconcile_runs import RECONCILE, require_as_full, require_once, stream_chapter
from lab.faults.savepoint_runs import command_log
from lab.faults.strikes import AFTER, BEFORE, IN_WORKER, Strike, start_struck, strike_command
from rivertwice.reconcile.results import newest_reconcile

BY_EXECUTORS = {"rivertwice.reconcile.observe:MOST_ROWS": -1}
"""So few rows are left to the driver: executors judge even the lab's."""
_WRITE = "rivertwice.storage.table:Table.write_files"
SPREAD = (
    Strike("executors wrote the verdicts' files", _WRITE, AFTER, 1, BY_EXECUTORS),
    Strike("executors wrote the causes' files", _WRITE, AFTER, 2, BY_EXECUTORS),
    Strike("the verdicts' files are committed", "rivertwice.reconcile.results:_append_once", AFTER, 1, BY_EXECUTORS),
)


@case(
    "F50/executors",
    "a reconcile by executors: one of them killed while it judges or writes, and the driver before its one commit; then again",
    kills=3,
)
def killed_executors(lab: Lab) -> None:
    """Files of a killed run are named by no commit; a worker that dies takes its task or the run with it, and no verdict."""
    stream_chapter(lab, late_share=0.3)
    for strike in (lab.random.choice(SPREAD[:2]), SPREAD[2]):
        strike_command(lab, strike, *RECONCILE)
        require(newest_reconcile(lab.home) is None, f"a run killed at '{strike.name}' is seen by readers")
    tries = (3, 1)[lab.seed % 2]
    worker = Strike("a worker that writes verdicts or causes", _WRITE, IN_WORKER, 1, BY_EXECUTORS)
    settings, lab.settings = lab.settings, replace(lab.settings, spark_master=f"local[2,{tries}]")
    code = lab.wait(start_struck(lab, worker, *RECONCILE))
    lab.settings = settings
    require(code != -signal.SIGKILL and (lab.folder / "worker-0").exists(), f"no worker was killed: {command_log(lab)}")
    lab.kills += 1
    lab.fact("struck", f"a worker, of whose task {tries} tries are made: the run ended with {code}")
    require((code == 0) == (tries > 1), f"with {tries} tries of a task the run ended with {code}: {command_log(lab)}")
    if code:
        require(newest_reconcile(lab.home) is None, "a run whose worker was killed is seen by readers")
        code = lab.wait(start_struck(lab, replace(worker, when=BEFORE, count=0), *RECONCILE))
        require(code == 0, f"executors cannot judge it again: {code}; {command_log(lab)}")
    newest = newest_reconcile(lab.home)
    require(newest is not None and newest["gate"]["passed"], "no run by executors passed")
    require("windows by executors" in command_log(lab, 100_000), "no executor judged anything")
    require_as_full(lab, "" if newest is None else newest["run"])
    require_once(lab)
