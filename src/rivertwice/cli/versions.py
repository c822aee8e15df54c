"""version: definitions of a pipeline that run beside the one that serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rivertwice.cli.asking import Consent, Preview, asks_first, changes_unasked
from rivertwice.cli.cases import examples_text, schema_lines
from rivertwice.cli.frame import DEFECT, Frame, FriendlyGroup, as_table, example, pass_frame
from rivertwice.cli.options import name_argument, named_reason
from rivertwice.cli.streams import load_and_start
from rivertwice.cli.warm import on_engine
from rivertwice.core.errors import RequestError
from rivertwice.core.installed import base_of
from rivertwice.core.plain import to_plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rivertwice.agent.alert_model import Alert
    from rivertwice.core.settings import Settings
    from rivertwice.definition.upgrade import Way
    from rivertwice.timeline.version_records import Acceptance, Version
    from rivertwice.versions.accept import Exchange
    from rivertwice.versions.comparisons import StoredComparison
    from rivertwice.versions.model import ExcludedWindows, Parity, Proof
    from rivertwice.versions.plan import VersionPlan
    from rivertwice.versions.serve import Switched


# Versions of a pipeline as text: a plan, a comparison. Pure.


def plan_text(plan: VersionPlan) -> str:
    """Return a plan for people. Pure."""
    from rivertwice.backfill.load_plan import explain_load
    from rivertwice.backfill.stream_load import explain_stream_load
    from rivertwice.definition.upgrade import ACCEPTED, Way, explain_accepted
    from rivertwice.savepoint.operations.upgrade import describe_change

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
        f"disk       {plan.free_bytes / 1e9:.1f} GB free; tables of its own",
        f"declare    which rows are meant to differ: {plan.change_file}"
        if not plan.different
        else f"accept     {explain_accepted(Way(ACCEPTED, plan.different), plan.version)}",
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
    if parity.passed:
        lines.append(f"passed   every difference between {parity.version} and {parity.beside} has a cause")
    return "\n".join(lines)


def exchange_text(exchange: Exchange) -> str:
    """Return for people what a switch exchanges where rows cannot be compared, and what is missing for it. Pure."""
    from rivertwice.definition.upgrade import ACCEPTED, Way, explain_accepted

    before, after = exchange.before, exchange.after
    rows = [
        ("rows", before.rows, after.rows),
        ("windows", before.windows, after.windows),
        ("first begins", before.start or "-", after.start or "-"),
        ("last ends", before.end or "-", after.end or "-"),
    ]
    columns = {"gone": exchange.columns_gone, "added": exchange.columns_added}
    return "\n".join(
        [
            *(f"differs  {reason}" for reason in exchange.different),
            as_table(("served", f"now, {before.version}", f"then, {after.version}"), rows),
            *(f"column   {name} is {change}" for change, names in columns.items() for name in names),
            *(
                f"left out {part.windows} windows in [{to_plain(part.start)}, {to_plain(part.end)}): {part.why}"
                for part in exchange.left_out
            ),
            f"proof    {proof_text(exchange.proof)}",
            *(f"lacks    {step.text}" for step in exchange.unready),
            f"accept   {explain_accepted(Way(ACCEPTED, exchange.different), exchange.version)}",
        ]
    )


def accepted_text(name: str, accepted: Acceptance | None) -> str:
    """Return in a line by whom, when and why rows that could not be compared were accepted; empty: nobody had to. Pure."""
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
    from rivertwice.core.instants import from_ms

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
    from rivertwice.timeline.served_stamp import serving_by_stamp
    from rivertwice.timeline.version_records import read_versions
    from rivertwice.versions.comparisons import newest_comparison

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
    epilog=example(
        "rivertwice version compare flight_delays@v2",
        "rivertwice version compare flight_delays@v2 --limit 100 --output json",
    )
)
@name_argument()
@click.option("--limit", type=click.IntRange(0, 1000), default=20, show_default=True, help="Rows shown at most.")
@on_engine()
@changes_unasked("a stored comparison", because="it is added")
@pass_frame
def compare(frame: Frame, name: str, limit: int) -> None:
    """Compare what version NAME would serve with what is served.

    Rows are compared one by one; exit 3 unless every difference has a cause. The result is stored; `rivertwice version list` and the page in Airflow show it. Both sides must be proved first: run
    `rivertwice reconcile` on each. A difference has a cause if the change file pipelines/NAME/changes/v2.yaml declares it, or if
    late records alone cause it: over the same records, both definitions then give the same row, or one that differs as declared.
    If the windows or the keys changed, no row has a counterpart: it says so at once and compares nothing.
    """
    frame.known_pipeline(name)
    parity = _compared(frame, name, limit)
    _emit_parity(frame, parity, _store(frame, parity).run)
    if not parity.passed:
        raise SystemExit(DEFECT)


def _emit_parity(frame: Frame, parity: Parity, run: str) -> None:
    frame.emit({**to_plain(parity), "passed": parity.passed, "run": run}, lambda: parity_text(parity))


def _store(frame: Frame, parity: Parity) -> StoredComparison:
    from rivertwice.core.instants import utc_now
    from rivertwice.versions.comparisons import new_run, store_comparison

    now = utc_now()
    return store_comparison(frame.settings.pipeline(parity.version), parity, new_run(now), by="cli", now=now)


def _compared(frame: Frame, name: str, limit: int) -> Parity:
    from rivertwice.engine.session import spark_on_demand
    from rivertwice.timeline.lineage import path_ledger
    from rivertwice.versions.parity import compare_versions

    with spark_on_demand(frame.settings, f"rivertwice-parity-{name}") as spark:
        spark.expect(records=sum(row.read for row in path_ledger(frame.settings.pipeline(name))))
        return compare_versions(frame.settings, name, spark, frame.progress, limit=limit)


@version.command(
    epilog=example(
        "rivertwice version serve flight_delays@v2",
        "rivertwice version serve flight_delays --yes  # back to the first one",
        "rivertwice version serve flight_delays@v2 --accept-different --reason 'windows of two hours, as planned'",
    )
)
@name_argument()
@click.option(
    "--without-left-out", is_flag=True, help="Serve although windows that are served now would be served no more."
)
@click.option(
    "--accept-different",
    is_flag=True,
    help="Serve although no row can be compared, because windows or keys changed; kept with --reason and your name.",
)
@asks_first("another version serves")
@pass_frame
def serve(frame: Frame, name: str, consent: Consent, without_left_out: bool, accept_different: bool) -> None:
    """Let version NAME serve.

    What consumers read shows its rows, from one commit on. Exit 3 if it may not. A version that never served is compared first, and serves only if every difference has a cause. The one that served before
    keeps its rows and its stream, and serves again by the same command; that compares nothing.

    If the windows or the keys changed, no comparison can pass. Then it shows what is served before and after, and a person accepts
    that with --accept-different --reason TEXT. The version must still be proved by its own reconcile and have read as far.
    """
    from rivertwice.core.instants import utc_now
    from rivertwice.versions.comparisons import require_valid
    from rivertwice.versions.serve import serve_version
    from rivertwice.versions.switching import choice_of, explain_not_needed

    settings = frame.settings
    frame.known_pipeline(name)
    home = settings.pipeline(name)
    if accept_different:
        named_reason(consent.reason)
    choice = choice_of(settings, name)
    stored = None
    parity = _compared(frame, name, 20) if choice.compares else None
    different = choice.different if parity is None else parity.different  # Spark may find what the files do not say
    if different:
        exchange = _require_accepted(frame, name, different, accept_different, without_left_out)
        _serve_different(frame, exchange, consent)
        return
    if accept_different:
        raise RequestError(explain_not_needed(choice))
    if parity is not None:
        stored = _require_passed(frame, parity, consent, without_left_out=without_left_out)
    before = home.serving_version

    def preview() -> Preview:
        value = {"version": name, "before": before, "parity": None if parity is None else to_plain(parity)}
        compared = "it served before, so nothing is compared" if parity is None else parity_text(parity)
        return Preview(value, f"{compared}\n{name} would serve in place of {before}", nothing=before == name)

    if not consent.given(name, f"Let {name} serve in place of {before}?", preview):
        return

    def check() -> None:
        if stored is not None:
            require_valid(settings, stored)

    brief = None if stored is None else stored.brief()
    done = serve_version(settings, name, by="cli", now=utc_now(), compared=brief, check=check)
    frame.emit(done, lambda: _switched_text(done))


def _require_passed(
    frame: Frame, parity: Parity, consent: Consent, *, without_left_out: bool
) -> StoredComparison | None:
    """Return the stored form of a comparison that passed; None with `--dry-run`, which stores nothing.

    Raises:
        SystemExit: it has not passed; it was shown.
        RequestError: windows that are served now would be served no more.
    """
    if not parity.passed and consent.dry_run:
        frame.emit({**to_plain(parity), "passed": False}, lambda: parity_text(parity))
        raise SystemExit(DEFECT)
    if not parity.passed:
        _emit_parity(frame, parity, _store(frame, parity).run)
        raise SystemExit(DEFECT)
    if parity.left_out and not without_left_out:
        raise RequestError(_left_out_text(parity.version, parity.left_out))
    return None if consent.dry_run else _store(frame, parity)


def _require_accepted(
    frame: Frame, name: str, different: Sequence[str], accepted: bool, without_left_out: bool
) -> Exchange:
    """Return what a switch to a version whose rows cannot be compared exchanges.

    Raises:
        SystemExit: nobody accepted it; what it exchanges was shown.
        RequestError: the version cannot serve yet, or windows that are served now would be served no more.
    """
    from rivertwice.versions.accept import look_at_exchange

    exchange = look_at_exchange(frame.settings, name, different)
    if not accepted:
        frame.emit({**to_plain(exchange), "passed": False}, lambda: f"{exchange_text(exchange)}\nnothing was switched")
        raise SystemExit(DEFECT)
    exchange.require_ready()
    if exchange.left_out and not without_left_out:
        raise RequestError(_left_out_text(name, exchange.left_out))
    return exchange


def _serve_different(frame: Frame, exchange: Exchange, consent: Consent) -> None:
    """Let a version serve whose rows cannot be compared, and keep by whom, when and why that was accepted."""
    from rivertwice.core.instants import utc_now
    from rivertwice.versions.accept import accept
    from rivertwice.versions.serve import serve_version

    name, serving, reason = exchange.version, exchange.serving, str(consent.reason)

    def preview() -> Preview:
        text = f"{exchange_text(exchange)}\n{name} would serve in place of {serving}"
        return Preview({"version": name, "before": serving, "exchange": to_plain(exchange)}, text)

    if not consent.given(name, f"Let {name} serve in place of {serving}, though no row was compared?", preview):
        return
    now = utc_now()
    done = serve_version(
        frame.settings,
        name,
        by=consent.by,
        now=now,
        reason=reason,
        accept=lambda: accept(frame.settings, name, exchange.different, by=consent.by, reason=reason, now=now),
    )
    frame.emit(done, lambda: _switched_text(done))


def _left_out_text(name: str, left_out: Sequence[ExcludedWindows]) -> str:
    parts = "; ".join(f"{part.windows} before {to_plain(part.end)}, because {part.why}" for part in left_out)
    return (
        f"windows of {name} could not be compared: {parts}; nothing was switched; with --without-left-out it serves without that proof, "
        "and what it lacks is served no more"
    )


def _switched_text(done: Switched) -> str:
    if not done.changed:
        return f"{done.version} serves already"
    text = f"{done.version} serves now, {done.rows} rows; {done.before} goes on beside it, `rivertwice version serve {done.before}` goes back"
    if done.not_counted:
        text += f"; {done.not_counted} publications of {done.before} since it began to serve do not count for {done.version}"
    return text


@version.command(epilog=example("rivertwice stop flight_delays@v2 --wait", "rivertwice version drop flight_delays@v2"))
@name_argument()
@asks_first("a version's tables and checkpoints are deleted")
@pass_frame
def drop(frame: Frame, name: str, consent: Consent) -> None:
    """Give version NAME up and remove all that it stored.

    What is served does not change; its number is not used again.
    """
    from rivertwice.core.instants import utc_now
    from rivertwice.versions.begin import drop_version, require_version

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
    from rivertwice.agent.alert_kinds import TASK_FAILED
    from rivertwice.agent.alert_store import alerts_of

    base = base_of(name)

    def is_over(alert: Alert) -> bool:
        cause = alert.cause
        is_of_switch = cause.kind == TASK_FAILED and cause.subject.startswith(f"switch__{base}.")
        return cause.pipeline == name or (cause.pipeline == base and is_of_switch)

    alerts_of(settings).resolve(is_over, f"{name} was dropped", now)


def begin_beside(frame: Frame, name: str, timeout: int, consent: Consent, *, recompute: bool) -> None:
    """Show what a new version of a pipeline would do, or begin it and compute its past."""
    from rivertwice.definition.upgrade import ACCEPTED, explain_accepted
    from rivertwice.versions.begin import find_wanted

    _require_pipeline(frame, name)
    wanted = find_wanted(frame.settings, name, recompute=recompute)  # before Spark is asked for anything
    if wanted.way.kind == ACCEPTED:
        frame.progress(explain_accepted(wanted.way, wanted.new.definition.name))
    if consent.given(name, f"Begin a new version beside {name}?", lambda: _plan(frame, name, recompute=recompute)):
        _begin(frame, name, timeout, recompute=recompute)


def _plan(frame: Frame, name: str, *, recompute: bool) -> Preview:
    from rivertwice.engine.session import spark_on_demand
    from rivertwice.versions.plan import plan_version

    with spark_on_demand(frame.settings, f"rivertwice-plan-{name}") as spark:
        plan = plan_version(frame.settings, name, spark, recompute=recompute)
    return Preview(plan, lambda: plan_text(plan))


def _begin(frame: Frame, name: str, timeout: int, *, recompute: bool) -> None:
    from rivertwice.core.instants import utc_now
    from rivertwice.versions.begin import begin_version, way_of
    from rivertwice.versions.plan import require_readable

    settings, now = frame.settings, utc_now()
    require_readable(settings, name, recompute=recompute)
    begun = begin_version(settings, name, by="cli", now=now, recompute=recompute)
    frame.progress(f"{begun.name} runs beside {begun.beside}, which goes on with the definition that it runs")
    report, text = load_and_start(frame, begun.name, now, timeout, wait=False)
    way = way_of(settings, begun, begun.beside)
    frame.emit(report | {"version": begun.name, "different": list(way.reasons)}, lambda: f"{text}; {_next(begun, way)}")


def _next(begun: Version, way: Way) -> str:
    """Return the commands that lead from a version that has begun to one that serves. Pure."""
    from rivertwice.definition.upgrade import ACCEPTED, explain_accepted

    both = ", ".join(f"`rivertwice reconcile {name}`" for name in (begun.beside, begun.name))
    if way.kind == ACCEPTED:
        return f"next: {both}; {explain_accepted(way, begun.name)}"
    return f"next: {both}, `rivertwice version compare {begun.name}`"


def _require_pipeline(frame: Frame, name: str) -> None:
    """Check that a name is a pipeline's, not a version's."""
    frame.known_pipeline(name)
    if base_of(name) != name:
        message = f"{name} is a version; name its pipeline, {base_of(name)}"
        raise RequestError(message)
