"""F54: a driver killed while it places the batches of a backlog by event time: a draft, a placed batch, one that is not placed yet."""

from __future__ import annotations

from typing import Any

from lab.faults.cases import case, require
from lab.faults.lab import Lab
from lab.faults.lab_project import edit_definition
from lab.faults.strikes import AFTER, BEFORE, Strike, strike_driver
from rivertwice.timeline.lineage import path_ledger

_PLACING = "rivertwice.stream.placing"
STRIKES = (
    (Strike("the marker written, no plan", f"{_PLACING}:Placing._draft", BEFORE), True),
    (Strike("a draft that Spark wrote", f"{_PLACING}:replace_whole", BEFORE), True),
    (Strike("the ends replaced, the checksum not", f"{_PLACING}:checksum_of", BEFORE), True),
    (Strike("the ends replaced, the marker there", f"{_PLACING}:replace_whole", AFTER), True),
    (Strike("a placed batch computed, not committed", "rivertwice.stream.sink:changelog_rows", BEFORE, 3), False),
    (Strike("a batch committed, the next not placed", f"{_PLACING}:Placing.place_next", BEFORE, 2), False),
)
"""Each with whether the marker of a batch that is not placed is there afterwards."""


@case(
    "F54",
    "a driver killed while it places the batches of a backlog by event time: at the marker, draft, ends and between batches",
    kills=len(STRIKES),
)
def killed_while_catching_up(lab: Lab) -> None:
    """A draft is placed before anything of it runs; a placed batch keeps its range; the whole backlog is read once."""

    def change(document: dict[str, Any]) -> None:
        document["stream"]["catch_up_share"] = 0.5

    edit_definition(lab.settings, change)
    lab.produce(lab.next_plan(records=500, skew=0.5, late_share=0.05))
    for strike, has_marker in STRIKES:
        strike_driver(lab, strike)
        marker = lab.home.unplaced(lab.timeline)
        require(marker.exists() == has_marker, f"killed at '{strike.name}': the marker is there: {marker.exists()}")
    placed = [row.end_offsets for row in path_ledger(lab.home)]
    lab.run_to_end()
    rows = path_ledger(lab.home)
    require([row.end_offsets for row in rows[: len(placed)]] == placed, "committed batches have other ends")
    log = (lab.folder / "driver.log").read_text(errors="replace")
    require("is placed: it reads up to event time" in log, "no batch was placed")
    lab.fact("batches", len(rows))
