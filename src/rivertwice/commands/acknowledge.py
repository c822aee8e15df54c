"""acknowledge: record why nothing of a pipeline can be compared, so that its gate passes meanwhile."""

from __future__ import annotations

import getpass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from rivertwice.commands.asking import changes_unasked
from rivertwice.commands.frame import Frame, as_table, example, pass_frame
from rivertwice.commands.options import INSTANT, INSTANT_FORM, name_argument, reason_option
from rivertwice.errors import RequestError

if TYPE_CHECKING:
    from rivertwice.reconcile.acknowledge import Acknowledgement


@click.command(
    epilog=example(
        "rivertwice acknowledge flight_delays --reason 'upgrade of 24 November: its windows are mixed until tomorrow'",
        "rivertwice acknowledge flight_delays --list",
        "rivertwice acknowledge flight_delays --end ak-1f0c22d3",
    )
)
@name_argument()
@reason_option(was="--why")
@click.option("--until", type=INSTANT, metavar="INSTANT", help=f"It ends here at the latest: {INSTANT_FORM}.")
@click.option("--end", "ended", metavar="ID", help="End this one now.")
@click.option("--list", "listed", is_flag=True, help="Show all, with what became of them.")
@changes_unasked("an acknowledgement", because="--end takes it back")
@pass_frame
def acknowledge(
    frame: Frame, name: str, reason: str | None, until: datetime | None, ended: str | None, listed: bool
) -> None:
    """Record why the newest reconcile could compare nothing.

    That happens for instance after an upgrade or an accepted gap. Later runs pass their gate with a warning that names it, for as long as the head is the same and no other reason comes up.
    A DEFECT, a finding or a gap that is new still fails the gate.
    """
    from rivertwice.instants import utc_now
    from rivertwice.reconcile.acknowledge import acknowledge as record
    from rivertwice.reconcile.acknowledge import end_acknowledgement, read_acknowledgements
    from rivertwice.reconcile.results import newest_reconcile, verdict_rows

    home, now = frame.settings.pipeline(frame.known_pipeline(name)), utc_now()
    if sum((reason is not None, ended is not None, listed)) != 1:
        message = "give one of --reason, --end and --list"
        raise click.UsageError(message)
    if listed:
        known = [_row(entry) for entry in read_acknowledgements(home)]
        headers = ("id", "timeline", "by", "at", "until", "ended_at", "why")
        rows = [[entry[header] for header in headers] for entry in known]
        frame.emit(known, lambda: as_table(headers, rows) if rows else f"{name}: nothing is acknowledged")
        return
    if ended is not None:
        done = end_acknowledgement(home, ended, by=getpass.getuser(), now=now)
        frame.emit(_row(done), f"{name}: {done.id} has ended; the next run fails its gate if it can compare nothing")
        return
    newest = newest_reconcile(home)
    if newest is None:
        message = f"{name} was never reconciled, so there is nothing to acknowledge; run `rivertwice reconcile {name}`"
        raise RequestError(message)
    made = record(
        home,
        newest,
        verdict_rows(home, newest["run"]),
        why=str(reason),
        by=getpass.getuser(),
        until=until,
        now=now,
    )
    pairs = ", ".join(f"{pair} ({len(reasons)} reasons)" for pair, reasons in sorted(made.reasons.items()))
    frame.emit(
        _row(made),
        f"{name}: {made.id} covers {pairs} on timeline {made.timeline}; it ends when the head is another or a reason is new, "
        f"or by `rivertwice acknowledge {name} --end {made.id}`",
    )


def _row(acknowledgement: Acknowledgement) -> dict[str, Any]:
    return {
        "id": acknowledgement.id,
        "timeline": acknowledgement.timeline,
        "run": acknowledgement.run,
        "reasons": {pair: sorted(reasons) for pair, reasons in acknowledgement.reasons.items()},
        "why": acknowledgement.why,
        "by": acknowledgement.by,
        "at": acknowledgement.at,
        "until": acknowledgement.until,
        "ended_at": acknowledgement.ended_at,
        "ended_by": acknowledgement.ended_by,
    }
