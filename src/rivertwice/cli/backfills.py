"""backfill plan, run, list; late: windows computed again, and the records that made it necessary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rivertwice.cli.asking import Consent, Preview, asks_first, changes_unasked
from rivertwice.cli.frame import Frame, FriendlyGroup, as_table, example, pass_frame
from rivertwice.cli.options import name_argument, range_of, range_options
from rivertwice.cli.served import await_served
from rivertwice.cli.warm import on_engine
from rivertwice.core.errors import NothingStaleError, RequestError
from rivertwice.core.plain import to_plain

if TYPE_CHECKING:
    from datetime import datetime

    from rivertwice.backfill.model import BackfillPlan
    from rivertwice.core.instants import TimeRange
    from rivertwice.engine.jvm import Spark


@click.group(
    cls=FriendlyGroup, epilog=example("rivertwice backfill plan flight_delays", "rivertwice backfill run flight_delays")
)
def backfill() -> None:
    """Recompute closed windows from the log and publish them."""


late_option = click.option(
    "--late", is_flag=True, help="Those windows of the late queue that are due (`rivertwice late queue NAME`)."
)


def _plan(
    frame: Frame,
    name: str,
    asked: TimeRange | None,
    reason: str,
    *,
    late: bool,
    spark: Spark,
) -> BackfillPlan:
    from rivertwice.backfill.model import BackfillRequest
    from rivertwice.backfill.prepare import make_plan
    from rivertwice.core.instants import utc_now

    if late and asked is not None:
        message = (
            "--late takes its windows from the late queue, but --from and --to are given too; leave one of them out"
        )
        raise RequestError(message)
    request = BackfillRequest(frame.known_pipeline(name), asked, reason, utc_now() if late else None)
    return make_plan(frame.settings, request, spark)


def _tell_nothing(frame: Frame, name: str, why: NothingStaleError, *, late: bool) -> None:
    """Print that there is nothing to recompute, and what to do if there should be.

    Raises:
        RequestError: the pipeline was never reconciled, so it is not known what is late.
    """
    from rivertwice.reconcile.results import newest_reconcile

    if not late and newest_reconcile(frame.settings.pipeline(name)) is None:
        message = (
            f"{name} was never reconciled, so it is not known which windows are late; run `rivertwice reconcile {name}`"
        )
        raise RequestError(message)
    then = "" if late else f"; if records came since, run `rivertwice reconcile {name}` first"
    value = {"backfill": None, "windows": 0, "nothing": str(why)}
    frame.emit(value, f"nothing to do: {why}{then}")


@backfill.command(
    epilog=example(
        "rivertwice backfill plan flight_delays",
        "rivertwice backfill plan flight_delays --from 2013-06-30T04:00:00Z --to 2013-07-01T04:00:00Z",
    )
)
@name_argument()
@range_options
@late_option
@click.option("--reason", default="manual", show_default=True, help="Kept with the plan.")
@click.option("--save", is_flag=True, help="Store the plan, so that a DAG or `backfill run --id` runs this very one.")
@on_engine()
@changes_unasked("with --save a stored plan", because="it publishes nothing")
@pass_frame
def plan(
    frame: Frame, name: str, start: datetime | None, end: datetime | None, late: bool, reason: str, save: bool
) -> None:
    """Show what a backfill of NAME would do.

    Without a range: for the windows that the newest reconcile found stale. Sessions are looked up in the log, so they need a Spark job.
    """
    from rivertwice.backfill.plan import explain_plan
    from rivertwice.backfill.store import save_plan
    from rivertwice.engine.session import spark_on_demand

    try:
        with spark_on_demand(frame.settings, f"rivertwice-backfill-{name}") as spark:
            made = _plan(frame, name, range_of(start, end), reason, late=late, spark=spark)
    except NothingStaleError as nothing:
        _tell_nothing(frame, name, nothing, late=late)
        return
    if save:
        made = save_plan(frame.settings.pipeline(name), made)
    frame.emit(made, lambda: explain_plan(made))


@backfill.command(
    epilog=example(
        "rivertwice backfill run flight_delays", "rivertwice backfill run flight_delays --id bf-0123456789ab --yes"
    )
)
@name_argument()
@range_options
@late_option
@click.option("--id", "backfill_id", help="Run a stored plan; one that was cut off continues where it stopped.")
@click.option("--no-publish", is_flag=True, help="Stop after the audit; nothing becomes visible, and nothing is asked.")
@click.option(
    "--accept-quality",
    "accepted",
    metavar="WHY",
    help="Publish it although a critical expectation of its suite fails; the reason is recorded.",
)
@on_engine()
@asks_first("corrections are published")
@pass_frame
def run(
    frame: Frame,
    name: str,
    start: datetime | None,
    end: datetime | None,
    late: bool,
    consent: Consent,
    backfill_id: str | None,
    no_publish: bool,
    accepted: str | None,
) -> None:
    """Plan, compute, audit and publish a backfill of NAME.

    Without a range: the windows that the newest reconcile found late; if there are none, it says so and exits 0.
    It ends when readers see what it published. Killed anywhere and run again: the same result, or nothing visible. The audit judges the rows by
    expectations/NAME/corrections.json, if there is one: exit 3 if a critical expectation fails.
    """
    from rivertwice.backfill.audit import audit_backfill
    from rivertwice.backfill.compute import compute_backfill
    from rivertwice.backfill.plan import explain_plan
    from rivertwice.backfill.publish import publish_backfill
    from rivertwice.backfill.store import load_plan, save_plan
    from rivertwice.engine.session import spark_on_demand

    settings = frame.settings
    home = settings.pipeline(frame.known_pipeline(name))
    if accepted is not None and not accepted.strip():
        message = (
            '--accept-quality gives no reason, and it is recorded; write why, for instance --accept-quality "a strike"'
        )
        raise RequestError(message)
    with spark_on_demand(settings, f"rivertwice-backfill-{name}") as spark:
        if backfill_id:
            chosen = load_plan(home, backfill_id)
        else:
            reason = consent.reason or "manual"
            try:
                chosen = _plan(frame, name, range_of(start, end), reason, late=late, spark=spark)
            except NothingStaleError as nothing:
                _tell_nothing(frame, name, nothing, late=late)
                return
        spark.expect(records=chosen.records)
        shown = Preview(chosen, lambda: explain_plan(chosen))
        is_asked = consent.dry_run or not no_publish
        if is_asked and not consent.given(name, f"Publish {chosen.windows} windows of {name}?", lambda: shown):
            return
        if not backfill_id:
            chosen = save_plan(home, chosen)
        for line in explain_plan(chosen).splitlines():
            frame.progress(line)
        compute_backfill(spark(), settings, chosen, frame.progress)
        frame.progress("audit ...")
        report = audit_backfill(settings, chosen, spark, accepted=(accepted or "").strip())
    audit = to_plain(report)
    for check in report.checks:
        if check.name == "quality":
            frame.progress(f"quality: {check.detail}")
    entry = None if no_publish else publish_backfill(settings, chosen)
    result = {"backfill": chosen.id, "windows": chosen.windows, "audit": audit, "sequence": getattr(entry, "seq", None)}
    result["served"] = entry is not None and await_served(frame, name)
    text = f"{chosen.id}: {chosen.windows} windows " + (
        "audited, not published" if entry is None else f"published as {entry.seq}"
    )
    frame.emit(result, text)


@backfill.command("list", epilog=example("rivertwice backfill list flight_delays"))
@name_argument()
@pass_frame
def list_all(frame: Frame, name: str) -> None:
    """List the stored plans of NAME; say which are published."""
    from rivertwice.backfill.store import list_backfills, load_plan
    from rivertwice.timeline.sequence import PUBLICATION, read_sequence

    home = frame.settings.pipeline(frame.known_pipeline(name))
    published = {entry.payload["backfill"]: entry.seq for entry in read_sequence(home) if entry.kind == PUBLICATION}
    plans = [load_plan(home, backfill_id) for backfill_id in list_backfills(home)]
    rows = [
        {
            "id": item.id,
            "windows": item.windows,
            "records": item.records,
            "reason": item.reason,
            "published": published.get(item.id),
        }
        for item in plans
    ]
    headers = ("id", "windows", "records", "reason", "published")
    frame.emit(rows, lambda: as_table(headers, [[row[key] for key in headers] for row in rows]))


# late list, queue: the rows that came too late, and the windows that wait for their correction.


@click.group(
    cls=FriendlyGroup, epilog=example("rivertwice late list order_totals", "rivertwice late queue order_totals")
)
def late() -> None:
    """List records that came after their window had closed.

    They are there if the definition keeps them (late.policy).
    """


@late.command(
    "list", epilog=example("rivertwice late list order_totals", "rivertwice late list order_totals --limit 20")
)
@name_argument()
@click.option("--limit", type=click.IntRange(1), default=200, show_default=True, help="At most so many rows, the last.")
@pass_frame
def list_rows(frame: Frame, name: str, limit: int) -> None:
    """List the late rows of NAME by address.

    It says which window each missed, and by which watermark.
    """
    from rivertwice.timeline.lineage import path_ledger
    from rivertwice.timeline.served_rows import read_late_rows

    home = frame.settings.pipeline(frame.known_pipeline(name))
    rows = read_late_rows(home, path_ledger(home))
    shown = [
        {
            "place": f"{row['topic']}/{row['partition']}@{row['offset']}",
            "batch": row["batch"].batch,
            **{key: to_plain(row[key]) for key in ("event_time", "window_start", "window_end", "late_watermark")},
            "fields": row["fields"],
        }
        for row in rows[-limit:]
    ]
    columns = ("place", "batch", "event_time", "window_start", "window_end", "late_watermark", "fields")
    frame.emit(
        {"pipeline": name, "rows": shown, "total": len(rows)},
        lambda: (
            f"{as_table(columns, [[row[key] for key in columns] for row in shown])}\n{len(shown)} of {len(rows)} late rows"
        ),
    )


@late.command(
    "queue", epilog=example("rivertwice late queue order_totals", "rivertwice backfill run order_totals --late")
)
@name_argument()
@pass_frame
def show_queue(frame: Frame, name: str) -> None:
    """Show the windows that late rows wait in.

    No backfill has counted these windows yet; each is due, waiting, or given up.
    """
    from rivertwice.backfill.late_queue import describe_queue
    from rivertwice.backfill.observe import observe_late_queue
    from rivertwice.core.instants import utc_now

    home = frame.settings.pipeline(frame.known_pipeline(name))
    queue = observe_late_queue(home, utc_now())
    columns = ("window", "state", "records", "first_at", "last_at", "due_at")
    rows = [{"window": window.window, **{key: getattr(window, key) for key in columns[1:]}} for window in queue]
    frame.emit(
        {"pipeline": name, "windows": rows},
        lambda: (
            f"{as_table(columns, [[to_plain(row[key]) for key in columns] for row in rows])}\n{describe_queue(queue)}"
        ),
    )
