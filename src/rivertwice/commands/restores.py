"""savepoint restore and fall-back: each can be shown, resumed and given up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cockpit.previews import damage_of, restore_rows
from rivertwice.commands.asking import Consent, Preview, asks_first
from rivertwice.commands.frame import Frame, as_fields, as_table, example, pass_frame, to_plain
from rivertwice.commands.operations import (
    abandon_option,
    describe_steps,
    give_up,
    unproved_option,
)
from rivertwice.commands.options import name_argument, savepoint_argument

if TYPE_CHECKING:
    from rivertwice.savepoint.operations.fall_back import FallBackPlan
    from rivertwice.savepoint.operations.restore_show import RestorePlan


@click.command(
    epilog=example(
        "rivertwice savepoint restore flight_delays --dry-run",
        "rivertwice savepoint restore flight_delays sp-t1-120-0a1b2c3d --yes",
        "rivertwice savepoint restore flight_delays --planned --reason 'disk is replaced'",
        "rivertwice savepoint restore flight_delays --from-beginning",
    )
)
@name_argument()
@savepoint_argument(required=False)
@unproved_option
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Use no savepoint: make the state again from all recorded batches, each compared.",
)
@click.option(
    "--planned",
    is_flag=True,
    help="Take the savepoint now, of the drained stream: nothing is replayed, and the agent proves it afterwards.",
)
@abandon_option
@asks_first("the head moves to a new timeline")
@pass_frame
def restore(
    frame: Frame,
    name: str,
    savepoint_id: str | None,
    consent: Consent,
    unproved: bool,
    from_beginning: bool,
    planned: bool,
    abandon: bool,
) -> None:
    """Continue NAME from a savepoint on a new timeline.

    What is served does not change. The stream drains, the recorded batches since the savepoint are replayed and checked, the new timeline forks at
    the last committed batch, and the head moves to it. Without an id: resume a restore that was cut off, else take the
    newest proved savepoint. Planned: the savepoint is taken now, of the drained stream, so nothing is replayed; use it where
    the checkpoint is sound and the stop must be short. From the beginning (where no savepoint can be trusted, or none is left) takes as long as
    the stream's whole history; what Kafka no longer has is fed from the archive. Exit 1 if it cannot be done.
    """
    from rivertwice.savepoint.bases import BEGINNING, RESTING
    from rivertwice.savepoint.operations.restore import restore_savepoint
    from rivertwice.savepoint.operations.restore_show import show_restore
    from rivertwice.savepoint.operations.steps import RESTORE

    frame.known_pipeline(name)
    if planned and (savepoint_id is not None or from_beginning or abandon):
        message = "--planned takes a savepoint itself, so neither an id nor --from-beginning; an interrupted one is given up by --abandon alone"
        raise click.UsageError(message)
    if from_beginning and (savepoint_id is not None or unproved or abandon):
        message = "--from-beginning takes no savepoint, so neither an id nor --unproved; an interrupted one is given up by --abandon alone"
        raise click.UsageError(message)
    if abandon:
        give_up(frame, name, RESTORE, consent, others=(savepoint_id,))
        return
    chosen = BEGINNING if from_beginning else RESTING if planned else savepoint_id

    def preview() -> Preview:
        plan = show_restore(frame.settings, name, chosen, unproved=unproved)
        return Preview(plan, lambda: describe_restore(plan), refused=plan.refusal is not None)

    what = "a savepoint taken now" if planned else chosen or "the newest proved savepoint"
    if not consent.given(name, f"Drain {name} and continue it from {what} on a new timeline?", preview):
        return
    report = to_plain(restore_savepoint(frame.settings, name, chosen, unproved=unproved, progress=frame.progress))
    frame.emit(report, lambda: as_fields(report))


@click.command(
    "fall-back",
    epilog=example(
        "rivertwice savepoint fall-back flight_delays --dry-run", "rivertwice savepoint fall-back flight_delays"
    ),
)
@name_argument()
@abandon_option
@asks_first("the head moves to a new timeline")
@pass_frame
def fall_back(frame: Frame, name: str, consent: Consent, abandon: bool) -> None:
    """Do what the agent does about a damaged checkpoint.

    It restores the newest usable one of the proved savepoints on the head's path. One that is damaged, or whose replay
    disagrees, is passed over by name. Unlike a restore it does not change whether the stream is wanted. The dry run
    shows, before anything is broken, which savepoint would be taken. Exit 1 if there is none.
    """
    from rivertwice.savepoint.operations.fall_back import describe_fallen, show_fall_back
    from rivertwice.savepoint.operations.fall_back import fall_back as do_fall_back
    from rivertwice.savepoint.operations.steps import RESTORE

    frame.known_pipeline(name)
    if abandon:
        give_up(frame, name, RESTORE, consent)
        return

    def preview() -> Preview:
        plan = show_fall_back(frame.settings, name)
        return Preview(plan, lambda: describe_fall_back(plan), refused=plan.savepoint is None)

    if not consent.given(name, f"Put the newest usable savepoint in the place of {name}'s checkpoint?", preview):
        return
    began = time.monotonic()
    fallen = do_fall_back(frame.settings, name, progress=frame.progress)
    frame.emit(fallen, lambda: describe_fallen(fallen, time.monotonic() - began))


def describe_restore(plan: RestorePlan) -> str:
    """Return what a restore would do, for people."""
    rows: list[list[Any]] = [list(row) for row in restore_rows(plan)]
    parts = [
        as_table(("what", "how much"), rows, title=f"restore of {plan.pipeline}: nothing was changed"),
        describe_steps(plan.steps, plan.resumes),
    ]
    damage = damage_of(plan)
    if damage is not None:
        parts.append(damage)
    named = plan.savepoint if plan.savepoint.startswith("sp-") else _WORDS[plan.savepoint]
    if plan.refusal is not None:
        parts.append(f"refused: {plan.refusal}")
    else:
        parts.append(f"to do it: rivertwice savepoint restore {plan.pipeline} {named} --yes")
    return "\n\n".join(parts)


_WORDS = {"beginning": "--from-beginning", "checkpoint": "--planned"}


def describe_fall_back(plan: FallBackPlan) -> str:
    """Return what a fall-back would do, for people."""
    rows = [
        [candidate.savepoint, candidate.batch, candidate.replay, candidate.refusal or "can be used"]
        for candidate in plan.candidates
    ]
    title = f"fall-back of {plan.pipeline}: nothing was changed"
    parts = [as_table(("savepoint", "batch", "batches to replay", "state"), rows, title=title)]
    if plan.savepoint is not None:
        parts.append(describe_steps(plan.steps, plan.resumes))
    parts.append(plan.message)
    return "\n\n".join(parts)
