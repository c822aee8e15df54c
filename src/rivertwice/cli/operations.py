"""upgrade, savepoint restore, fall-back and rewind: operations of steps, and what their commands share."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.acts import ActCommand, asks_for, describe_steps, do_act
from rivertwice.cli.asking import Consent, Preview, asks_first
from rivertwice.cli.frame import Frame, as_fields, as_table, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.core import to_plain
from rivertwice.savepoint import StateBase

if TYPE_CHECKING:
    from rivertwice.savepoint import FallBackPlan

abandon_option = click.option(
    "--abandon",
    is_flag=True,
    help="Abandon the interrupted operation; what is served stays served. Shows what it leaves.",
)


def abandon_operation(frame: Frame, name: str, noun: str, consent: Consent, asked: Mapping[str, Any]) -> None:
    """Abandon the interrupted operation, and print what it leaves.

    Raises:
        UsageError: something else is asked for too: `--abandon` takes nothing else.
        RequestError: nothing was interrupted, it is another kind of operation, or it can only be finished.
    """
    if any(asked.values()):
        message = f"--abandon abandons the interrupted {noun}, whichever it is; leave everything else out"
        raise click.UsageError(message)
    words = f"rivertwice {consent.command} {name} --abandon"
    done = do_act(
        frame,
        "operation.abandon",
        name,
        {"noun": noun, "reason": consent.reason or "by the command line"},
        consent,
        f"Abandon the interrupted {noun} of {name}?",
        lambda _: words,
    )
    if done is not None:
        frame.emit(done, lambda: as_fields(done))


# savepoint rewind: the plan, the outcome with its comparison.


@click.command(
    cls=ActCommand,
    epilog=example(
        "rivertwice savepoint rewind flight_delays sp-t1-120-0a1b2c3d",
        "rivertwice savepoint rewind flight_delays sp-t1-120-0a1b2c3d --yes --stop-before-head",
        "rivertwice savepoint rewind flight_delays --yes",
    ),
)
@asks_for("savepoint.rewind", arguments={"savepoint": False})
@abandon_option
@asks_first("the head moves to a new timeline, and windows may change")
@pass_frame
def rewind(frame: Frame, name: str, asked: dict[str, Any], consent: Consent, abandon: bool) -> None:
    """Go back to a savepoint; compute what followed again.

    The stream is stopped while a new timeline catches up from the savepoint; what is served stays
    served. Then every window that either path emitted is compared, and the head moves. Without an id: an
    unfinished rewind, else the newest proved savepoint of the head's path.
    """
    frame.known_pipeline(name)
    if abandon:
        abandon_operation(frame, name, "rewind", consent, asked)
        return
    question = (
        f"Rewind {name} up to its head?"
        if asked["stop_before_head"]
        else f"Rewind {name}, and let a new timeline serve?"
    )

    def words(shown: Any) -> str:
        base = "--from-beginning" if shown["savepoint"] == StateBase.BEGINNING else shown["savepoint"]
        return f"rivertwice savepoint rewind {name} {base}"

    done = do_act(frame, "savepoint.rewind", name, asked, consent, question, words)
    if done is not None:
        frame.emit(done, lambda: describe_report(done))


def describe_report(done: Any) -> str:
    """Return the outcome of a rewind for people."""
    report = to_plain(done)
    comparison = dict(report["comparison"])
    examples = comparison.pop("examples", ())
    value = {key: item for key, item in report.items() if key != "comparison"}
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
    if not report["moved"]:
        parts.append(
            "the old head serves and the stream is stopped; the same command without --stop-before-head moves the head, "
            "--abandon gives the rewind up"
        )
    return "\n\n".join(parts)


# upgrade: a changed definition continues from the state that the old one left.


@click.command(
    cls=ActCommand,
    epilog=example(
        "rivertwice upgrade flight_delays",
        "rivertwice upgrade flight_delays --yes",
        "rivertwice upgrade flight_delays --abandon",
        "rivertwice upgrade flight_delays --new-version --yes",
        "rivertwice upgrade flight_delays --new-version --recompute",
        "rivertwice upgrade flight_delays --savepoint sp-t1-120-0a1b2c3d --unproved --yes",
    ),
)
@asks_for("upgrade")
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
@asks_first("the head moves to a new timeline with the changed definition")
@pass_frame
def upgrade(
    frame: Frame,
    name: str,
    asked: dict[str, Any],
    consent: Consent,
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

    If stream.shuffle_partitions is not the number that runs, the state is rewritten into that number of partitions on the way.

    With --new-version any change may be made: the new definition becomes NAME@v2, a stream with its own tables beside
    NAME. Its past is computed by batch, its present streamed; the stream NAME continues with the old definition, and serves.
    `rivertwice version compare NAME@v2` says when every difference has a cause.
    """
    from rivertwice.cli.versions import begin_beside

    frame.known_pipeline(name)
    if recompute and not new_version:
        message = "--recompute is for a version beside the running one: add --new-version, or leave it out"
        raise click.UsageError(message)
    if new_version:
        if any(asked.values()) or abandon:
            message = "--new-version takes no savepoint and leaves nothing to abandon: leave --savepoint, --unproved and --abandon out"
            raise click.UsageError(message)
        begin_beside(frame, name, timeout, consent, recompute=recompute)
        return
    if abandon:
        abandon_operation(frame, name, "upgrade", consent, asked)
        return

    question = f"Drain {name} and continue it with its new definition?"
    done = do_act(frame, "upgrade", name, asked, consent, question, lambda _: f"rivertwice upgrade {name}")
    if done is not None:
        follows = _ROTATE if done.changed or done.resumed else _SAME_STATE
        frame.emit(done, lambda: f"{as_fields(done)}\n\n{follows.format(name=name)}")


