"""reconcile, verdicts: compare what was served with what the log contains."""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from rivertwice.cli.acts import ActCommand, asks_for, run_act
from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import DEFECT, OK, Frame, as_table, example, pass_frame, table_of
from rivertwice.cli.options import INSTANT, INSTANT_FORM, name_argument, reason_option, refuse_beside
from rivertwice.cli.warm import on_engine
from rivertwice.core import RequestError, Row, to_plain
from rivertwice.timeline import Verdict

PAIRS = ("stream", "served")


@click.command(
    cls=ActCommand,
    epilog=example(
        "rivertwice reconcile flight_delays",
        "rivertwice reconcile flight_delays --full",
        "rivertwice reconcile flight_delays --from 2013-06-30T04:00:00Z --to 2013-07-01T04:00:00Z",
    ),
)
@asks_for("reconcile", without=("run", "silent"))
@on_engine()
@changes_unasked("verdicts and seals", because="they are added, and what is served stays")
@pass_frame
def reconcile(frame: Frame, name: str, asked: dict[str, Any]) -> None:
    """Recompute from the log; name the cause of each difference.

    A run that passes ends with a seal. The next run starts there: it computes what came since, and does nothing if nothing
    came. --full computes everything again, and so does a run with a range.

    Exit 3 if the gate did not pass: a DEFECT, a finding about a table, records without a cause, or nothing that could
    be compared. Warnings do not change the exit code.
    """
    done = run_act(frame, "reconcile", frame.known_pipeline(name), asked)
    stored, told = dict(done.stored), _tell_alerts(frame, done.alerts)
    frame.emit(stored, lambda: "\n".join([summary_text(stored), *why_open(frame, name, stored), *told]))
    if code := exit_code_of_gate(stored["gate"]):
        raise SystemExit(code)


def _tell_alerts(frame: Frame, fire: Sequence[str]) -> list[str]:
    from rivertwice.agent import load_routes

    if not fire:
        return []
    routes = load_routes(frame.settings).routes
    nobody = "" if routes else "; no route is configured, so alerts are not sent (`rivertwice docs howto-watch`)"
    return [f"{len(fire)} alerts fire: `rivertwice alerts` shows them{nobody}"]


def summary_text(stored: dict[str, Any]) -> str:
    """Return a run's verdicts by pair, and its alerts, for people. Pure."""
    counts, gate = stored.get("counts") or {}, stored.get("gate") or {}
    rows = [(pair, *(counts[pair].get(verdict, 0) for verdict in Verdict.ALL)) for pair in PAIRS if pair in counts]
    head = f"{stored.get('run')}: {stored.get('pipeline')} up to batch {stored.get('timeline')}/{stored.get('batch')}"
    reason = [f"reason: {gate['reason']}"] if gate.get("reason") else []
    alerts = [f"{alert['severity']}: {alert['message']}" for alert in gate.get("alerts", [])]
    return "\n".join([head, *reason, as_table(("pair", *Verdict.ALL), rows), *alerts])


def why_open(frame: Frame, name: str, stored: Mapping[str, Any]) -> list[str]:
    """Say what closes the windows that a run found OPEN; nothing if it found none."""
    from rivertwice.core import iso_of_ms
    from rivertwice.definition import format_duration
    from rivertwice.timeline import head_definition, head_path, newest_batch

    home = frame.settings.pipeline(name)
    definition, newest = head_definition(home), newest_batch(home, head_path(home))
    if not (stored.get("counts") or {}).get("stream", {}).get(Verdict.OPEN) or newest is None:
        return []
    if definition is None or not definition.window.kind.has_watermark:
        return []
    delays = {view: source.watermark for view, source in definition.streams.items()}
    until = (
        "no event has moved it yet"
        if newest.batch_watermark_ms <= 0
        else f"it is at {iso_of_ms(newest.batch_watermark_ms)}"
    )
    named = " and ".join(
        f"{format_duration(delay)}{f' ({view})' if len(delays) > 1 else ''}" for view, delay in delays.items()
    )
    beats = any(source.heartbeat for source in definition.streams.values())
    closing = f". If nothing more comes: `rivertwice send {name} --close`" if beats else ""
    return [
        f"OPEN: windows that end after the watermark, which is the newest event time read before less {named}; {until}. A window closes when "
        f"an event that much later than its end has been read, and one batch after it{closing}"
    ]


def exit_code_of_gate(gate: Mapping[str, Any]) -> int:
    """Return the exit code of a reconcile by its stored gate: DEFECT unless it passed. Pure."""
    return OK if gate["passed"] else DEFECT


