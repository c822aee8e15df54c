"""F31/upgrade: a changed definition continues from the old one's state, killed after three of its steps."""

from __future__ import annotations

from lab.faults.cases import case, require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.savepoint_runs import Moment, begin, kill_at, prove_listed, run_command, take
from rivertwice.definition.bundle import build_bundle
from rivertwice.savepoint.operations import record
from rivertwice.savepoint.operations.record import read_restores
from rivertwice.savepoint.operations.steps import PLANNED_UPGRADE
from rivertwice.timeline.lineage import Timeline, path_ledger
from rivertwice.timeline.sequence import head

KILLS = 3
COMMAND = ("upgrade", PIPELINE, "--yes")


@case(
    "F31/upgrade",
    "a changed definition continues from the old one's state, killed after three steps",
    kills=1 + KILLS,
    proves=("architecture.md#decisions-that-changed-the-first-design",),
)
def upgraded(lab: Lab) -> None:
    """However often it is killed, the new definition runs after the old one's last batch, and nothing that counts changes."""
    begin(lab, 5)
    take(lab)
    lab.run_to_end()
    prove_listed(lab)
    lab.produce(lab.next_plan(records=100))
    before = [(row.timeline, row.batch, row.digest) for row in path_ledger(lab.home)]
    folder = lab.settings.definitions / PIPELINE
    text = (folder / "pipeline.yaml").read_text()  # no record is between the two limits, so the oracle's rules stay
    (folder / "pipeline.yaml").write_text(text.replace("max_record_bytes: 4096", "max_record_bytes: 4095"))
    chosen = sorted(lab.random.sample(range(record.OperationStep.RECORDED, record.OperationStep.MOVED + 1), KILLS))
    struck = 0
    for step in chosen:

        def is_reached(step: int = step) -> bool:
            return any(step <= operation.step < record.OperationStep.DONE for operation in read_restores(lab.home))

        struck += kill_at(lab, COMMAND, Moment(PLANNED_UPGRADE.name_of(step), is_reached))
    lab.fact("steps", ", ".join(PLANNED_UPGRADE.name_of(step) for step in chosen))
    lab.fact("struck", f"{struck}/{KILLS}")
    if (
        any(operation.step < record.OperationStep.DONE for operation in read_restores(lab.home))
        or head(lab.home) == "t1"
    ):
        run_command(lab, *COMMAND)
    now = head(lab.home)
    require(now is not None and now != "t1", "the head has not moved")
    require(Timeline.load(lab.home, str(now)).bundle == build_bundle(folder).id, f"{now} runs another definition")
    after = [(row.timeline, row.batch, row.digest) for row in path_ledger(lab.home)]
    require(after == before, "an upgrade changed what counts")
    lab.run_to_end()
    require(path_ledger(lab.home)[-1].timeline == now, "the new timeline committed nothing")
