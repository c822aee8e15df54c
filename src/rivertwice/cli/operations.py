"""upgrade, savepoint restore, fall-back and rewind: operations of steps, and what their commands share."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli import options
from rivertwice.cli.asking import Consent, Preview, asks_first
from rivertwice.cli.frame import Frame, as_fields, as_table, example, pass_frame
from rivertwice.cli.options import name_argument, savepoint_argument
from rivertwice.core.instants import utc_now
from rivertwice.core.plain import to_plain
from rivertwice.savepoint.manifest import BEGINNING, RESTING

if TYPE_CHECKING:
    from rivertwice.acts import Plan, Result
    from rivertwice.savepoint.operations.engine import ShownStep
    from rivertwice.savepoint.operations.fall_back import FallBackPlan
    from rivertwice.savepoint.operations.steps import OperationPlan
    from rivertwice.savepoint.operations.upgrade import UpgradePlan

unproved_option = click.option("--unproved", is_flag=True, help="Accept a savepoint that was taken and never proved.")
abandon_option = click.option(
    "--abandon",
    is_flag=True,
    help="Give up the operation that was cut off; what is served stays served. Shows what it leaves.",
)


def give_up(
    frame: Frame, name: str, plan: OperationPlan[Any], consent: Consent, *, others: Sequence[object] = ()
) -> None:
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


def do_act(
    frame: Frame,
    act: str,
    name: str,
    asked: Mapping[str, Any],
    consent: Consent,
    question: str,
    words: Callable[[Any], str],
) -> Result | None:
    """Show what an act would do, and do it if that is wanted; return its result, None if it was not done.

    Args:
        frame: the settings, and how progress is shown.
        act: name of what is asked for.
        name: of the pipeline.
        asked: the fields of its request.
        consent: whether it is wanted.
        question: for people.
        words: from the plan's value, the command that does it, without `--yes`.
    """
    from rivertwice.acts import World, find_act, parse_request

    chosen = find_act(act)
    request = parse_request(chosen, asked, name)
    world = World(frame.settings, consent.by, utc_now(), progress=frame.progress)

    def preview() -> Preview:
        plan = chosen.plan(world, request)
        title = f"{chosen.title.lower()} of {name}: nothing was changed"
        return Preview(plan.value, lambda: describe_plan(plan, title, words(plan.value)), refused=bool(plan.refusals))

    return chosen.apply(world, request) if consent.given(name, question, preview) else None


def run_act(frame: Frame, act: str, name: str, asked: Mapping[str, Any]) -> Result:
    """Do an act that asks nobody, and return its result."""
    from rivertwice.acts import World, find_act, parse_request

    chosen = find_act(act)
    world = World(frame.settings, getpass.getuser(), utc_now(), progress=frame.progress)
    return chosen.apply(world, parse_request(chosen, asked, name))


def describe_plan(plan: Plan, title: str, words: str) -> str:
    """Return what an act would do, for people."""
    rows: list[list[Any]] = [list(row) for row in plan.rows]
    parts = [as_table(("what", "how much"), rows, title=title)]
    if plan.reread:
        heads = {"partition": "partition", "start": "from", "end": "to", "log_begins": "Kafka begins at"}
        parts.append(as_table(tuple(heads.values()), [[part[key] for key in heads] for part in plan.reread]))
    if plan.steps:
        parts.append(describe_steps(plan.steps, plan.resumes))
    parts += filter(None, [plan.warning])
    parts += [f"refused: {why}" for why in plan.refusals] or [f"to do it: {words} --yes"]
    return "\n\n".join(parts)


# savepoint rewind: the plan, the outcome with its comparison.


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
@asks_first("the head moves to a new timeline, and windows may change")
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
    asked = {"savepoint": savepoint_id, "from_beginning": from_beginning, "unproved": unproved}
    question = (
        f"Rewind {name}, and let a new timeline serve?" if not stop_before_head else f"Rewind {name} up to its head?"
    )

    def words(shown: Any) -> str:
        base = "--from-beginning" if shown["savepoint"] == BEGINNING else shown["savepoint"]
        return f"rivertwice savepoint rewind {name} {base}"

    done = do_act(
        frame, "savepoint.rewind", name, {**asked, "stop_before_head": stop_before_head}, consent, question, words
    )
    if done is not None:
        frame.emit(done, lambda: describe_report(done))


def describe_report(report: Mapping[str, Any]) -> str:
    """Return an outcome for people."""
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
    shell_complete=options.savepoints,
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
@asks_first("the head moves to a new timeline with the changed definition")
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
    from rivertwice.cli.versions import begin_beside
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
        return Preview(plan, lambda: describe_upgrade(plan), refused=plan.refusal is not None)

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


def describe_upgrade(plan: UpgradePlan) -> str:
    """Return a plan for people."""
    from rivertwice.acts.restore import describe_base
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


# savepoint restore and fall-back: each can be shown, resumed and given up.


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
    asked = {"savepoint": savepoint_id, "planned": planned, "from_beginning": from_beginning, "unproved": unproved}
    what = (
        "a savepoint taken now"
        if planned
        else "the beginning"
        if from_beginning
        else savepoint_id or "the newest proved savepoint"
    )
    question = f"Drain {name} and continue it from {what} on a new timeline?"

    def words(shown: Any) -> str:
        base = {BEGINNING: "--from-beginning", RESTING: "--planned"}.get(shown.savepoint, shown.savepoint)
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
