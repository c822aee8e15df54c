"""What a restore or a rewind would do, as rows for people: the command line, the page and the logs of DAGs show the same. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rivertwice.log.addresses import Part, key_parts
from rivertwice.savepoint.manifest import RESTING

if TYPE_CHECKING:
    from rivertwice.savepoint.operations.restore import RestorePlan
    from rivertwice.savepoint.operations.rewind_plan import RewindPlan

Row = tuple[str, Any]
UNKNOWN_LATE = "not known: no reconcile of this head yet"


def describe_base(savepoint: str | None, origin: str | None) -> str:
    """Return what an operation is built on; a planned one takes its savepoint itself."""
    if savepoint != RESTING:
        return savepoint or "no proved savepoint"
    after = (
        "not proved afterwards: there is no proved savepoint" if origin is None else f"proved afterwards from {origin}"
    )
    return f"a savepoint of the drained checkpoint, {after}"


def restore_rows(plan: RestorePlan) -> list[Row]:
    """Return what a restore would do."""
    source = {None: "", "kafka": ", from Kafka"}.get(plan.source, ", from the archive: Kafka lacks some")
    return [
        ("savepoint", _describe_savepoint(plan)),
        ("position", f"batch {plan.batch} of timeline {plan.timeline}"),
        ("new timeline", f"leaves {plan.parent} after its last batch, now {plan.forks_at}"),
        ("replayed and compared", f"{plan.replay} recorded batches{source}"),
        ("served", "as now"),
    ]


def _describe_savepoint(plan: RestorePlan) -> str:
    if plan.savepoint == RESTING:
        return describe_base(plan.savepoint, plan.origin)
    return f"{plan.savepoint} ({'proved' if plan.proved else 'taken, not proved'})"


def damage_of(plan: RestorePlan) -> str | None:
    """Return what is wrong with the checkpoint that a planned restore would save, and what would be done instead."""
    if plan.damage is None:
        return None
    return f"the checkpoint is damaged: {plan.damage}; {plan.origin or 'no proved savepoint'} would be replayed instead"


def rewind_rows(plan: RewindPlan) -> list[Row]:
    """Return what a rewind would change."""
    remaining = [publication for publication in plan.publications if publication.keeps]
    where = "on the head's path" if plan.on_path else f"off the head's path; {plan.regained} batches count again"
    return [
        ("savepoint", f"{plan.savepoint} ({'proved' if plan.proved else 'taken, not proved'})"),
        ("fork", f"batch {plan.batch} of timeline {plan.timeline}, {where}"),
        ("would no longer count", f"{plan.batches} batches, up to batch {plan.head_batch} of timeline {plan.head}"),
        ("may change", f"{plan.windows} closed windows, {plan.rows} rows"),
        ("late records in them", UNKNOWN_LATE if plan.late is None else plan.late),
        ("dead letters in them", plan.dead),
        ("keep serving", f"{len(remaining)} of {len(plan.publications)} publications"),
        ("read again, from Kafka", f"{plan.records} records"),
        ("definition", "the savepoint's" if not plan.changed else f"changed in {', '.join(plan.changed)}"),
        ("takes about", "not known" if plan.estimate_s is None else f"{plan.estimate_s} s, and a driver's start"),
    ]


def reread_rows(plan: RewindPlan) -> list[dict[str, Any]]:
    """Return what is read again, by partition, or by `topic/partition` if there are several topics."""
    keys = key_parts(Part(part.topic, part.partition) for part in plan.reread)
    return [
        {
            "partition": keys[Part(part.topic, part.partition)],
            "start": part.start,
            "end": part.end,
            "log_begins": part.log_begins,
        }
        for part in plan.reread
    ]


def step_rows(plan: RestorePlan | RewindPlan) -> list[dict[str, Any]]:
    """Return the steps of an operation, in order."""
    return [{"number": step.number, "does": step.does, "state": step.state} for step in plan.steps]


def text_lines(plan: RestorePlan | RewindPlan, rows: list[Row]) -> list[str]:
    """Return rows and steps as lines for a log."""
    resumed = [] if plan.resumes is None else [f"{plan.resumes} was cut off and is resumed"]
    return [
        *(f"{what}: {how_much}" for what, how_much in rows),
        *resumed,
        *(f"step {step.number}: {step.does} ({step.state})" for step in plan.steps),
    ]
