"""F56: a new version killed around each step: its beginning, its load, each switch and the way back; the same command continues."""

from __future__ import annotations

from typing import Any

from lab.faults.cases import case, require
from lab.faults.cases_first_load import struck
from lab.faults.lab import PIPELINE, Lab
from lab.faults.reconcile_runs import require_passed
from lab.faults.retention_runs import ask
from lab.faults.strikes import AFTER, strike_command
from lab.faults.version_runs import (
    NEW,
    SWITCHED,
    UPGRADE,
    change_definition,
    keep_served,
    own_rows,
    public_rows,
    stream_beside,
)
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.served_stamp import serving_by_stamp
from rivertwice.timeline.version_records import read_versions

_BEGIN, _LOAD = "rivertwice.versions.begin", "rivertwice.backfill.load"
BEGUN = (
    struck("the definition stored, no version recorded", "rivertwice.definition.bundle:Bundle.save"),
    struck("the version recorded, nothing frozen", f"{_BEGIN}:record_version"),
    struck("the old definition frozen", "rivertwice.definition.bundle:Bundle.write_folder"),
    struck("both definitions frozen", "rivertwice.definition.bundle:Bundle.write_folder", AFTER, 2),
    struck("the load recorded", f"{_LOAD}:record_load"),
)
PUBLISHED = (
    struck("a backfill computed", f"{_LOAD}:compute_backfill"),
    struck("a backfill published", f"{_LOAD}:publish_backfill"),
)


@case(
    "F56",
    "a new version killed around each step: begun, loaded, switched and back; what consumers read is one version's rows",
    kills=len(BEGUN) + 1 + len(PUBLISHED) + 2 * len(SWITCHED),
)
def killed_in_an_upgrade_beside(lab: Lab) -> None:
    """It begins once, its past is published once, and each kill of a switch leaves the rows of one version, whole."""
    lab.produce(lab.next_plan(records=400, late_share=0.2, closing=False))
    lab.run_to_end()
    rebuild_served(lab.home, lab.definition)
    change_definition(lab)
    for strike in BEGUN:
        strike_command(lab, strike, *UPGRADE)
    require([each.name for each in read_versions(lab.home)] == [NEW], "the version was not recorded once")
    stream_beside(lab, killed=True)
    for strike in PUBLISHED:
        strike_command(lab, strike, *UPGRADE)
    said = ask(lab, *UPGRADE)
    require(said["version"] == NEW and said["load"] is not None, f"it began {said}")
    lab.produce(lab.next_plan(records=160, late_share=0.2))
    lab.run_to_end()  # the old definition goes on, whatever the project says
    stream_beside(lab)
    keep_served(lab)
    for name in (PIPELINE, NEW):
        require_passed(ask(lab, "reconcile", name))
    parity = ask(lab, "version", "compare", NEW)
    require(parity["passed"], f"the gate refuses: {parity['reasons']}")
    lab.fact("parity", f"{parity['rows']['equal']} equal, {parity['rows']['declared']} declared, {parity['late']} late")
    rows = {name: own_rows(lab, name) for name in (PIPELINE, NEW)}
    require(rows[PIPELINE] != rows[NEW], "both versions have the same rows")
    _switch(lab, PIPELINE, NEW, rows)
    _switch(lab, NEW, PIPELINE, rows)
    ask(lab, "version", "serve", NEW, "--yes")
    require(public_rows(lab) == rows[NEW], "the second switch shows other rows than the first one")
    ask(lab, "version", "serve", PIPELINE, "--yes")  # what the oracle knows
    require(public_rows(lab) == rows[PIPELINE], "after the way back consumers read other rows than before")


def _switch(lab: Lab, source: str, target: str, rows: dict[str, Any]) -> None:
    """Let another version serve, killed at each step; then once more, to its end."""
    for strike, is_done in SWITCHED:
        strike_command(lab, strike, "version", "serve", target, "--yes")
        serving = target if is_done else source
        require(
            public_rows(lab) == rows[serving],
            f"after '{strike.name}' consumers read other rows than those of {serving}",
        )
        keep_served(lab)
        require(public_rows(lab) == rows[serving], f"builds after '{strike.name}' changed what consumers read")
        require(serving_by_stamp(lab.home) == serving, f"{serving_by_stamp(lab.home)} serves after '{strike.name}'")
    said = ask(lab, "version", "serve", target, "--yes")
    require(not said["changed"], f"a switch that was done was done again: {said}")
