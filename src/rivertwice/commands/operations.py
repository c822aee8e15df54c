"""What the commands of restore, fall-back, rewind and upgrade have in common: options, giving up, the list of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rivertwice.commands.asking import Consent, Preview
from rivertwice.commands.frame import Frame, as_fields, as_table, to_plain

if TYPE_CHECKING:
    from rivertwice.savepoint.operations.engine import ShownStep
    from rivertwice.savepoint.operations.steps import Plan

unproved_option = click.option("--unproved", is_flag=True, help="Accept a savepoint that was taken and never proved.")
abandon_option = click.option(
    "--abandon",
    is_flag=True,
    help="Give up the operation that was cut off; what is served stays served. Shows what it leaves.",
)


def give_up(frame: Frame, name: str, plan: Plan[Any], consent: Consent, *, others: Sequence[object] = ()) -> None:
    """Abandon the operation that was cut off, and print what it leaves.

    Raises:
        UsageError: one of `others` is given: `--abandon` takes nothing else.
        RequestError: nothing was cut off, or it can only be finished.
    """
    from rivertwice.savepoint.operations.effects import abandon_operation, find_abandonable
    from rivertwice.savepoint.operations.steps import plan_of

    if any(others):
        message = f"--abandon gives the {plan.noun} up that was cut off, whichever it is; leave everything else out"
        raise click.UsageError(message)

    def preview() -> Preview:
        record = find_abandonable(frame.settings, name, plan)
        stopped = plan_of(record).name_of(record.step)
        value = {"operation": record.id, "savepoint": record.savepoint, "stopped_after": stopped}
        text = f"{record.id} of {name} was cut off after '{stopped}'; it would be given up, and what is served stays served"
        return Preview(value, text)

    if consent.given(name, f"Give the interrupted {plan.noun} of {name} up?", preview):
        report = to_plain(abandon_operation(frame.settings, name, plan, progress=frame.progress))
        frame.emit(report, lambda: as_fields(report))


def describe_steps(steps: Sequence[ShownStep], resumes: str | None) -> str:
    """Return the steps of an operation for people, in order."""
    title = "steps" if resumes is None else f"steps; {resumes} was cut off and is resumed"
    return as_table(("", "step", "state"), [[step.number, step.does, step.state] for step in steps], title=title)