@click.command(
    epilog=example(
        "rivertwice verdicts flight_delays --verdict LATE",
        "rivertwice verdicts flight_delays --causes",
        "rivertwice verdicts flight_delays --accept --reason 'upgrade of 24 November' --until 2026-11-26",
        "rivertwice verdicts flight_delays --accepted",
        "rivertwice verdicts flight_delays --end ak-1f0c22d3",
    )
)
@name_argument()
@click.option("--run", "run_id", help="Verdicts of this reconcile run; default: the newest.")
@click.option("--pair", type=click.Choice(PAIRS), help="Only of this pair.")
@click.option("--verdict", type=click.Choice(Verdict.ALL), help="Only this verdict.")
@click.option("--causes", is_flag=True, help="Show the causes, row by row, with partition and offset.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of rows.")
@click.option("--accept", is_flag=True, help="Accept that the newest reconcile could compare nothing of a pair.")
@reason_option()
@click.option(
    "--until", type=INSTANT, metavar="INSTANT", help=f"With --accept: it ends here at the latest: {INSTANT_FORM}."
)
@click.option("--accepted", is_flag=True, help="List what was accepted, with its outcome.")
@click.option("--end", "ended", metavar="ID", help="End this one of --accepted now.")
@changes_unasked("with --accept an acceptance", because="--end takes it back")
@pass_frame
def verdicts(
    frame: Frame,
    name: str,
    run_id: str | None,
    pair: str | None,
    verdict: str | None,
    causes: bool,
    limit: int,
    accept: bool,
    reason: str | None,
    until: datetime | None,
    accepted: bool,
    ended: str | None,
) -> None:
    """Show the verdicts of a reconcile, or the causes.

    Rows of a window that agree, or that are open, are shown as one without a key; `rows` says how many they are.

    After an upgrade or an accepted gap a reconcile can compare nothing, and its gate fails. With --accept later runs pass with a warning that names it, for as long as the head is the same and no other reason comes up.
    A DEFECT, a finding or a gap that is new still fails the gate.
    """
    from rivertwice.reconcile import cause_rows, newest_reconcile, verdict_rows

    if accept or accepted or ended is not None:
        refuse_beside(
            ("run_id", "pair", "verdict", "causes", "limit"), "does not go with --accept, --accepted or --end"
        )
    if accept or accepted or ended is not None or reason is not None or until is not None:
        if accept + accepted + (ended is not None) != 1 or accept != bool(reason) or (until is not None and not accept):
            message = "give one of --accept --reason TEXT (it may have --until), --accepted and --end"
            raise click.UsageError(message)
        _accept(frame, name, reason, until, ended)
        return
    home = frame.settings.pipeline(frame.known_pipeline(name))
    if run_id is None:
        newest = newest_reconcile(home)
        if newest is None:
            message = f"{name} was never reconciled, so there are no verdicts; run `rivertwice reconcile {name}`"
            raise RequestError(message)
        run_id = str(newest["run"])
    rows = [to_plain(row) for row in _rows(cause_rows(home, run_id) if causes else verdict_rows(home, run_id))]
    chosen = [
        row for row in rows if pair in (None, row.get("pair")) and (causes or verdict in (None, row.get("verdict")))
    ]
    shown = chosen[:limit]
    headers = (
        ("pair", "window_start", "key", "cause", "topic", "partition", "offset", "event_time", "batch")
        if causes
        else ("pair", "window_start", "key", "rows", "verdict", "late", "dead", "reason")
    )
    frame.emit(
        {"run": run_id, "rows": shown, "total": len(chosen)},
        lambda: (
            f"{as_table(headers, [[row.get(key) for key in headers] for row in shown])}\n{len(shown)} of {len(chosen)} rows"
        ),
    )


def _accept(frame: Frame, name: str, reason: str | None, until: datetime | None, ended: str | None) -> None:
    """Record why the newest reconcile could compare nothing, so that the gate passes; or end one record; or list them."""
    from rivertwice.core import utc_now
    from rivertwice.reconcile import (
        acknowledge,
        end_acknowledgement,
        newest_reconcile,
        read_acknowledgements,
        verdict_rows,
    )

    home, now = frame.settings.pipeline(frame.known_pipeline(name)), utc_now()
    if ended is not None:
        done = end_acknowledgement(home, ended, by=getpass.getuser(), now=now)
        frame.emit(done, f"{name}: {done.id} has ended; the next run fails its gate if it can compare nothing")
        return
    if reason is None:
        known = read_acknowledgements(home)
        headers = ("id", "timeline", "by", "at", "until", "ended_at", "why")
        frame.emit(known, lambda: table_of(headers, known) if known else f"{name}: nothing is accepted")
        return
    newest = newest_reconcile(home)
    if newest is None:
        message = f"{name} was never reconciled, so there is nothing to accept; run `rivertwice reconcile {name}`"
        raise RequestError(message)
    made = acknowledge(
        home, newest, verdict_rows(home, newest["run"]), why=reason, by=getpass.getuser(), until=until, now=now
    )
    pairs = ", ".join(f"{pair} ({len(reasons)} reasons)" for pair, reasons in sorted(made.reasons.items()))
    frame.emit(
        made,
        f"{name}: {made.id} covers {pairs} on timeline {made.timeline}; it ends when the head is another or a reason is new, "
        f"or by `rivertwice verdicts {name} --end {made.id}`",
    )


def _rows(stored: Any) -> list[Row]:
    if stored is None:
        return []
    return list(stored.to_pylist()) if hasattr(stored, "to_pylist") else [to_plain(row) for row in stored]
