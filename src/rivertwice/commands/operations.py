"""savepoint restore, rewind, fall-back: each can be shown, resumed and given up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rivertwice.commands.frame import REFUSED, Frame, as_fields, as_table, example, pass_frame, to_plain

if TYPE_CHECKING:
    from rivertwice.savepoint.operations.engine import ShownStep
    from rivertwice.savepoint.operations.fall_back import FallBackPlan
    from rivertwice.savepoint.operations.restore import RestorePlan
    from rivertwice.savepoint.operations.steps import Plan

unproved_option = click.option("--unproved", is_flag=True, help="Accept a savepoint that was taken and never proved.")
abandon_option = click.option(
    "--abandon", is_flag=True, help="Give what was cut off up; what serves goes on serving. Says what it leaves behind."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, step by step; do nothing.")


@click.command(
    epilog=example(
        "rivertwice savepoint restore flight_delays --dry-run",
        "rivertwice savepoint restore flight_delays sp-t1-120-0a1b2c3d --yes",
        "rivertwice savepoint restore flight_delays --from-beginning",
    )
)
@click.argument("name")
@click.argument("savepoint_id", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@unproved_option
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Of no savepoint: make the state again of all recorded batches, each compared.",
)
@dry_run_option
@abandon_option
@pass_frame
def restore(
    frame: Frame,
    name: str,
    savepoint_id: str | None,
    yes: bool,
    unproved: bool,
    from_beginning: bool,
    dry_run: bool,
    abandon: bool,
) -> None:
    """Continue NAME from a savepoint on a new timeline; what is served does not change.

    The stream drains, the recorded batches since the savepoint are replayed and checked, the new timeline forks at
    the last committed batch, and the head moves to it. Without an id: resume a restore that was cut off, else take the
    newest proved savepoint. From the beginning (where no savepoint can be trusted, or none is left) takes as long as
    the stream's whole history; what Kafka no longer has is fed from the archive. Exit 1 if it cannot be done.
    """
    from rivertwice.savepoint.beginning import BEGINNING
    from rivertwice.savepoint.operations.restore import restore_savepoint, show_restore
    from rivertwice.savepoint.operations.steps import RESTORE

    frame.known_pipeline(name)
    if from_beginning and (savepoint_id is not None or unproved or abandon):
        message = "--from-beginning takes no savepoint, so neither an id nor --unproved; an interrupted one is given up by --abandon alone"
        raise click.UsageError(message)
    if abandon:
        give_up(frame, name, RESTORE, yes=yes, others=(savepoint_id, dry_run))
        return
    chosen = BEGINNING if from_beginning else savepoint_id
    if dry_run:
        plan = show_restore(frame.settings, name, chosen, unproved=unproved)
        frame.emit(plan, lambda: describe_restore(plan))
        if plan.refusal is not None:
            raise SystemExit(REFUSED)
        return
    if not yes:
        what = chosen or "the newest proved savepoint"
        click.confirm(f"Drain {name} and continue it from {what} on a new timeline?", abort=True, err=True)
    report = to_plain(restore_savepoint(frame.settings, name, chosen, unproved=unproved, progress=frame.progress))
    frame.emit(report, lambda: as_fields(report))


@click.command(
    "fall-back",
    epilog=example(
        "rivertwice savepoint fall-back flight_delays --dry-run", "rivertwice savepoint fall-back flight_delays"
    ),
)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@abandon_option
@pass_frame
def fall_back(frame: Frame, name: str, yes: bool, dry_run: bool, abandon: bool) -> None:
    """Do by hand what the agent does when the live checkpoint of NAME is damaged.

    Of the proved savepoints on the head's path the newest that can be used is restored; one that is damaged, or whose
    replay disagrees, is passed over by name. Unlike a restore it leaves alone whether the stream is wanted. The dry run
    says, before anything is broken, which savepoint would be taken. Exit 1 if there is none.
    """
    from rivertwice.savepoint.operations.fall_back import describe_fallen, show_fall_back
    from rivertwice.savepoint.operations.fall_back import fall_back as do_fall_back
    from rivertwice.savepoint.operations.steps import RESTORE

    frame.known_pipeline(name)
    if abandon:
        give_up(frame, name, RESTORE, yes=yes, others=(dry_run,))
        return
    if dry_run:
        plan = show_fall_back(frame.settings, name)
        frame.emit(plan, lambda: describe_fall_back(plan))
        if plan.savepoint is None:
            raise SystemExit(REFUSED)
        return
    if not yes:
        click.confirm(f"Put the newest usable savepoint in the place of {name}'s checkpoint?", abort=True, err=True)
    began = time.monotonic()
    fallen = do_fall_back(frame.settings, name, progress=frame.progress)
    frame.emit(fallen, lambda: describe_fallen(fallen, time.monotonic() - began))


@click.command(
    epilog=example(
        "rivertwice savepoint rewind flight_delays sp-t1-120-0a1b2c3d",
        "rivertwice savepoint rewind flight_delays sp-t1-120-0a1b2c3d --confirm --stop-before-head",
        "rivertwice savepoint rewind flight_delays --confirm",
    )
)
@click.argument("name")
@click.argument("savepoint_id", required=False)
@click.option("--confirm", is_flag=True, help="Do it. Without this it only shows what would change.")
@click.option("--dry-run", is_flag=True, help="Show what would change; the same as without --confirm.")
@click.option(
    "--stop-before-head", is_flag=True, help="With --confirm: catch up and compare, but let the old head serve."
)
@unproved_option
@abandon_option
@pass_frame
def rewind(
    frame: Frame,
    name: str,
    savepoint_id: str | None,
    confirm: bool,
    dry_run: bool,
    stop_before_head: bool,
    unproved: bool,
    abandon: bool,
) -> None:
    """Go back to a savepoint's own batch and compute what followed again; shows first what that would change.

    With --confirm the stream stands still while a new timeline catches up from the savepoint; what is served goes on
    being served. Then every window that either path emitted is compared, and the head moves. Without an id: an
    unfinished rewind, else the newest proved savepoint of the head's path.
    """
    from rivertwice.commands.rewinds import confirm_rewind, show_plan
    from rivertwice.savepoint.operations.steps import REWIND

    frame.known_pipeline(name)
    refuse_both(confirm=confirm, dry_run=dry_run)
    if abandon:
        give_up(frame, name, REWIND, yes=True, others=(savepoint_id, confirm, dry_run))
    elif confirm:
        confirm_rewind(frame, name, savepoint_id, unproved=unproved, stop_before_head=stop_before_head)
    elif stop_before_head:
        message = "--stop-before-head says how far a rewind goes; it needs --confirm"
        raise click.UsageError(message)
    else:
        show_plan(frame, name, savepoint_id, unproved=unproved)


def refuse_both(*, confirm: bool, dry_run: bool) -> None:
    """Refuse to do and not to do at once.

    Raises:
        UsageError: both are asked for.
    """
    if confirm and dry_run:
        message = "--confirm does it and --dry-run does nothing; leave one out"
        raise click.UsageError(message)


def give_up(frame: Frame, name: str, plan: Plan[Any], *, yes: bool, others: Sequence[object] = ()) -> None:
    """Abandon the operation that was cut off, and print what it leaves.

    Raises:
        UsageError: one of `others` is given: `--abandon` takes nothing else.
    """
    from rivertwice.savepoint.operations.effects import abandon_operation

    if any(others):
        message = f"--abandon gives the {plan.noun} up that was cut off, whichever it is; leave everything else out"
        raise click.UsageError(message)
    if not yes:
        click.confirm(
            f"Give the interrupted {plan.noun} of {name} up? What serves goes on serving.", abort=True, err=True
        )
    report = to_plain(abandon_operation(frame.settings, name, plan, progress=frame.progress))
    frame.emit(report, lambda: as_fields(report))


def describe_steps(steps: Sequence[ShownStep], resumes: str | None) -> str:
    """Return the steps of an operation for people, in order."""
    title = "steps" if resumes is None else f"steps; {resumes} was cut off and is resumed"
    return as_table(("", "step", "state"), [[step.number, step.does, step.state] for step in steps], title=title)


def describe_restore(plan: RestorePlan) -> str:
    """Return what a restore would do, for people."""
    source = {None: "", "kafka": ", from Kafka"}.get(plan.source, ", from the archive: Kafka lacks some")
    rows: list[list[Any]] = [
        ["savepoint", f"{plan.savepoint} ({'proved' if plan.proved else 'taken, not proved'})"],
        ["stands at", f"batch {plan.batch} of timeline {plan.timeline}"],
        ["new timeline", f"leaves {plan.parent} behind its last batch, now {plan.forks_at}"],
        ["replayed and compared", f"{plan.replay} recorded batches{source}"],
        ["served", "as now"],
    ]
    parts = [
        as_table(("what", "how much"), rows, title=f"restore of {plan.pipeline}: nothing was changed"),
        describe_steps(plan.steps, plan.resumes),
    ]
    named = plan.savepoint if plan.savepoint.startswith("sp-") else "--from-beginning"
    if plan.refusal is not None:
        parts.append(f"refused: {plan.refusal}")
    else:
        parts.append(f"to do it: rivertwice savepoint restore {plan.pipeline} {named}")
    return "\n\n".join(parts)


def describe_fall_back(plan: FallBackPlan) -> str:
    """Return what a fall-back would do, for people."""
    rows = [[found.savepoint, found.batch, found.replay, found.refusal or "can be used"] for found in plan.candidates]
    title = f"fall-back of {plan.pipeline}: nothing was changed"
    parts = [as_table(("savepoint", "batch", "batches to replay", "state"), rows, title=title)]
    if plan.savepoint is not None:
        parts.append(describe_steps(plan.steps, plan.resumes))
    parts.append(plan.message)
    return "\n\n".join(parts)
