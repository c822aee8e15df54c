"""view: the rows of a fold by key, now or at an instant, and the results of open windows so far."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import click

from rivertwice.commands.frame import Frame, as_table, example, pass_frame, to_plain
from rivertwice.commands.options import INSTANT, INSTANT_FORM, name_argument, renamed_option
from rivertwice.errors import RequestError


@click.command(
    epilog=example(
        "rivertwice view account_ledger",
        "rivertwice view account_ledger --key '{\"account_id\": 42}' --at 2024-01-02T10:00:00Z",
        "rivertwice view account_ledger --key '{\"account_id\": 42}' --history",
    )
)
@name_argument()
@click.option("--key", "key_text", metavar="JSON", help="Only these values of key columns, as a JSON object.")
@click.option(
    "--at",
    type=INSTANT,
    metavar="INSTANT",
    help=f"As of this event time; an event exactly at it counts. {INSTANT_FORM}.",
)
@click.option("--history", is_flag=True, help="Every row, in the order of the log, not the newest of each key.")
@renamed_option("--last", "--limit", type=click.IntRange(1))
@click.option("--limit", type=click.IntRange(1), default=200, show_default=True, help="At most so many rows, the last.")
@pass_frame
def view(frame: Frame, name: str, key_text: str | None, at: datetime | None, history: bool, limit: int) -> None:
    """Show the newest row of every key of a fold.

    For a pipeline that emits updates it shows the newest row of every open window.
    """
    from rivertwice.timeline.key_view import read_view

    key = parse_key(key_text)
    result = read_view(frame.settings.pipeline(frame.known_pipeline(name)), key=key, at=at, history=history)
    shown = [to_plain(row) for row in result.rows[-limit:]]
    value = {"pipeline": name, "at": at, "shows": result.stamp, "rows": shown, "total": len(result.rows)}
    frame.emit(
        value,
        lambda: (
            f"{as_table(result.columns, [[row[column] for column in result.columns] for row in shown])}\n"
            f"{len(shown)} of {len(result.rows)} rows, up to batch {result.stamp.timeline}/{result.stamp.batch}"
        ),
    )


def parse_key(text: str | None) -> dict[str, Any] | None:
    """Return the key that --key gives; None if it is not given. Pure.

    Raises:
        RequestError: it is no JSON object.
    """
    if text is None:
        return None
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        message = f"--key {text[:80]!r} is no JSON object; write it as '{{\"account_id\": 42}}'"
        raise RequestError(message)
    return values
