"""F12/rewind: an explicit rewind killed at three of its moments, and resumed each time."""

from __future__ import annotations

from collections.abc import Callable

from lab.faults.cases import case, require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.savepoint_runs import Moment, kill_at, kill_owned, prove_listed, run_command, take
from rivertwice.savepoint.operations import record
from rivertwice.savepoint.operations.record import Rewind, read_rewinds
from rivertwice.savepoint.operations.rewind import show_rewind
from rivertwice.savepoint.operations.steps import REWIND
from rivertwice.timeline.ledger import read_ledger
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served import export_sha256, rebuild_served

COMMAND = ("savepoint", "rewind", PIPELINE, "--yes")
CATCHING_UP = "catching up"


def _under_way(lab: Lab, what: Callable[[Rewind], bool]) -> bool:
    return any(what(rewind) for rewind in read_rewinds(lab.home) if rewind.step < record.OperationStep.DONE)


def moments_of(lab: Lab) -> list[Moment]:
    """Return three moments of a rewind, in order; one of them is in the middle of the catch-up."""

    def reached(step: int) -> Moment:
        return Moment(REWIND.name_of(step), lambda: _under_way(lab, lambda operation: operation.step >= step))

    before = lab.random.randrange(record.OperationStep.RECORDED, record.OperationStep.BRANCHED + 1)
    after = lab.random.choice([record.OperationStep.COMPARED, record.OperationStep.MOVED])

    def catching_up() -> bool:
        rows = [row for row in read_ledger(lab.home) if row.timeline != "t1"]
        return len(rows) >= 2 and _under_way(lab, lambda operation: operation.step == record.OperationStep.BRANCHED)

    return [reached(before), Moment(CATCHING_UP, catching_up), reached(after)]


def served_of(lab: Lab) -> str:
    """Build the served table as the agent does, and return its hash."""
    rebuild_served(lab.home, lab.definition)
    return export_sha256(lab.home)


@case("F12/rewind", "a rewind killed at three of its moments and resumed each time", kills=5)
def killed_in_a_rewind(lab: Lab) -> None:
    """What is served changes once, with the head; the numbers that were shown are what then happened.

    The old head read its log in three pieces as they came, the new timeline reads it at a stretch: other batches, so
    other late rows.
    """
    lab.produce(lab.next_plan(records=230))
    driver, watch = lab.start_driver(), lab.steps()
    require(lab.kill_when(driver, lambda: watch.finished(3)), f"the driver ended before batch 3; {lab.log_end()}")
    taken = take(lab)
    lab.run_to_end()
    for records in (lab.random.randrange(90, 150), lab.random.randrange(90, 150)):
        lab.produce(lab.next_plan(records=records))
        lab.run_to_end()
    prove_listed(lab)
    before = [(row.timeline, row.batch, row.digest) for row in path_ledger(lab.home)]
    served = served_of(lab)
    plan = show_rewind(lab.settings, PIPELINE, taken.id)
    require(plan.refusals == () and plan.batches > 0, f"the rewind cannot be made: {plan.refusals}")
    struck = 0
    chosen = moments_of(lab)
    for moment in chosen:
        struck += kill_at(lab, COMMAND, moment)
        if moment.name == CATCHING_UP:
            kill_owned(lab)
        if head(lab.home) == "t1":
            require(served_of(lab) == served, f"what is served changed after '{moment.name}'")
    lab.fact("moments", ", ".join(moment.name for moment in chosen))
    lab.fact("struck", f"{struck}/{len(chosen)}")
    if head(lab.home) == "t1":
        run_command(lab, *COMMAND, "--stop-before-head")
        require(served_of(lab) == served, "what is served changed before the head moved")
        require([(row.timeline, row.batch, row.digest) for row in path_ledger(lab.home)] == before, "the path changed")
    if _under_way(lab, lambda _: True):
        run_command(lab, *COMMAND)
    (done,) = read_rewinds(lab.home)
    require(
        done.step == record.OperationStep.DONE and head(lab.home) == done.child,
        f"the rewind ended at {REWIND.name_of(done.step)}",
    )
    own = [row for row in path_ledger(lab.home) if row.timeline == done.child]
    comparison = done.comparison or {}
    shown = (plan.records, plan.windows, plan.rows)
    happened = (
        sum(row.read for row in own),
        comparison["old_windows"],
        sum(comparison[k] for k in ("same", "differs", "only_old")),
    )
    require(shown == happened, f"records, windows and rows were shown as {shown}, it came to {happened}")
    lab.fact("read_again", plan.records)
    lab.fact("compared", {key: comparison[key] for key in ("same", "differs", "only_old", "only_new")})
    path = [(row.timeline, row.batch) for row in path_ledger(lab.home)]
    require(
        path[: plan.batch + 1] == [(line, batch) for line, batch, _ in before[: plan.batch + 1]], "the fork is wrong"
    )
    require(all(line == done.child for line, _ in path[plan.batch + 1 :]), "batches after the fork still count")
    served_of(lab)
    lab.produce(lab.next_plan(records=200))
    lab.run_to_end()
    served_of(lab)
    run_command(lab, "reconcile", PIPELINE)
    prove_listed(lab)
