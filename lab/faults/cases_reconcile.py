"""F50: a reconcile, and the build of what is served, killed around each of their commits, then run again."""

from __future__ import annotations

from lab.faults.cases import case, require
from lab.faults.lab import Lab
from lab.faults.reconcile_runs import (
    REACHES_MS,
    REBUILD,
    RECONCILE,
    require_as_full,
    require_once,
    require_passed,
    seal,
    stored_run,
    stream_chapter,
)
from lab.faults.retention_runs import ask
from lab.faults.savepoint_runs import run_command
from lab.faults.strikes import AFTER, BEFORE, Strike, strike_command
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.timeline.served import rebuild_served

_APPEND = "rivertwice.reconcile.results:_append_once"
_RUN = "rivertwice.reconcile.run:store_run"
BUILDS = (
    Strike("before the served rows", "rivertwice.timeline.served:_write", BEFORE),
    Strike("after the served rows and their stamp", "rivertwice.timeline.served:_write", AFTER),
)
UNSEEN = (
    Strike("before the verdicts", _RUN, BEFORE),
    Strike("after the verdicts", _APPEND, AFTER, 1),
    Strike("after the causes", _APPEND, AFTER, 2),
)
STORED = (
    Strike("after the run's row, before its seal", _RUN, AFTER),
    Strike("after the seal", "rivertwice.reconcile.run:store_seal", AFTER),
)


@case(
    "F50",
    "a reconcile and the build of what is served killed around each of their commits, then again: as --full says",
    kills=4,
)
def killed_in_a_reconcile(lab: Lab) -> None:
    """A run without its row does not exist; one without its seal is built on by none; no killed one changes a verdict."""
    stream_chapter(lab)
    sealed = seal(lab)
    before = stored_run(lab.home, sealed)
    lab.produce(lab.next_plan(records=160, late_share=0.2, late_ms=REACHES_MS))
    lab.run_to_end()
    for strike in BUILDS:
        strike_command(lab, strike, *REBUILD)
    built = rebuild_served(lab.home, lab.definition)
    require(not built.rebuilt, f"the build that was killed after its commit was made again: {built}")
    struck = [lab.random.choice(UNSEEN), lab.random.choice(STORED)]
    for strike in struck:
        strike_command(lab, strike, *RECONCILE)
        newest = newest_reconcile(lab.home)
        require(newest is not None, "no run is left")
        if strike in UNSEEN and newest is not None:
            require(newest["run"] == sealed, f"a run killed at '{strike.name}' is seen by readers")
        require(stored_run(lab.home, sealed) == before, f"a run killed at '{strike.name}' changed an older one")
    lab.fact("struck", [strike.name for strike in (*BUILDS, *struck)])
    answer = ask(lab, *RECONCILE)
    require_passed(answer)
    require(bool(answer["increment"]), "the run after the kills does not build on a seal")
    require_as_full(lab, answer["run"])
    require_once(lab)
    run_command(lab, *REBUILD, "--compare")
