"""F53/rotten: the state of which a planned restore takes its savepoint had rotted."""

from __future__ import annotations

from lab.faults.cases import case, require
from lab.faults.cases_planned import RESTORE, newest_restore, prepare
from lab.faults.damage import break_file, state_files
from lab.faults.lab import Lab
from lab.faults.savepoint_runs import events, recover_under_agent, run_command
from rivertwice.savepoint.catalogue import ProofState, load_savepoint
from rivertwice.timeline.sequence import head


@case(
    "F53/rotten",
    "a file of the state rotten or gone before a planned restore: the child's first start finds it and falls back",
)
def rotten_before_a_planned_restore(lab: Lab) -> None:
    """The restore reads no state, so it takes a savepoint of a damaged one; the agent goes back to its origin, and loses nothing."""
    prepare(lab)
    kind = ("missing", "truncated", "zeroed")[lab.seed % 3]
    lab.fact("damage", break_file(state_files(lab.checkpoint, "changelog")[0], kind, lab.random))
    run_command(lab, *RESTORE)
    planned = newest_restore(lab)
    require(planned.replayed == 0 and head(lab.home) == planned.child, f"it was no planned restore: {planned}")
    lab.produce(lab.next_plan(records=120))
    answer = recover_under_agent(lab)
    require(answer == "fell back", f"the agent answered '{answer}': {events(lab)}")
    now = newest_restore(lab)
    require(now.savepoint == planned.origin, f"it fell back to {now.savepoint}, not to {planned.origin}")
    require(
        load_savepoint(lab.home, planned.savepoint).status != ProofState.PROVED, "a savepoint of rotten state is proved"
    )
    lab.run_to_end()
