"""version: definitions of a pipeline that run beside the one that serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rivertwice.commands.asking import Consent, Preview, asks_first, changes_unasked
from rivertwice.commands.frame import DEFECT, Frame, FriendlyGroup, as_table, example, pass_frame, to_plain
from rivertwice.commands.options import name_argument
from rivertwice.commands.streams import load_and_start
from rivertwice.commands.version_text import comparison_text, parity_text, plan_text
from rivertwice.commands.warm import on_engine
from rivertwice.config.versions import base_of
from rivertwice.errors import RequestError

if TYPE_CHECKING:
    from datetime import datetime

    from rivertwice.alerts.model import Alert
    from rivertwice.config import Settings
    from rivertwice.timeline.version_records import Version
    from rivertwice.versions.comparisons import StoredComparison
    from rivertwice.versions.model import Parity
    from rivertwice.versions.serve import Switched


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

    It says when each began, what changed, its newest comparison, and whether it was dropped.
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
    frame.emit(value, lambda: f"{as_table(headers, rows)}\nserves: {serving}" if rows else none)


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
    """
    frame.known_pipeline(name)
    parity = _compared(frame, name, limit)
    _emit_parity(frame, parity, _store(frame, parity).run)
    if not parity.passed:
        raise SystemExit(DEFECT)


def _emit_parity(frame: Frame, parity: Parity, run: str) -> None:
    frame.emit({**to_plain(parity), "passed": parity.passed, "run": run}, lambda: parity_text(parity))


def _store(frame: Frame, parity: Parity) -> StoredComparison:
    from rivertwice.instants import utc_now
    from rivertwice.versions.comparisons import new_run, store_comparison

    now = utc_now()
    return store_comparison(frame.settings.pipeline(parity.version), parity, new_run(now), by="cli", now=now)


def _compared(frame: Frame, name: str, limit: int) -> Parity:
    from rivertwice.pipeline.engine import spark_on_demand
    from rivertwice.timeline.lineage import path_ledger
    from rivertwice.versions.parity import compare_versions

    with spark_on_demand(frame.settings, f"rivertwice-parity-{name}") as spark:
        spark.expect(records=sum(row.read for row in path_ledger(frame.settings.pipeline(name))))
        return compare_versions(frame.settings, name, spark, frame.progress, limit=limit)


@version.command(
    epilog=example(
        "rivertwice version serve flight_delays@v2",
        "rivertwice version serve flight_delays --yes  # back to the first one",
    )
)
@name_argument()
@click.option(
    "--without-left-out", is_flag=True, help="Serve although windows that are served now would be served no more."
)
@asks_first("another version serves")
@pass_frame
def serve(frame: Frame, name: str, consent: Consent, without_left_out: bool) -> None:
    """Let version NAME serve.

    What consumers read shows its rows, from one commit on. Exit 3 if it may not. A version that never served is compared first, and serves only if every difference has a cause. The one that served before
    keeps its rows and its stream, and serves again by the same command; that compares nothing.
    """
    from rivertwice.instants import utc_now
    from rivertwice.versions.comparisons import require_valid
    from rivertwice.versions.serve import require_switchable, serve_version, served_before

    settings = frame.settings
    frame.known_pipeline(name)
    require_switchable(settings, name)
    home = settings.pipeline(name)
    stored = parity = None
    if not served_before(home):
        parity = _compared(frame, name, 20)
        if consent.dry_run and not parity.passed:
            frame.emit({**to_plain(parity), "passed": False}, lambda: parity_text(parity))
            raise SystemExit(DEFECT)
        if not parity.passed:
            _emit_parity(frame, parity, _store(frame, parity).run)
            raise SystemExit(DEFECT)
        if parity.left_out and not without_left_out:
            message = (
                f"windows of {name} could not be compared: {_left_out_text(parity)}; nothing was switched; with --without-left-out it serves "
                "without that proof, and what it lacks is served no more"
            )
            raise RequestError(message)
        if not consent.dry_run:
            stored = _store(frame, parity)
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


def _left_out_text(parity: Parity) -> str:
    return "; ".join(f"{part.windows} before {to_plain(part.end)}, because {part.why}" for part in parity.left_out)


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
    from rivertwice.instants import utc_now
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
    from rivertwice.alerts.kinds import TASK_FAILED
    from rivertwice.alerts.store import alerts_of

    base = base_of(name)

    def is_over(alert: Alert) -> bool:
        cause = alert.cause
        is_of_switch = cause.kind == TASK_FAILED and cause.subject.startswith(f"switch__{base}.")
        return cause.pipeline == name or (cause.pipeline == base and is_of_switch)

    alerts_of(settings).resolve(is_over, f"{name} was dropped", now)


def begin_beside(frame: Frame, name: str, timeout: int, consent: Consent, *, recompute: bool) -> None:
    """Show what a new version of a pipeline would do, or begin it and compute its past."""
    _require_pipeline(frame, name)
    if consent.given(name, f"Begin a new version beside {name}?", lambda: _plan(frame, name, recompute=recompute)):
        _begin(frame, name, timeout, recompute=recompute)


def _plan(frame: Frame, name: str, *, recompute: bool) -> Preview:
    from rivertwice.pipeline.engine import spark_on_demand
    from rivertwice.versions.plan import plan_version

    with spark_on_demand(frame.settings, f"rivertwice-plan-{name}") as spark:
        plan = plan_version(frame.settings, name, spark, recompute=recompute)
    return Preview(plan, lambda: plan_text(plan))


def _begin(frame: Frame, name: str, timeout: int, *, recompute: bool) -> None:
    from rivertwice.instants import utc_now
    from rivertwice.versions.begin import begin_version
    from rivertwice.versions.plan import require_readable

    settings, now = frame.settings, utc_now()
    require_readable(settings, name, recompute=recompute)
    begun = begin_version(settings, name, by="cli", now=now, recompute=recompute)
    frame.progress(f"{begun.name} runs beside {begun.beside}, which goes on with the definition that it runs")
    report, text = load_and_start(frame, begun.name, now, timeout, wait=False)
    frame.emit(report | {"version": begun.name}, lambda: f"{text}; {_next(begun)}")


def _next(begun: Version) -> str:
    both = ", ".join(f"`rivertwice reconcile {name}`" for name in (begun.beside, begun.name))
    return f"next: {both}, `rivertwice version compare {begun.name}`"


def _require_pipeline(frame: Frame, name: str) -> None:
    """Check that a name is a pipeline's, not a version's."""
    frame.known_pipeline(name)
    if base_of(name) != name:
        message = f"{name} is a version; name its pipeline, {base_of(name)}"
        raise RequestError(message)
