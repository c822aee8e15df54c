"""quality: what a pipeline's own suites found, and accepting what is known."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import Frame, as_table, example, pass_frame
from rivertwice.cli.options import name_argument, range_of, range_options, reason_option
from rivertwice.core import RequestError, to_plain

if TYPE_CHECKING:
    from rivertwice.core import PipelineHome

_HEADERS = (
    "run",
    "subject",
    "severity",
    "state",
    "expectation",
    "because",
    "observed",
    "unexpected",
    "windows",
    "rows for instance",
)


@click.command(
    epilog=example(
        "rivertwice quality flight_delays",
        "rivertwice quality flight_delays --failing --limit 10",
        'rivertwice quality flight_delays --accept 0123456789ab --reason "a strike on 30 June"',
    )
)
@name_argument()
@range_options
@click.option("--subject", type=click.Choice(("windows", "corrections")), help="Only of this suite.")
@click.option("--failing", is_flag=True, help="Only what failed, or could not be judged.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Maximum number of rows; the newest are shown.",
)
@click.option("--accept", metavar="EXPECTATION", help="Accept what the newest reconcile found of this expectation.")
@reason_option()
@changes_unasked("an acceptance", because="a later failure fails the gate again")
@pass_frame
def quality(
    frame: Frame,
    name: str,
    start: datetime | None,
    end: datetime | None,
    subject: str | None,
    failing: bool,
    limit: int,
    accept: str | None,
    reason: str | None,
) -> None:
    """Show what the suites of NAME found.

    The suites are expectations/NAME/windows.json over served windows, and corrections.json over backfills.

    --from and --to choose runs that judged windows of a range. What failed over served windows fails every reconcile until
    these windows were judged again and passed, or until --accept: then it fails again only if new windows fail.
    """
    from rivertwice.core import to_ms
    from rivertwice.quality import ERRORED, FAILED, STILL_FAILS, read_results

    home = frame.settings.pipeline(frame.known_pipeline(name))
    if accept is not None or reason is not None:
        _accept(frame, home, name, accept, reason)
        return
    asked = range_of(start, end)
    rows = [
        row
        for row in read_results(home, subject)
        if not failing or row["state"] in (FAILED, STILL_FAILS, ERRORED)
        if asked is None or _overlaps(row, to_ms(asked.start), to_ms(asked.end))
    ]
    shown = [to_plain(row) for row in rows[:limit]]
    frame.emit({"pipeline": name, "rows": shown, "total": len(rows)}, lambda: _text(name, shown, len(rows)))


def _overlaps(row: Mapping[str, Any], start_ms: int, end_ms: int) -> bool:
    from rivertwice.core import to_ms

    first, last = row["window_start"], row["window_end"]
    return first is not None and last is not None and to_ms(first) < end_ms and start_ms < to_ms(last)


def _text(name: str, shown: list[dict[str, Any]], total: int) -> str:
    if not total:
        return f"no result is stored; `rivertwice lint {name}` checks the suites in expectations/{name}, and each reconcile runs windows.json"
    from rivertwice.quality import judgement_of

    rows = [
        (
            row["run"],
            row["subject"],
            row["severity"],
            row["state"],
            row["expectation"],
            row["reason"] if row["state"] == "accepted" else row["because"],
            row["error"] or row["observed"],
            row["unexpected"],
            f"{row['window_start']} to {row['window_end']}" if row["window_start"] else "-",
            "; ".join(judgement_of(row).example_texts()[:3]),
        )
        for row in shown
    ]
    return f"{as_table(_HEADERS, rows)}\n{len(shown)} of {total} rows"


def _accept(frame: Frame, home: PipelineHome, name: str, accept: str | None, reason: str | None) -> None:
    from rivertwice.core import did_you_mean, utc_now
    from rivertwice.quality import read_newest, store_acceptance

    if accept is None or not (reason or "").strip():
        missing = "--accept" if accept is None else "--reason"
        message = f'what is accepted, and why, are both recorded, and {missing} is not given; write --accept EXPECTATION --reason "WHY"'
        raise RequestError(message)
    newest = read_newest(home)
    failing = {} if newest is None else {each.id: each for each in newest.judgements if each.fails}
    if newest is None or accept not in failing:
        found = did_you_mean(accept, failing) if failing else "nothing fails"
        message = (
            f"no expectation {accept!r} of {name} fails over served windows, so there is nothing to accept; {found}"
        )
        raise RequestError(message)
    store_acceptance(home, newest, failing[accept], str(reason).strip(), utc_now())
    result = {"pipeline": name, "run": newest.run, "expectation": accept, "reason": reason}
    frame.emit(result, f"{accept} of {newest.run} is accepted; the next reconcile does not fail for these windows")
