"""upgrade: a changed definition continues from the state that the old one left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rivertwice.cockpit.previews import describe_base
from rivertwice.commands import candidates
from rivertwice.commands.asking import Consent, Preview, asks_first
from rivertwice.commands.frame import Frame, as_fields, as_table, example, pass_frame, to_plain
from rivertwice.commands.operations import (
    abandon_option,
    describe_steps,
    give_up,
    unproved_option,
)
from rivertwice.commands.options import name_argument

if TYPE_CHECKING:
    from rivertwice.savepoint.operations.upgrade import UpgradePlan

_WAYS = {
    "same": "nothing that matters changed",
    "resume": "continues from the old definition's state",
    "refused": "cannot continue from the old definition's state",
}


@click.command(
    epilog=example(
        "rivertwice upgrade flight_delays",
        "rivertwice upgrade flight_delays --yes",
        "rivertwice upgrade flight_delays --abandon",
        "rivertwice upgrade flight_delays --new-version --yes",
        "rivertwice upgrade flight_delays --new-version --recompute",
        "rivertwice upgrade flight_delays --savepoint sp-t1-120-0a1b2c3d --unproved --yes",
    )
)
@name_argument()
@click.option(
    "--savepoint",
    "savepoint_id",
    metavar="ID",
    shell_complete=candidates.savepoints,
    help="Build on this proved savepoint and replay what followed, instead of taking one now.",
)
@unproved_option
@abandon_option
@click.option(
    "--new-version",
    is_flag=True,
    help="Run the new definition beside the old one instead, as NAME@v2, with its past computed by batch.",
)
@click.option(
    "--recompute",
    is_flag=True,
    help="With --new-version: the definition need not differ; its past is computed again, as after a damaged state.",
)
@click.option(
    "--timeout",
    type=click.IntRange(1),
    default=180,
    show_default=True,
    help="With --new-version: seconds without a new micro-batch after which it no longer waits.",
)
@asks_first("the head moves to a new timeline with the changed definition", confirm=True)
@pass_frame
def upgrade(
    frame: Frame,
    name: str,
    consent: Consent,
    savepoint_id: str | None,
    unproved: bool,
    abandon: bool,
    new_version: bool,
    recompute: bool,
    timeout: int,
) -> None:
    """Continue a stream with its changed definition.

    What changed, and whether it can be done, is shown first. Filters, rules, schemas, late policy and watermark delay of one source may change: the stream drains, a savepoint
    of its checkpoint is taken, and a new timeline continues from there with the new definition; nothing is replayed. The agent
    proves that savepoint afterwards; until then the newest proved one before it is kept. What is served does not change. A change
    of what shapes the state (windows, keys, the transform) is refused. Exit 1 if it cannot be done.

    If stream.shuffle_partitions is not the number that runs, the state is rewritten into so many partitions on the way.

    With --new-version any change may be made: the new definition becomes NAME@v2, a stream with tables of its own beside
    NAME. Its past is computed by batch, its present streamed; the stream NAME goes on with the old definition, and serves.
    `rivertwice version compare NAME@v2` says when every difference has a cause.
    """
    from rivertwice.commands.versions import begin_beside
    from rivertwice.savepoint.operations.steps import UPGRADE
    from rivertwice.savepoint.operations.upgrade import show_upgrade, upgrade_stream

    frame.known_pipeline(name)
    if recompute and not new_version:
        message = "--recompute is for a version beside the running one: add --new-version, or leave it out"
        raise click.UsageError(message)
    if new_version:
        if savepoint_id is not None or unproved or abandon:
            message = "--new-version takes no savepoint and leaves nothing to abandon: leave --savepoint, --unproved and --abandon out"
            raise click.UsageError(message)
        begin_beside(frame, name, timeout, consent, recompute=recompute)
        return
    if abandon:
        give_up(frame, name, UPGRADE, consent, others=(savepoint_id,))
        return

    def preview() -> Preview:
        plan = show_upgrade(frame.settings, name, savepoint_id, unproved=unproved)
        return Preview(plan, lambda: describe_plan(plan), refused=plan.refusal is not None)

    if not consent.given(name, f"Drain {name} and continue it with its new definition?", preview):
        return
    done = upgrade_stream(frame.settings, name, savepoint_id, unproved=unproved, progress=frame.progress)
    report = to_plain(done.restore) | {"bundle": done.bundle, "changed": list(done.changed)}
    follows = _ROTATE if done.changed or done.restore.resumed else _SAME_STATE
    frame.emit(report, lambda: f"{as_fields(report)}\n\n{follows.format(name=name)}")


_ROTATE = (
    "take and prove a savepoint soon: those before the upgrade hold another definition's state (`rivertwice savepoint take {name}`, or the "
    "DAG rotate__{name})"
)
_SAME_STATE = (
    "savepoints from before hold the same state in its old layout: each can be restored, and is rewritten on the way"
)


def _describe_state(plan: UpgradePlan) -> str:
    """Return what becomes of the state's layout."""
    if plan.partitions is None:
        return f"laid out as now{f'; {plan.kept}' if plan.kept else ''}"
    before, after = plan.partitions
    return f"rewritten from {before} to {after} partitions by Spark, equal otherwise{f'; {plan.kept}' if plan.kept else ''}"


def describe_plan(plan: UpgradePlan) -> str:
    """Return a plan for people."""
    from rivertwice.savepoint.operations.upgrade import describe_change

    rows: list[list[Any]] = [
        ["definition", f"bundle {plan.old_bundle[:12]} to {plan.new_bundle[:12]}: {_WAYS[plan.way]}"],
        ["state", _describe_state(plan)],
        ["new timeline", f"leaves {plan.timeline} after its last batch, now {plan.batch}"],
        ["built on", describe_base(plan.savepoint, plan.origin)],
        ["replayed and compared", f"{plan.replay} recorded batches"],
        ["served", f"as now; {plan.publications} publications stay served"],
    ]
    parts = [as_table(("what", "how much"), rows, title=f"upgrade of {plan.pipeline}: nothing was changed")]
    if plan.changes:
        changed = [
            [*describe_change(change), plan.obstacles.get(change.component, "carried over")] for change in plan.changes
        ]
        parts.append(as_table(("component", "old", "new", "state"), changed))
    parts.append(describe_steps(plan.steps, plan.resumes))
    if plan.refusal is not None:
        parts.append(f"refused: {plan.refusal}")
    else:
        parts.append(f"to do it: rivertwice upgrade {plan.pipeline} --yes")
    return "\n\n".join(parts)