_ROTATE = (
    "take and prove a savepoint soon: those before the upgrade hold another definition's state (`rivertwice savepoint take {name}`, or the "
    "DAG care__{name})"
)
_SAME_STATE = (
    "savepoints from before hold the same state in its old layout: each can be restored, and is rewritten on the way"
)


# savepoint restore and fall-back: each can be shown, resumed and abandoned.


@click.command(
    cls=ActCommand,
    epilog=example(
        "rivertwice savepoint restore flight_delays --dry-run",
        "rivertwice savepoint restore flight_delays sp-t1-120-0a1b2c3d --yes",
        "rivertwice savepoint restore flight_delays --planned --reason 'disk is replaced'",
        "rivertwice savepoint restore flight_delays --from-beginning",
    ),
)
@asks_for("savepoint.restore", arguments={"savepoint": False})
@abandon_option
@asks_first("the head moves to a new timeline")
@pass_frame
def restore(frame: Frame, name: str, asked: dict[str, Any], consent: Consent, abandon: bool) -> None:
    """Continue NAME from a savepoint on a new timeline.

    What is served does not change. The stream drains, the recorded batches since the savepoint are replayed and checked, the new timeline forks at
    the last committed batch, and the head moves to it. Without an id: resume an interrupted restore, else take the
    newest proved savepoint. Planned: the savepoint is taken now, from the drained stream, and nothing is replayed; use it where
    the checkpoint is sound and the stop must be short. From the beginning (where no savepoint can be trusted, or none is left) takes as long as
    the stream's whole history; what Kafka no longer has is fed from the archive. Exit 1 if it cannot be done.
    """
    frame.known_pipeline(name)
    if abandon:
        abandon_operation(frame, name, "restore", consent, asked)
        return
    what = asked["savepoint"] or "the newest proved savepoint"
    what = "a savepoint taken now" if asked["planned"] else "the beginning" if asked["from_beginning"] else what
    question = f"Drain {name} and continue it from {what} on a new timeline?"

    def words(shown: Any) -> str:
        base = {StateBase.BEGINNING: "--from-beginning", StateBase.RESTING: "--planned"}.get(
            shown.savepoint, shown.savepoint
        )
        return f"rivertwice savepoint restore {name} {base}"

    report = do_act(frame, "savepoint.restore", name, asked, consent, question, words)
    if report is not None:
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
    disagrees, is passed over by name. Unlike a restore it does not change the desired state of the stream. The dry run
    shows, before anything is broken, which savepoint would be taken. Exit 1 if there is none.
    """
    from rivertwice.savepoint import fall_back as do_fall_back
    from rivertwice.savepoint import show_fall_back

    frame.known_pipeline(name)
    if abandon:
        abandon_operation(frame, name, "restore", consent, {})
        return

    def preview() -> Preview:
        plan = show_fall_back(frame.settings, name)
        return Preview(plan, lambda: describe_fall_back(plan), refused=plan.savepoint is None)

    if not consent.given(name, f"Put the newest usable savepoint in the place of {name}'s checkpoint?", preview):
        return
    began = time.monotonic()
    fallen = do_fall_back(frame.settings, name, progress=frame.progress)
    frame.emit(fallen, lambda: fallen.describe(time.monotonic() - began))


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
