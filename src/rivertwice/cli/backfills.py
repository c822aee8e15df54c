"""fix; backfill plan, run, list, queue, catch-up: windows computed again, and those that wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from rivertwice.cli.acts import ActCommand, asks_for, plan_act, prepare_act, run_act
from rivertwice.cli.asking import Consent, Preview, asks_first, changes_unasked
from rivertwice.cli.catch_up import catch_up
from rivertwice.cli.checks import exit_code_of_gate, summary_text, why_open
from rivertwice.cli.frame import Frame, FriendlyGroup, as_table, example, pass_frame, table_of
from rivertwice.cli.options import name_argument
from rivertwice.cli.warm import on_engine
from rivertwice.core import RequestError, to_plain


@click.group(
    cls=FriendlyGroup, epilog=example("rivertwice backfill plan flight_delays", "rivertwice backfill run flight_delays")
)
def backfill() -> None:
    """Recompute closed windows from the log and publish them."""


backfill.add_command(catch_up)


_late = click.option(
    "--late", is_flag=True, help="Those windows of the late queue that are due (`rivertwice backfill queue NAME`)."
)
_NOT_OFFERED = ("scope", "publish")


def _scope(asked: Mapping[str, Any], *, late: bool) -> str:
    return "late" if late else "stale" if asked["start"] is None and asked["end"] is None else "range"


def _tell_nothing(frame: Frame, name: str, why: str, *, late: bool) -> None:
    """Print that there is nothing to recompute, and what to do if there should be.

    Raises:
        RequestError: the pipeline was never reconciled, so it is not known what is late.
    """
    from rivertwice.reconcile import newest_reconcile

    if not late and newest_reconcile(frame.settings.pipeline(name)) is None:
        message = (
            f"{name} was never reconciled, so it is not known which windows are late; run `rivertwice reconcile {name}`"
        )
        raise RequestError(message)
    then = "" if late else f"; if records came since, run `rivertwice reconcile {name}` first"
    frame.emit({"backfill": None, "windows": 0, "nothing": why}, f"nothing to do: {why}{then}")


@backfill.command(
    cls=ActCommand,
    epilog=example(
        "rivertwice backfill plan flight_delays",
        "rivertwice backfill plan flight_delays --from 2013-06-30T04:00:00Z --to 2013-07-01T04:00:00Z",
    ),
)
@asks_for("backfill", without=(*_NOT_OFFERED, "id", "accept_quality"))
@_late
@click.option("--reason", default="manual", show_default=True, help="Kept with the plan.")
@click.option("--save", is_flag=True, help="Store the plan, so that a DAG or `backfill run --id` runs this very one.")
@on_engine()
@changes_unasked("with --save a stored plan", because="it publishes nothing")
@pass_frame
def plan(frame: Frame, name: str, asked: dict[str, Any], late: bool, reason: str, save: bool) -> None:
    """Show what a backfill of NAME would do.

    Without a range: for the windows that the newest reconcile found stale. Sessions are looked up in the log, so they need a Spark job.
    """
    from rivertwice.backfill import save_plan

    given = {**asked, "scope": _scope(asked, late=late), "reason": reason}
    shown = plan_act(frame, "backfill", frame.known_pipeline(name), given)
    if shown.nothing is not None:
        _tell_nothing(frame, name, shown.nothing, late=late)
        return
    made = save_plan(frame.settings.pipeline(name), shown.value) if save else shown.value
    frame.emit(made, shown.text)


@backfill.command(
    cls=ActCommand,
    epilog=example(
        "rivertwice backfill run flight_delays", "rivertwice backfill run flight_delays --id bf-0123456789ab --yes"
    ),
)
@asks_for("backfill", without=_NOT_OFFERED)
@_late
@click.option("--no-publish", is_flag=True, help="Stop after the audit; nothing becomes visible, and nothing is asked.")
@on_engine()
@asks_first("corrections are published")
@pass_frame
def run(frame: Frame, name: str, asked: dict[str, Any], consent: Consent, late: bool, no_publish: bool) -> None:
    """Plan, compute, audit and publish a backfill of NAME.

    Without a range: the windows that the newest reconcile found late; if there are none, it says so and exits 0.
    It ends when readers see what it published. Killed anywhere and run again: the same result, or nothing visible. The audit judges the rows by
    expectations/NAME/corrections.json, if there is one: exit 3 if a critical expectation fails.
    """
    accepted = asked["accept_quality"]
    if accepted is not None and not accepted.strip():
        message = '--accept-quality gives no reason, and it is recorded; write why: --accept-quality "a strike"'
        raise RequestError(message)
    given = {
        **asked,
        "scope": _scope(asked, late=late),
        "reason": consent.reason or "manual",
        "publish": not no_publish,
    }
    act, world, request = prepare_act(frame, "backfill", frame.known_pipeline(name), given, by=consent.by)
    plan = act.plan(world, request)
    if plan.nothing is not None:
        _tell_nothing(frame, name, plan.nothing, late=late)
        return
    is_asked = consent.dry_run or not no_publish
    shown = Preview(plan.value, plan.text)
    if is_asked and not consent.given(name, f"Publish {plan.value.windows} windows of {name}?", lambda: shown):
        return
    done = act.apply(replace(world, planned=plan), request)
    is_published = done.sequence is not None
    value = {**to_plain(done), "served": is_published and frame.await_served(name)}
    del value["nothing"]
    end = f"published as {done.sequence}" if is_published else "audited, not published"
    frame.emit(value, f"{done.backfill}: {done.windows} windows {end}")


@click.command(epilog=example("rivertwice fix flight_delays", "rivertwice fix flight_delays --dry-run"))
@name_argument()
@on_engine()
@asks_first("corrections are published")
@pass_frame
def fix(frame: Frame, name: str, consent: Consent) -> None:
    """Correct what readers of NAME see, and compare again.

    Compares what is served with the log, computes the windows again that late records made stale, audits and publishes them, waits until readers see
    them, and compares once more. It is `reconcile`, `backfill run` and `reconcile` in one; killed anywhere and run again, the result is the same.

    --dry-run plans by the newest reconcile and writes nothing. Exit 3 if the gate does not pass afterwards; what a backfill cannot correct is named.
    """
    from rivertwice.agent import definition_of_head
    from rivertwice.timeline import rebuild_served

    known = frame.known_pipeline(name)
    before = None if consent.dry_run else dict(run_act(frame, "reconcile", known, {}).stored)
    given = {"scope": "stale", "reason": consent.reason or "fix"}
    act, world, request = prepare_act(frame, "backfill", known, given, by=consent.by)
    plan = act.plan(world, request)
    if plan.nothing is not None and before is None:
        _tell_nothing(frame, name, plan.nothing, late=False)
        return
    after, published = before, None
    if plan.nothing is None:
        if not consent.given(
            name, f"Publish {plan.value.windows} windows of {name}?", lambda: Preview(plan.value, plan.text)
        ):
            return
        published = act.apply(replace(world, planned=plan), request)
        if not frame.await_served(name):  # no agent lives that would build it
            rebuild_served(frame.settings.pipeline(known), definition_of_head(frame.settings, known))
        after = dict(run_act(frame, "reconcile", known, {}).stored)
    assert after is not None
    done = (
        f"nothing to correct: {str(plan.nothing).partition(';')[0]}"
        if published is None
        else f"{published.backfill}: {published.windows} windows published as {published.sequence}"
    )
    frame.emit(
        {"before": before, "backfill": to_plain(published), "after": after},
        "\n".join([summary_text(after), *why_open(frame, known, after), done]),
    )
    if code := exit_code_of_gate(after["gate"]):
        raise SystemExit(code)


@backfill.command("list", epilog=example("rivertwice backfill list flight_delays"))
@name_argument()
@pass_frame
def list_all(frame: Frame, name: str) -> None:
    """List the stored plans of NAME; say which are published."""
    from rivertwice.backfill import list_backfills, load_backfill_plan
    from rivertwice.timeline import EntryKind, read_sequence

    home = frame.settings.pipeline(frame.known_pipeline(name))
    published = {
        entry.payload["backfill"]: entry.seq for entry in read_sequence(home) if entry.kind == EntryKind.PUBLICATION
    }
    plans = [load_backfill_plan(home, backfill_id) for backfill_id in list_backfills(home)]
    headers = ("id", "windows", "records", "reason", "published")
    rows = [(item.id, item.windows, item.records, item.reason, published.get(item.id)) for item in plans]
    frame.emit([dict(zip(headers, row, strict=True)) for row in rows], lambda: as_table(headers, rows))


@backfill.command(
    "queue", epilog=example("rivertwice backfill queue order_totals", "rivertwice backfill run order_totals --late")
)
@name_argument()
@pass_frame
def show_queue(frame: Frame, name: str) -> None:
    """Show the windows that late rows wait in.

    No backfill has counted these windows yet; each is due, waiting, or abandoned.
    """
    from rivertwice.backfill import describe_queue, observe_late_queue
    from rivertwice.core import utc_now

    home = frame.settings.pipeline(frame.known_pipeline(name))
    queue = observe_late_queue(home, utc_now())
    columns = ("window", "state", "records", "first_at", "last_at", "due_at")
    rows = [{key: getattr(window, key) for key in columns} for window in queue]
    frame.emit({"pipeline": name, "windows": rows}, lambda: f"{table_of(columns, queue)}\n{describe_queue(queue)}")
