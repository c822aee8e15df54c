"""F53: a planned restore or upgrade killed after each of its steps, and its proof killed with the agent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from lab.faults.cases import case, require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.lab_project import edit_definition
from lab.faults.savepoint_runs import (
    begin,
    caught_up,
    events_of,
    kill_owned,
    prove_listed,
    take,
)
from lab.faults.strikes import BEFORE, Strike, strike_command
from rivertwice.core.instants import utc_now
from rivertwice.definition.bundle import build_bundle
from rivertwice.savepoint.catalogue import ProofState, load_savepoint
from rivertwice.savepoint.operations import record
from rivertwice.savepoint.operations.record import Restore, read_restores
from rivertwice.savepoint.operations.steps import PLANNED_RESTORE
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.lineage import Timeline, path_ledger
from rivertwice.timeline.sequence import head

_EFFECTS = "rivertwice.savepoint.operations.effects"


def _recorded(step: int) -> Strike:
    """Return the kill right after a step is recorded: a run that continues records one step at a time."""
    return Strike(PLANNED_RESTORE.name_of(step), f"{_EFFECTS}:write_operation")


STRIKES = (
    _recorded(record.OperationStep.RECORDED),
    _recorded(record.OperationStep.CHECKED),
    _recorded(record.OperationStep.DRAINED),
    Strike("the savepoint's files put, not its manifest", "rivertwice.savepoint.manifest:Manifest.to_bytes", BEFORE),
    Strike("the savepoint taken, not recorded", "rivertwice.savepoint.operations.restore_checks:save_checkpoint"),
    _recorded(record.OperationStep.FORKED),
    Strike("the savepoint fetched, not recorded", "rivertwice.savepoint.catalogue:Savepoint.download"),
    _recorded(record.OperationStep.REPLAYED),
    _recorded(record.OperationStep.CREATED),
    Strike("the parent sealed", f"{_EFFECTS}:seal_timeline"),
    Strike("the head moved, not recorded", f"{_EFFECTS}:move_head"),
    _recorded(record.OperationStep.MOVED),
    _recorded(record.OperationStep.DONE),
)
"""Every step of a planned operation, in order; each run continues the one that was killed before."""

RESTORE = ("savepoint", "restore", PIPELINE, "--planned", "--yes")
UPGRADE = ("upgrade", PIPELINE, "--yes")


def prepare(lab: Lab) -> None:
    """Stream with a proved savepoint, from which the planned one is proved afterwards, and with batches after it."""
    begin(lab, 4)
    take(lab)
    lab.run_to_end()
    prove_listed(lab)


def change_limit(lab: Lab) -> None:
    """Change the definition so that an upgrade is possible; no record is between the limits, so the oracle's rules stay."""

    def change(document: dict[str, Any]) -> None:
        document["sources"]["events"]["max_record_bytes"] = 4095

    edit_definition(lab.settings, change)


def newest_restore(lab: Lab) -> Restore:
    """Return the newest restore or upgrade."""
    return read_restores(lab.home)[-1]


@case(
    "F53",
    "a planned restore (or upgrade) killed after every step and between them, then agent and proof killed while it is proved",
    kills=len(STRIKES) + 4,
)
def killed_in_a_planned_restore(lab: Lab) -> None:
    """One child, one head move, nothing replayed, nothing that counts changed; the next agent proves the savepoint."""
    prepare(lab)
    command = (RESTORE, UPGRADE)[lab.seed % 2]
    if command == UPGRADE:
        change_limit(lab)
    before = [(row.timeline, row.batch, row.digest) for row in path_ledger(lab.home)]
    for strike in STRIKES:
        strike_command(lab, strike, *command)
        after = [(row.timeline, row.batch, row.digest) for row in path_ledger(lab.home)]
        require(after == before, f"killed at '{strike.name}', it changed what counts")
    done = newest_restore(lab)
    require(
        done.step == record.OperationStep.DONE, f"after all kills it stands at '{PLANNED_RESTORE.name_of(done.step)}'"
    )
    require(
        (head(lab.home), done.replayed) == (done.child, 0), f"the head is {head(lab.home)}, {done.replayed} replayed"
    )
    if command == UPGRADE:
        bundle = build_bundle(lab.settings.definitions / PIPELINE).id
        require(Timeline.load(lab.home, done.child).bundle == bundle, f"{done.child} runs another definition")
    lab.fact("command", " ".join(command))
    lab.fact("restores", len(read_restores(lab.home)))
    lab.produce(lab.next_plan(records=120))
    write_intent(lab.home, "running", by="lab", now=utc_now())
    _kill_proof(lab, done.savepoint)
    lab.start_agent()
    lab.until(
        lambda: load_savepoint(lab.home, done.savepoint).status == ProofState.PROVED, 240, "the proof by the next agent"
    )
    lab.until(lambda: caught_up(lab), 120, "the end of the log")
    lab.stop_agent()
    kill_owned(lab)
    lab.run_to_end()
    require(path_ledger(lab.home)[-1].timeline == done.child, f"{done.child} committed nothing")


def _kill_proof(lab: Lab, savepoint: str) -> None:
    """Kill the agent, and its job at a moment of the proof."""
    agent = lab.start_agent()
    moments: dict[str, Callable[[], bool]] = {
        "fetched": lambda: any(lab.home.scratch.glob("prove-*/replayed")),
        "replaying": lambda: _logged(lab, " replayed: "),
        "comparing": lambda: _logged(lab, "comparing the state"),
    }
    name = lab.random.choice(sorted(moments))
    lab.until(moments[name], 240, f"the proof's moment '{name}'")
    lab.kill_pid(agent.pid)
    jobs = [event["pid"] for event in events_of(lab, "savepoint_due")]
    os.killpg(jobs[-1], signal.SIGKILL)
    lab.kills += 1
    require(load_savepoint(lab.home, savepoint).status != ProofState.PROVED, f"a proof killed at '{name}' counts")
    lab.fact("proof_killed", name)


def _logged(lab: Lab, text: str) -> bool:
    log = lab.home.logs / "savepoints.log"
    return log.exists() and text in log.read_text(errors="replace")
