"""version: definitions of a pipeline that run beside the one that serves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.acts import ActCommand, asks_for, prepare_act, run_act
from rivertwice.cli.asking import Consent, Preview, asks_first, changes_unasked
from rivertwice.cli.cases import examples_text, schema_lines
from rivertwice.cli.frame import DEFECT, Frame, FriendlyGroup, as_table, example, pass_frame
from rivertwice.cli.options import name_argument, named_reason
from rivertwice.cli.streams import load_and_start, wait_caught_up
from rivertwice.cli.warm import on_engine
from rivertwice.core import RequestError, base_of, to_plain

if TYPE_CHECKING:
    from datetime import datetime

    from rivertwice.acts import SwitchPlan
    from rivertwice.agent import Alert
    from rivertwice.core import Settings
    from rivertwice.definition import Way
    from rivertwice.timeline import Acceptance, Version
    from rivertwice.versions import Exchange, Parity, Proof, StoredComparison, Switched, VersionPlan

_CATCH_UP_S = 600
"""How long a switch waits until a version has read the log as far as it is."""

# Versions of a pipeline as text: a plan, a comparison. Pure.


def plan_text(plan: VersionPlan) -> str:
    """Return a plan for people. Pure."""
    from rivertwice.backfill import explain_load, explain_stream_load
    from rivertwice.definition import Way, WayKind
    from rivertwice.savepoint import describe_change

    lines = [
        f"{plan.version} would run beside {plan.beside}: nothing was changed",
        f"definition bundle {plan.old_bundle[:12]} serves on; bundle {plan.new_bundle[:12]} becomes {plan.version}",
        as_table(("component", "old", "new"), [describe_change(change) for change in plan.changes])
        if plan.changes
        else "component  none differs: the same definition computes its past again",
        *plan.diff,
        *(f"column     {name} is added" for name in plan.columns_added),
        *(f"column     {name} is gone" for name in plan.columns_gone),
    ]
    if plan.stream_load is not None:
        lines.append(explain_stream_load(plan.version, plan.stream_load))
    elif plan.load is None:
        lines.append(f"stream     the whole log: {plan.streamed_whole}")
    else:
        lines += [
            explain_load(plan.version, plan.load),
            f"time       the log's event times were read in {plan.look_s} s; the backfills read these records again, and compute",
        ]
    if plan.archive_left is not None:
        lines.append(
            f"retention  Kafka may delete a record that the archive lacks in {plan.archive_left}; it is archived first"
        )
    lines += [
        f"disk       {plan.free_bytes / 1e9:.1f} GB free; it has its own tables",
        f"declare    which rows are meant to differ: {plan.change_file}"
        if not plan.different
        else f"accept     {Way(WayKind.ACCEPTED, plan.different).explain_accepted(plan.version)}",
        f"to {'continue' if plan.begun else 'do'} it: rivertwice upgrade {base_of(plan.version)} --new-version "
        f"{'' if plan.changes else '--recompute '}--yes",
    ]
    return "\n".join(lines)


def parity_text(parity: Parity) -> str:
    """Return a comparison for people: proofs, columns, counts, rows without a cause, the verdict. Pure."""
    lines = [f"old      {proof_text(parity.proofs[0])}", f"new      {proof_text(parity.proofs[1])}"]
    if parity.end is not None:
        begin = "the log's beginning" if parity.start is None else to_plain(parity.start)
        until = "the last record that both have read" if parity.by_record else to_plain(parity.end)
        lines.append(f"windows  from {begin} to {until}: {parity.rows.windows} with rows")
    lines += schema_lines(parity.schema)
    lines += [
        f"left out {part.windows} windows in [{to_plain(part.start)}, {to_plain(part.end)}): {part.why}"
        for part in parity.left_out
    ]
    if parity.end is not None:
        declared = sum(parity.rows.declared)
        lines.append(
            f"rows     {parity.rows.equal} equal, {declared} as declared, {parity.late} by late records alone, "
            f"{parity.unexplained} without a cause"
        )
    lines += [f"warning  {text}" for text in parity.warnings]
    lines += examples_text(parity.rows)
    lines += [f"refused  {reason}" for reason in parity.reasons]
    if parity.end is not None and not parity.passed:
        lines.append(
            f"meant?   declare it in pipelines/{base_of(parity.version)}/changes, or accept it as it is: "
            f"`rivertwice version serve {parity.version} --accept-different --reason TEXT`"
        )
    if parity.passed:
        lines.append(f"passed   every difference between {parity.version} and {parity.beside} has a cause")
    return "\n".join(lines)


def exchange_text(exchange: Exchange) -> str:
    """Return for people what a switch exchanges where rows cannot be compared, and what is missing for it. Pure."""
    before, after = exchange.before, exchange.after
    columns = {"gone": exchange.columns_gone, "added": exchange.columns_added}
    return "\n".join(
        [
            *(f"differs  {reason}" for reason in exchange.different),
            as_table(("served", f"now, {before.version}", f"then, {after.version}"), exchange.figures),
            *(f"column   {name} is {change}" for change, names in columns.items() for name in names),
            *(
                f"left out {part.windows} windows in [{to_plain(part.start)}, {to_plain(part.end)}): {part.why}"
                for part in exchange.left_out
            ),
            f"proof    {proof_text(exchange.proof)}",
            *(f"lacks    {step.text}" for step in exchange.unready),
            f"accept   `rivertwice version serve {exchange.version} --accept-different --reason TEXT`, if its rows are meant to be others",
        ]
    )


def accepted_text(name: str, accepted: Acceptance | None) -> str:
    """Return in a line by whom, when and why rows that could not be compared were accepted; empty: no acceptance was needed. Pure."""
    if accepted is None:
        return ""
    before, after = accepted.before, accepted.after
    return (
        f"{name}: accepted by {accepted.by} at {to_plain(accepted.at)}: {accepted.reason} ({'; '.join(accepted.different)}; "
        f"{before.rows} rows of {before.version} before, {after.rows} of {after.version} after)"
    )


def comparison_text(comparison: StoredComparison | None) -> str:
    """Return the newest comparison of a version in a line. Pure."""
    if comparison is None:
        return "none"
    word = "passed" if comparison.passed else f"refused: {comparison.reasons[0]}"
    return f"{to_plain(comparison.created_at)}, {word}; {comparison.verdict}"


def proof_text(proof: Proof) -> str:
    """Return in a line up to where a version is proved. Pure."""
    from rivertwice.core import from_ms

    if proof.run is None:
        return f"{proof.version}, not proved"
    until = (
        f" up to {to_plain(from_ms(proof.until_ms))}" if proof.until_ms else ""
    )  # `compare: false`: no row is judged
    return f"{proof.version}, proved by {proof.run}{until}"


@click.group(
    cls=FriendlyGroup,
    epilog=example("rivertwice version list flight_delays", "rivertwice version compare flight_delays@v2"),
)
def version() -> None:
    """Compare versions of a pipeline; choose which one serves.

    A version is a definition that runs beside the one that serves. `rivertwice upgrade NAME --new-version` begins one. NAME@v2 can be named wherever a pipeline can: status, start, stop,
    reconcile, backfill.
    """


@version.command("list", epilog=example("rivertwice version list flight_delays"))
@name_argument()
@pass_frame
def list_(frame: Frame, name: str) -> None:
    """List the versions of pipeline NAME.

    It says when each began, what changed, its newest comparison, and whether it was dropped. Of a version whose rows could not be
    compared it says who accepted that, when and why.
    """
    from rivertwice.timeline import read_versions, serving_by_stamp
    from rivertwice.versions import newest_comparison

    _require_pipeline(frame, name)
    home = frame.settings.pipeline(name)
    versions, serving = read_versions(home), serving_by_stamp(home)
    compared = {each.name: newest_comparison(frame.settings.pipeline(each.name)) for each in versions if each.is_open}
    rows = [
        (
            each.name,
            each.bundle[:12],
            to_plain(each.noted_at),
            ", ".join(each.changed),
            "dropped" if not each.is_open else "serves" if each.name == serving else "runs beside",
            comparison_text(compared.get(each.name)),
        )
        for each in versions
    ]
    none = f"{name} has no version besides its own definition; `rivertwice upgrade {name} --new-version` says what one does"
    headers = ("version", "bundle", "since", "changed", "state", "newest comparison")
    value = [
        {**to_plain(each), "serves": each.name == serving, "comparison": to_plain(compared.get(each.name))}
        for each in versions
    ]
    accepted = [accepted_text(each.name, each.accepted) for each in versions if each.accepted is not None]
    frame.emit(value, lambda: "\n".join([as_table(headers, rows), f"serves: {serving}", *accepted]) if rows else none)


@version.command(
    cls=ActCommand,
    epilog=example(
        "rivertwice version compare flight_delays@v2",
        "rivertwice version compare flight_delays@v2 --limit 100 --output json",
    ),
)
@asks_for("version.compare", without=("run",))
@on_engine()
@changes_unasked("a stored comparison", because="it is added")
@pass_frame
def compare(frame: Frame, name: str, asked: dict[str, Any]) -> None:
    """Compare what version NAME would serve with what is served.

    Rows are compared one by one; exit 3 unless every difference has a cause. The result is stored; `rivertwice version list` and the page in Airflow show it. Both sides must be proved first: run
    `rivertwice reconcile` on each. A difference has a cause if the change file pipelines/NAME/changes/v2.yaml declares it, or if
    late records alone cause it: over the same records, both definitions then give the same row, or one that differs as declared.
    If the windows or the keys changed, no row has a counterpart: it says so at once and compares nothing.
    """
    done = run_act(frame, "version.compare", frame.known_pipeline(name), asked)
    parity = done.parity
    _emit_parity(frame, parity, done.run)
    if not parity.passed:
        raise SystemExit(DEFECT)


def _emit_parity(frame: Frame, parity: Parity, run: str) -> None:
    frame.emit({**to_plain(parity), "passed": parity.passed, "run": run}, lambda: parity_text(parity))


@version.command(
    cls=ActCommand,
    epilog=example(
        "rivertwice version serve flight_delays@v2",
        "rivertwice version serve flight_delays --yes  # back to the first one",
        "rivertwice version serve flight_delays@v2 --accept-different --reason 'windows of two hours, as planned'",
    ),
)
@asks_for("version.serve", without=("version",))
@asks_first("another version serves")
@pass_frame
def serve(frame: Frame, name: str, asked: dict[str, Any], consent: Consent) -> None:
    """Let version NAME serve.

    What consumers read shows its rows, from one commit on. Exit 3 if it may not. A version that never served is compared first, and serves only if every difference has a cause: a reconcile of
    each side that is not proved runs before, once the version has read as far. The one that served before keeps its rows and its stream, and serves again by the same command; that compares nothing.

    If rows differ without a cause, or none can be compared because windows or keys changed, it shows what is served before and after, and a person accepts that with --accept-different --reason
    TEXT. The version must still be proved by its own reconcile and have read as far. --dry-run runs no reconcile.
    """
    frame.known_pipeline(name)
    if asked["accept_different"]:
        named_reason(consent.reason)
    if not consent.dry_run:
        _prove(frame, name)
    given = {**asked, "version": name, "reason": consent.reason}
    act, world, request = prepare_act(frame, "version.serve", base_of(name), given, by=consent.by)
    plan = act.plan(world, request)
    found = plan.value
    if found.exchange is not None and not asked["accept_different"]:
        value = {**to_plain(found.exchange), "passed": False}
        frame.emit(value, lambda: f"{exchange_text(found.exchange)}\nnothing was switched")
        raise SystemExit(DEFECT)
    if found.exchange is None and found.parity is not None and not found.parity.passed:
        if consent.dry_run:
            frame.emit({**to_plain(found.parity), "passed": False}, lambda: parity_text(found.parity))
        else:
            from rivertwice.acts import keep_parity

            _emit_parity(frame, found.parity, keep_parity(world, found.parity).run)
        raise SystemExit(DEFECT)
    if plan.refusals:
        raise RequestError(plan.refusals[0])
    unseen = "" if found.exchange is None else f", though {'; '.join(found.exchange.different)}"
    question = f"Let {name} serve in place of {found.choice.serving}{unseen}?"
    if not consent.given(name, question, lambda: _switch_preview(found)):
        return
    done = act.apply(replace(world, planned=plan), request)
    frame.emit(done, lambda: _switched_text(done))


def _prove(frame: Frame, name: str) -> None:
    """Reconcile each side of a switch that is not proved as it is now, the version once it has read what the other one had."""
    from rivertwice.agent import agent_status
    from rivertwice.core import utc_now
    from rivertwice.timeline import Intent
    from rivertwice.versions import choice_of

    settings = frame.settings
    choice = choice_of(settings, name)
    for each in choice.unproved(settings):
        intent = Intent.load(settings.pipeline(each))
        if intent is not None and intent.desired == "running" and agent_status(settings) is not None:
            wait_caught_up(frame, each, utc_now(), _CATCH_UP_S)
        frame.progress(f"no reconcile proves {each} as it is now, so it is reconciled first")
        run_act(frame, "reconcile", each, {})


def _switch_preview(found: SwitchPlan) -> Preview:
    name, before = found.choice.version, found.choice.serving
    if before == name:
        return Preview({"version": name, "before": before, "parity": None}, f"{name} serves already", nothing=True)
    end = f"\n{name} would serve in place of {before}"
    parity = found.parity
    if found.exchange is not None:
        compared = [parity_text(parity)] if parity is not None and parity.end is not None else []
        value = {"version": name, "before": before, "exchange": to_plain(found.exchange), "parity": to_plain(parity)}
        return Preview(value, "\n".join([*compared, exchange_text(found.exchange)]) + end)
    value = {"version": name, "before": before, "parity": None if parity is None else to_plain(parity)}
    text = "it served before and is not compared" if parity is None else parity_text(parity)
    return Preview(value, f"{text}{end}")


def _switched_text(done: Switched) -> str:
    version, before = done.version, done.before
    if not done.changed:
        return f"{version} serves already"
    text = f"{version} serves now, {done.rows} rows; {before} continues beside it, `rivertwice version serve {before}` goes back"
    if done.not_counted:
        text += f"; {done.not_counted} publications of {before} since it began to serve do not count for {version}"
    return text


@version.command(epilog=example("rivertwice stop flight_delays@v2 --wait", "rivertwice version drop flight_delays@v2"))
@name_argument()
@asks_first("a version's tables and checkpoints are deleted")
@pass_frame
def drop(frame: Frame, name: str, consent: Consent) -> None:
    """Give version NAME up and remove all that it stored.

    What is served does not change; its number is not used again.
    """
    from rivertwice.core import utc_now
    from rivertwice.versions import drop_version, require_version

    found = require_version(frame.settings, name)

    def preview() -> Preview:
        own = frame.settings.pipeline(name)
        value = {"version": name, "beside": found.beside, "removed": [str(own.root), str(own.place)]}
        removed = " and ".join(dict.fromkeys(value["removed"]))
        return Preview(
            value, f"{removed} would be removed: all tables and checkpoints of {name}; {found.beside} serves on"
        )

    if not consent.given(name, f"Remove all tables and checkpoints of {name}?", preview):
        return
    now = utc_now()
    dropped = drop_version(frame.settings, name, by="cli", now=now)
    end_alerts(frame.settings, name, now)
    frame.emit({"version": dropped.name, "beside": dropped.beside, "dropped": True}, f"{name} is dropped")


def end_alerts(settings: Settings, name: str, now: datetime) -> None:
    """Note that the alerts about a version that was dropped are over, and those about the runs that compared it."""
    from rivertwice.acts import OPERATE
    from rivertwice.agent import TASK_FAILED, alerts_of
    from rivertwice.tasks import ActTask, dag_id

    base = base_of(name)
    subjects = {f"{dag_id(OPERATE, base)}.{task}" for task in ActTask.OF_SWITCH}

    def is_over(alert: Alert) -> bool:
        cause = alert.cause
        is_of_switch = cause.kind == TASK_FAILED and cause.subject in subjects
        return cause.pipeline == name or (cause.pipeline == base and is_of_switch)

    alerts_of(settings).resolve(is_over, f"{name} was dropped", now)


def begin_beside(frame: Frame, name: str, timeout: int, consent: Consent, *, recompute: bool) -> None:
    """Show what a new version of a pipeline would do, or begin it and compute its past."""
    from rivertwice.definition import WayKind, create_topics
    from rivertwice.versions import find_wanted

    _require_pipeline(frame, name)
    wanted = find_wanted(frame.settings, name, recompute=recompute)  # before Spark is asked for anything
    if wanted.way.kind == WayKind.ACCEPTED:
        frame.progress(wanted.way.explain_accepted(wanted.new.definition.name))
    if consent.given(name, f"Begin a new version beside {name}?", lambda: _plan(frame, name, recompute=recompute)):
        if set(wanted.new.definition.topics) - set(wanted.old.definition.topics):
            create_topics(frame.settings, [wanted.new.definition])
        _begin(frame, name, timeout, recompute=recompute)


def _plan(frame: Frame, name: str, *, recompute: bool) -> Preview:
    from rivertwice.engine import spark_on_demand
    from rivertwice.versions import plan_version

    with spark_on_demand(frame.settings, f"rivertwice-plan-{name}") as spark:
        plan = plan_version(frame.settings, name, spark, recompute=recompute)
    return Preview(plan, lambda: plan_text(plan))


def _begin(frame: Frame, name: str, timeout: int, *, recompute: bool) -> None:
    from rivertwice.core import utc_now
    from rivertwice.versions import begin_version, require_readable, way_of

    settings, now = frame.settings, utc_now()
    require_readable(settings, name, recompute=recompute)
    begun = begin_version(settings, name, by="cli", now=now, recompute=recompute)
    frame.progress(f"{begun.name} runs beside {begun.beside}, which keeps its definition")
    report, text = load_and_start(frame, begun.name, now, timeout, until=None)
    way = way_of(settings, begun, begun.beside)
    frame.emit(report | {"version": begun.name, "different": list(way.reasons)}, lambda: f"{text}; {_next(begun, way)}")


def _next(begun: Version, way: Way) -> str:
    """Return the commands that lead from a version that has begun to one that serves. Pure."""
    from rivertwice.definition import WayKind

    if way.kind == WayKind.ACCEPTED:
        return f"next: {way.explain_accepted(begun.name)}"
    return f"next: `rivertwice version serve {begun.name}`, which reconciles and compares both first"


def _require_pipeline(frame: Frame, name: str) -> None:
    """Check that a name is a pipeline's, not a version's."""
    frame.known_pipeline(name)
    if base_of(name) != name:
        message = f"{name} is a version; name its pipeline, {base_of(name)}"
        raise RequestError(message)
