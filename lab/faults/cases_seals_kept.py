"""F51/upkeep, F51/rewind: tables rewritten by rivertwice itself between two reconciles, and a head that moves below a seal."""

from __future__ import annotations

from lab.faults.cases import case, require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.reconcile_runs import (
    REACHES_MS,
    REBUILD,
    RECONCILE,
    require_as_full,
    require_once,
    require_passed,
    seal,
    sealed_runs,
    stream_chapter,
)
from lab.faults.retention_runs import ask
from lab.faults.savepoint_runs import run_command, take
from rivertwice.core.instants import utc_now
from rivertwice.timeline.sequence import head
from rivertwice.timeline.upkeep import keep_up


@case(
    "F51/upkeep",
    "small files merged, then a value erased, each between two reconciles: verdicts stay those of --full",
    judge=False,
)
def rewritten_between(lab: Lab) -> None:
    """A merge of files changes no row, so the seal holds; an erasure changes rows, so all seals go and all is judged again.

    The oracle judges before the erasure: afterwards the log of Kafka, from which it counts, has other keys than the tables.
    """
    stream_chapter(lab)
    sealed = seal(lab)
    merge(lab)
    stream_chapter(lab, records=120, late_ms=REACHES_MS)
    answer = ask(lab, *RECONCILE)
    require_passed(answer)
    increment = answer["increment"]
    require(bool(increment) and increment["base"] == sealed, f"after a merge of files it builds on {increment}")
    require_as_full(lab, answer["run"])
    judgement = lab.judge()
    require(judgement.exact and judgement.rows > 0, f"not exact before the erasure: {judgement.findings[:3]}")
    erase(lab)
    require(sealed_runs(lab) == [], "seals are left of rows that were rewritten")
    answer = ask(lab, *RECONCILE)
    require_passed(answer)
    require(not answer["increment"], "a run after an erasure builds on a seal of before")
    require(len(sealed_runs(lab)) == 1, "a run after an erasure left no seal")
    require_once(lab)


def merge(lab: Lab) -> None:
    """Merge the small files of all tables, as upkeep does where there are many."""
    kept = keep_up(lab.home, 2, now=utc_now())
    merged = {each.table: f"{each.files_before} to {each.files_after}" for each in kept if "fewer" not in each.note}
    require("changelog" in merged, f"nothing of the changelog was merged: {kept}")
    lab.fact("merged", merged)


def erase(lab: Lab) -> None:
    """Erase a key from archive and tables."""
    run_command(lab, "admin", "archive", PIPELINE)
    value = f"k{lab.random.randrange(8)}"
    asked = ("--field", "k", "--value", value, "--as", "gone", "--reason", "lab", "--yes")
    run_command(lab, "admin", "privacy", "erase", PIPELINE, *asked)
    run_command(lab, *REBUILD)
    lab.fact("erased", value)


@case(
    "F51/rewind",
    "a rewind to before the newest seal: the seal below the fork is built on, or all is judged; as --full",
    kills=1,
)
def rewound_below_the_seal(lab: Lab) -> None:
    """Batches after the fork were sealed and do not count any more; what the new timeline emits is judged again."""
    lab.produce(lab.next_plan(records=200, late_share=0.2))
    driver, watch = lab.start_driver(), lab.steps()
    require(lab.kill_when(driver, lambda: watch.finished(2)), f"the driver ended before batch 2; {lab.log_end()}")
    taken = take(lab)
    lab.run_to_end()
    run_command(lab, *REBUILD)
    below = seal(lab)
    has_lower = lab.seed % 2 == 0
    taken = take(lab) if has_lower else taken
    stream_chapter(lab, records=120, late_ms=REACHES_MS)
    above = seal(lab)
    run_command(lab, "savepoint", "rewind", PIPELINE, taken.id, "--unproved", "--yes")
    require(head(lab.home) != "t1", "the head has not moved")
    run_command(lab, *REBUILD)
    answer = ask(lab, *RECONCILE)
    require_passed(answer)
    base = (answer["increment"] or {}).get("base")
    lab.fact("base", {None: "none", below: "the seal below the fork", above: "the seal above"}.get(base, base))
    require(base in ((below, None) if has_lower else (None,)), f"after the rewind it builds on {base}")
    require_as_full(lab, answer["run"])
    require_once(lab)
