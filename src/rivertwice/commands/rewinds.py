"""savepoint rewind: the plan, the outcome with its comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rivertwice.cockpit.previews import reread_rows, rewind_rows
from rivertwice.commands.asking import Consent, Preview, asks_first
from rivertwice.commands.frame import Frame, as_fields, as_table, example, pass_frame, to_plain
from rivertwice.commands.operations import abandon_option, describe_steps, give_up, unproved_option
from rivertwice.commands.options import name_argument, savepoint_argument
from rivertwice.savepoint.bases import BEGINNING

if TYPE_CHECKING:
    from rivertwice.savepoint.operations.rewind import RewindReport
    from rivertwice.savepoint.operations.rewind_plan import RewindPlan


@click.command(
    epilog=example(
        "rivertwice savepoint rewind flight_delays sp-t1-120-0a1b2c3d",
        "rivertwice savepoint rewind flight_delays sp-t1-120-0a1b2c3d --yes --stop-before-head",
        "rivertwice savepoint rewind flight_delays --yes",
    )
)
@name_argument()
@savepoint_argument(required=False)
@click.option("--from-beginning", is_flag=True, help="No savepoint: read again all that the stream ever read.")
@click.option("--stop-before-head", is_flag=True, help="Catch up and compare, but let the old head serve.")
@unproved_option
@abandon_option
@asks_first("the head moves to a new timeline, and windows may change", confirm=True)
@pass_frame
def rewind(
    frame: Frame,
    name: str,
    savepoint_id: str | None,
    consent: Consent,
    from_beginning: bool,
    stop_before_head: bool,
    unproved: bool,
    abandon: bool,
) -> None:
    """Go back to a savepoint; compute what followed again.

    The stream is stopped while a new timeline catches up from the savepoint; what is served stays
    served. Then every window that either path emitted is compared, and the head moves. Without an id: an
    unfinished rewind, else the newest proved savepoint of the head's path.
    """
    from rivertwice.savepoint.operations.steps import REWIND

    frame.known_pipeline(name)
    if from_beginning and (savepoint_id is not None or unproved):
        message = "--from-beginning takes no savepoint, so neither an id nor --unproved"
        raise click.UsageError(message)
    if abandon:
        give_up(frame, name, REWIND, consent, others=(savepoint_id, stop_before_head, from_beginning))
        return
    savepoint_id = BEGINNING if from_beginning else savepoint_id
    question = (
        f"Rewind {name}, and let a new timeline serve?" if not stop_before_head else f"Rewind {name} up to its head?"
    )
    if consent.given(name, question, lambda: show_plan(frame, name, savepoint_id, unproved=unproved)):
        confirm_rewind(frame, name, savepoint_id, unproved=unproved, stop_before_head=stop_before_head)


def show_plan(frame: Frame, name: str, savepoint_id: str | None, *, unproved: bool) -> Preview:
    """Return what a rewind would change; nothing is done."""
    from rivertwice.savepoint.operations.rewind import show_rewind

    plan = show_rewind(frame.settings, name, savepoint_id, unproved=unproved)
    value = {**to_plain(plan), "reread": reread_rows(plan)}
    return Preview(value, lambda: describe_plan(plan), refused=bool(plan.refusals))


def confirm_rewind(
    frame: Frame, name: str, savepoint_id: str | None, *, unproved: bool, stop_before_head: bool
) -> None:
    """Rewind and print the result."""
    from rivertwice.savepoint.operations.rewind import rewind_stream

    report = rewind_stream(
        frame.settings,
        name,
        savepoint_id,
        unproved=unproved,
        stop_before_head=stop_before_head,
        progress=frame.progress,
    )
    frame.emit(report, lambda: describe_report(report))


def describe_plan(plan: RewindPlan) -> str:
    """Return a plan for people."""
    rows: list[list[Any]] = [list(row) for row in rewind_rows(plan)]
    parts = [
        as_table(("what", "how much"), rows, title=f"rewind of {plan.pipeline}: nothing was changed"),
        as_table(
            ("partition", "from", "to", "records", "Kafka begins at"),
            [
                [shown["partition"], part.start, part.end, part.records, part.log_begins]
                for shown, part in zip(reread_rows(plan), plan.reread, strict=True)
            ],
        ),
    ]
    parts.append(describe_steps(plan.steps, plan.resumes))
    if plan.refusals:
        parts.append("\n".join(f"refused: {why}" for why in plan.refusals))
    else:
        base = "--from-beginning" if plan.savepoint == BEGINNING else plan.savepoint
        parts.append(f"to do it: rivertwice savepoint rewind {plan.pipeline} {base} --yes")
    return "\n\n".join(parts)


def describe_report(report: RewindReport) -> str:
    """Return an outcome for people."""
    comparison = dict(report.comparison)
    examples = comparison.pop("examples", ())
    value = {key: item for key, item in to_plain(report).items() if key != "comparison"}
    parts = [
        as_fields(value),
        as_table(("rows of closed windows", "count"), [[key, comparison[key]] for key in comparison]),
    ]
    if examples:
        rows = [
            [row_change["kind"], *(as_fields(row_change[part]) or "-" for part in ("row", "old", "new"))]
            for row_change in examples
        ]
        parts.append(as_table(("example", "window and keys", "old", "new"), rows))
    if not report.moved:
        parts.append(
            "the old head serves and the stream is stopped; the same command without --stop-before-head moves the head, "
            "--abandon gives the rewind up"
        )
    return "\n\n".join(parts)
